"""Commands about the fleet: devices, tasks, why, drain, resume, capacity."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ispine.cli import fleet_tables as tables
from ispine.cli.options import DEFAULT_ROOT, DEFAULT_URL, AsJson, Root, Url
from ispine.cli.output import guarded, make_table, print_json, print_table
from ispine.protocol.errors import ConnectionLost, TooBusy

if TYPE_CHECKING:
    from ispine.cli.asking import Asker

DeviceArgument = Annotated[str, typer.Argument(help="Device id.")]
Args = Mapping[str, str | int | float]
Question = Callable[["Asker"], Awaitable[Any]]
WATCH_S = 1.0
FOLLOW_S = 0.5


def _ask(
    url: str, root: str, verb: str, args: Mapping[str, str | int | float] | None = None
) -> Any:
    # Imported here, for a quick `ispine --help`.
    from ispine.cli.asking import ask

    return ask(url, verb, args, root=root)


@guarded
def devices(
    url: Url = DEFAULT_URL,
    watch: Annotated[bool, typer.Option("--watch", help="Show until Ctrl-C.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """The fleet: what each device offers, how it is, how good predictions for it are."""
    if watch:
        asyncio.run(_watch_devices(url, root, as_json))
        return
    rows = _ask(url, root, "devices")
    if as_json:
        print_json(rows)
    else:
        print_table(tables.DEVICE_COLUMNS, map(tables.device_row, rows))


async def _watch_devices(url: str, root: str, as_json: bool) -> None:
    if as_json:
        async for rows in _every(url, root, WATCH_S, lambda asking: asking.ask("devices")):
            print_json(rows)
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        async for rows in _every(url, root, WATCH_S, lambda asking: asking.ask("devices")):
            live.update(make_table(tables.DEVICE_COLUMNS, map(tables.device_row, rows)))


async def _every(url: str, root: str, pause_s: float, question: Question) -> AsyncIterator[Any]:
    """Ask again and again; a hub that goes away is waited for once it has answered.

    Raises:
        ConnectionLost: nobody answers the first time.
    """
    from ispine.cli.asking import asker

    has_answered = False
    async with asker(url, root) as asking:
        while True:
            try:
                yield await question(asking)
                has_answered = True
            except ConnectionLost as error:
                if not has_answered:
                    raise
                print(f"ispine: {error}; waiting for it", file=sys.stderr)
            await asyncio.sleep(pause_s)


@guarded
def tasks(
    url: Url = DEFAULT_URL,
    follow: Annotated[bool, typer.Option("--follow", help="Show new ones until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """The last tasks and what became of them."""
    if follow:
        asyncio.run(_follow(url, root, limit, as_json))
        return
    rows = _ask(url, root, "tasks", {"limit": limit})
    if as_json:
        print_json(rows)
    else:
        print_table(tables.TASK_COLUMNS, map(tables.task_row, rows))


class _Cursor:
    """Which tasks were shown already."""

    def __init__(self, limit: int) -> None:
        self._limit, self._after = limit, 0

    async def ask(self, asking: "Asker") -> Any:
        """The tasks since the last question."""
        limit = 200 if self._after else self._limit
        try:
            rows = await asking.ask("tasks", {"after": self._after, "limit": limit})
        except ConnectionLost:
            self._after = 0  # a hub that starts again counts from the beginning
            raise
        self._after = rows[-1]["cursor"] if rows else self._after
        return rows


async def _follow(url: str, root: str, limit: int, as_json: bool) -> None:
    if not as_json:
        print(tables.task_line(tables.TASK_COLUMNS), flush=True)
    async for rows in _every(url, root, FOLLOW_S, _Cursor(limit).ask):
        for row in rows:
            if as_json:
                print_json(row)
            else:
                print(tables.task_line(tables.task_row(row)), flush=True)


@guarded
def why(
    task: Annotated[str, typer.Argument(help="Task id, from `ispine tasks`.")],
    client: Annotated[str, typer.Option(help="Where the id alone is not enough.")] = "",
    url: Url = DEFAULT_URL,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Why a task went where it went: candidates, predictions, attempts, where the time went."""
    story = _ask(url, root, "why", {"task": task, "client": client})
    if as_json:
        print_json(story)
    else:
        print("\n".join(tables.story_lines(story)))


def _print_standing(row: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        print(f"{row['device']}: {row['standing']}, holds {row['held']}")


@guarded
def drain(
    device: DeviceArgument,
    url: Url = DEFAULT_URL,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it is empty.")
    ] = 0,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Give a device nothing new; it finishes what it holds."""
    _print_standing(asyncio.run(_drain(url, root, device, wait_s)), as_json)


async def _drain(url: str, root: str, device: str, wait_s: float) -> Mapping[str, Any]:
    from ispine.cli.asking import asker

    loop = asyncio.get_running_loop()
    async with asker(url, root) as asking:
        deadline_s = loop.time() + wait_s
        while True:
            # Draining again changes nothing, and says what the device still holds.
            standing: Mapping[str, Any] = await asking.ask("drain", {"device": device})
            if not wait_s or not standing["held"]:
                return standing
            if loop.time() > deadline_s:
                raise TooBusy(
                    f"expected {device} to be empty within {wait_s:g} s; it holds"
                    f" {standing['held']} and gets nothing new; wait longer with --wait"
                )
            await asyncio.sleep(0.2)


@guarded
def resume(
    device: DeviceArgument,
    url: Url = DEFAULT_URL,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Give a drained device work again."""
    _print_standing(_ask(url, root, "resume", {"device": device}), as_json)


@guarded
def capacity(
    capability: Annotated[str, typer.Argument(help="Such as detect.")],
    fps: Annotated[float, typer.Option(help="Frames per second of one stream.")] = 15.0,
    within_ms: Annotated[float, typer.Option(help="Deadline of each frame.")] = 150.0,
    url: Url = DEFAULT_URL,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """How many more streams of this kind the fleet can carry, from measured service times."""
    asked: dict[str, str | int | float] = {"capability": capability}
    found = _ask(url, root, "capacity", {**asked, "fps": fps, "within_ms": within_ms})
    if as_json:
        print_json(found)
        return
    print(
        f"{found['streams']} more streams of {fps:g} frames/s within {within_ms:g} ms:"
        f" {found['devices']} devices do {found['total_per_s']:g}/s,"
        f" {found['used_per_s']:g}/s are used"
    )
