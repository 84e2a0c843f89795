"""Big messages: cut, joined in any order, bounded, asked for once."""

import random

import pytest

from ispine.protocol.chunks import CHUNK_BYTES, Missing, Reassembler, Stamper
from ispine.protocol.codec import decode
from ispine.protocol.errors import RemoteProtocolError, TooLarge
from ispine.protocol.ids import TaskId
from ispine.protocol.messages import Chunk, Head, Task

PATIENCE_NS = 250_000_000


def task_of(size: int) -> Task:
    return Task("t1", "c1", "echo", random.Random(1).randbytes(size), 1000)


def pieces_of(size: int) -> list[tuple[Head, Chunk]]:
    stamper = Stamper("c1", 1, lambda: 5)
    pieces: list[tuple[Head, Chunk]] = []
    for frame in stamper.frames(task_of(size)):
        head, message = decode(frame)
        assert isinstance(message, Chunk)
        pieces.append((head, message))
    return pieces


def test_a_small_message_is_one_frame() -> None:
    frames = Stamper("c1", 1, lambda: 5).frames(task_of(100_000))
    assert len(frames) == 1
    assert decode(frames[0])[1] == task_of(100_000)


@pytest.mark.parametrize("size", [CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 8 * 1024 * 1024])
def test_chunks_join_in_any_order(size: int) -> None:
    pieces = pieces_of(size)
    random.Random(2).shuffle(pieces)
    join = Reassembler()
    results = [join.add(head, chunk, 0) for head, chunk in pieces]
    assert results[:-1] == [None] * (len(pieces) - 1)
    assert results[-1] is not None
    assert decode(results[-1])[1] == task_of(size)
    assert join.held_bytes == 0
    assert join.is_empty


def test_a_repeated_chunk_changes_nothing() -> None:
    first, *rest = pieces_of(3 * CHUNK_BYTES)
    join = Reassembler()
    for head, chunk in [first, first, *rest]:
        whole = join.add(head, chunk, 0)
    assert whole is not None


def test_every_packet_stays_below_a_mebibyte() -> None:
    frames = Stamper("c1", 1, lambda: 5).frames(task_of(8 * 1024 * 1024))
    assert max(map(len, frames)) < 1024 * 1024


def test_a_message_above_the_limit_is_refused_by_its_sender() -> None:
    with pytest.raises(TooLarge):
        Stamper("c1", 1, lambda: 5).frames(task_of(9 * 1024 * 1024))


def test_missing_pieces_are_asked_for_once_then_forgotten() -> None:
    pieces = pieces_of(3 * CHUNK_BYTES)
    join = Reassembler()
    join.add(*pieces[1], 0)
    assert join.expire(PATIENCE_NS - 1) == []
    assert join.expire(PATIENCE_NS) == [Missing("c1", TaskId("t1"), 0, (0, 2, 3))]
    assert join.expire(2 * PATIENCE_NS) == []
    assert join.is_empty
    assert join.held_bytes == 0


def test_only_the_missing_pieces_are_sent_again() -> None:
    frames = Stamper("c1", 1, lambda: 5).frames(task_of(3 * CHUNK_BYTES), only=(1,))
    message = decode(frames[0])[1]
    assert len(frames) == 1
    assert isinstance(message, Chunk)
    assert message.index == 1


def test_one_sender_cannot_fill_the_memory() -> None:
    join = Reassembler(max_open_per_sender=2)
    head = Head("evil", 1)
    for number in range(2):
        join.add(head, Chunk(f"t{number}", 0, 0, 2, CHUNK_BYTES + 1, bytes(CHUNK_BYTES)), 0)
    with pytest.raises(RemoteProtocolError, match="unfinished"):
        join.add(head, Chunk("t9", 0, 0, 2, CHUNK_BYTES + 1, bytes(CHUNK_BYTES)), 0)


def test_all_senders_together_cannot_fill_the_memory() -> None:
    join = Reassembler(max_bytes=3 * CHUNK_BYTES)
    for number in range(3):
        chunk = Chunk("t", 0, 0, 2, CHUNK_BYTES + 1, bytes(CHUNK_BYTES))
        join.add(Head(f"s{number}", 1), chunk, 0)
    with pytest.raises(TooLarge):
        join.add(Head("s9", 1), Chunk("t", 0, 0, 2, CHUNK_BYTES + 1, bytes(CHUNK_BYTES)), 0)
    assert join.held_bytes == 3 * CHUNK_BYTES


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk("t", 0, 2, 2, CHUNK_BYTES + 1, b"x"),
        Chunk("t", 0, 0, 2, 10, bytes(CHUNK_BYTES)),
        Chunk("t", 0, 0, 2, CHUNK_BYTES + 1, b"short"),
        Chunk("t", 0, 0, 64, 2**31 - 1, bytes(CHUNK_BYTES)),
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused(chunk: Chunk) -> None:
    with pytest.raises(RemoteProtocolError):
        Reassembler().add(Head("s", 1), chunk, 0)


def test_chunks_that_contradict_each_other_are_refused() -> None:
    join = Reassembler()
    join.add(Head("s", 1), Chunk("t", 0, 0, 2, CHUNK_BYTES + 1, bytes(CHUNK_BYTES)), 0)
    with pytest.raises(RemoteProtocolError, match="send the message again"):
        join.add(Head("s", 1), Chunk("t", 0, 0, 3, 3 * CHUNK_BYTES, bytes(CHUNK_BYTES)), 0)
    assert join.held_bytes == 0
