"""Streams and maps with answers that the test decides on, without a hub."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from ispine.protocol.errors import ConnectionLost, DeadlineExceeded, RemoteProtocolError
from ispine.sdk.answers import Answer, Outcome
from ispine.sdk.pending import Stats
from ispine.sdk.sharding import MOST_AHEAD, map_items
from ispine.sdk.streaming import MOST_UNREAD, stream_frames


class Fleet:
    """Answers a frame when the test says so."""

    def __init__(self) -> None:
        self.waiting: dict[object, asyncio.Future[Answer]] = {}
        self.asked: list[object] = []
        self.most = 0

    async def ask(self, item: object, _called_ns: int) -> Answer:
        future = self.waiting[item] = asyncio.get_running_loop().create_future()
        self.asked.append(item)
        self.most = max(self.most, len(self.waiting))
        try:
            answer: Answer = await future
            return answer
        finally:
            del self.waiting[item]

    def answer(self, item: object) -> None:
        self.waiting[item].set_result(Answer(str(item).encode(), "", str(item)))

    def fail(self, item: object, error: BaseException) -> None:
        self.waiting[item].set_exception(error)


async def echo(item: object, _called_ns: int) -> Answer:
    await asyncio.sleep(0)
    return Answer(str(item).encode(), "", str(item))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def live(frames: "asyncio.Queue[object | None]") -> AsyncIterator[object]:
    while (frame := await frames.get()) is not None:
        yield frame


async def collect(outcomes: AsyncIterator[Outcome[Answer]]) -> list[Outcome[Answer]]:
    return [outcome async for outcome in outcomes]


async def test_the_newest_frame_waits_and_the_one_before_is_reported_as_dropped() -> None:
    fleet, stats = Fleet(), Stats()
    frames: asyncio.Queue[object | None] = asyncio.Queue()
    seen = asyncio.create_task(collect(stream_frames(fleet.ask, live(frames), stats, drops=True)))
    for frame in range(5):
        frames.put_nowait(frame)
    await settle()
    assert fleet.asked == [0, 1]
    fleet.answer(1)
    await settle()
    assert fleet.asked == [0, 1, 4]
    frames.put_nowait(None)
    fleet.answer(0)
    fleet.answer(4)
    outcomes = await seen
    assert [outcome.index for outcome in outcomes] == [0, 1, 2, 3, 4]
    assert [outcome.is_dropped for outcome in outcomes] == [False, False, True, True, False]
    assert stats.dropped == 2


async def test_an_expired_frame_gives_its_place_back() -> None:
    fleet = Fleet()
    frames: asyncio.Queue[object | None] = asyncio.Queue()
    seen = asyncio.create_task(collect(stream_frames(fleet.ask, live(frames), Stats(), drops=True)))
    for frame in range(3):
        frames.put_nowait(frame)
    await settle()
    fleet.fail(0, DeadlineExceeded("too late"))
    await settle()
    assert fleet.asked == [0, 1, 2]
    fleet.answer(1)
    fleet.answer(2)
    frames.put_nowait(None)
    outcomes = await seen
    assert isinstance(outcomes[0].error, DeadlineExceeded)
    assert [outcome.value is not None for outcome in outcomes] == [False, True, True]


async def test_a_list_waits_for_places_and_drops_nothing() -> None:
    stats = Stats()
    outcomes = await collect(stream_frames(echo, list(range(50)), stats, drops=False))
    assert [outcome.value.data for outcome in outcomes if outcome.value] == [
        str(number).encode() for number in range(50)
    ]
    assert stats.dropped == 0


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ConnectionLost("closed")])
async def test_what_is_no_outcome_ends_the_stream(error: Exception) -> None:
    fleet = Fleet()
    seen = asyncio.create_task(collect(stream_frames(fleet.ask, [1, 2, 3], Stats(), drops=False)))
    await settle()
    fleet.fail(1, error)
    with pytest.raises(type(error), match=str(error)):
        await seen
    assert not fleet.waiting


async def test_a_protocol_error_is_an_outcome_with_its_code() -> None:
    fleet = Fleet()
    seen = asyncio.create_task(collect(stream_frames(fleet.ask, [1], Stats(), drops=False)))
    await settle()
    fleet.fail(1, RemoteProtocolError("junk"))
    (outcome,) = await seen
    assert outcome.error is not None
    assert outcome.error.fields["code"] == "bad_message"


def broken() -> Iterator[object]:
    yield 1
    raise OSError("camera unplugged")


@pytest.mark.parametrize("kind", ["stream", "map"])
async def test_an_error_of_the_source_reaches_the_reader(kind: str) -> None:
    outcomes = (
        stream_frames(echo, broken(), Stats(), drops=False)
        if kind == "stream"
        else map_items(echo, broken(), lambda: 4, None)
    )
    with pytest.raises(OSError, match="unplugged"):
        await collect(outcomes)


async def test_leaving_a_stream_takes_back_what_is_open() -> None:
    fleet = Fleet()
    outcomes = stream_frames(fleet.ask, list(range(10)), Stats(), drops=False)
    reading = asyncio.ensure_future(anext(aiter(outcomes)))
    await settle()
    fleet.answer(0)
    assert (await reading).index == 0
    assert fleet.waiting
    await outcomes.aclose()  # type: ignore[attr-defined]
    assert not fleet.waiting


@pytest.mark.parametrize("kind", ["stream", "map"])
async def test_nobody_reads_so_nobody_sends(kind: str) -> None:
    taken = 0

    def endless() -> Iterator[object]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    outcomes = (
        stream_frames(echo, endless(), Stats(), drops=True)
        if kind == "stream"
        else map_items(echo, endless(), lambda: 4, None)
    )
    assert (await anext(aiter(outcomes))).index == 0
    before = -1
    while before != taken:
        before = taken
        await asyncio.sleep(0.05)
    assert taken <= max(MOST_UNREAD, MOST_AHEAD) + 8
    await outcomes.aclose()  # type: ignore[attr-defined]


async def test_a_map_never_has_more_on_its_way_than_there_are_places() -> None:
    fleet, places = Fleet(), 3
    seen = asyncio.create_task(collect(map_items(fleet.ask, list(range(9)), lambda: places, None)))
    await settle()
    assert fleet.asked == [0, 1, 2]
    places = 5
    fleet.answer(1)
    await settle()
    assert fleet.asked == [0, 1, 2, 3, 4, 5]
    places = 1
    for item in (2, 3, 4, 5):
        fleet.answer(item)
    await settle()
    assert fleet.asked == [0, 1, 2, 3, 4, 5]
    for item in (0, 6, 7, 8):
        fleet.answer(item)
        await settle()
    assert [outcome.index for outcome in await seen] == list(range(9))
    assert fleet.most == 5


async def test_a_map_tells_progress_as_items_end_and_yields_in_order() -> None:
    fleet = Fleet()
    told: list[tuple[int, int | None]] = []
    outcomes = map_items(fleet.ask, [1, 2], lambda: 4, lambda *now: told.append(now))
    seen = asyncio.create_task(collect(outcomes))
    await settle()
    fleet.answer(2)
    await settle()
    assert told == [(1, 2)]
    fleet.fail(1, DeadlineExceeded("too late"))
    first, second = await seen
    assert told == [(1, 2), (2, 2)]
    assert isinstance(first.error, DeadlineExceeded)
    assert second.value is not None


async def test_an_error_of_the_progress_function_reaches_the_reader() -> None:
    def bad(_done: int, _total: int | None) -> None:
        raise ValueError("my own mistake")

    with pytest.raises(ValueError, match="my own"):
        await collect(map_items(echo, [1, 2, 3], lambda: 4, bad))


async def test_an_empty_source_is_an_empty_answer() -> None:
    assert await collect(map_items(echo, [], lambda: 4, None)) == []
    assert await collect(stream_frames(echo, iter(()), Stats(), drops=True)) == []
