"""What goes on asking: watching devices, following tasks, waiting for a device to be empty."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ispine.cli import fleet_tables as tables
from ispine.cli.asking import Asker, asker
from ispine.cli.output import make_table, print_json
from ispine.protocol.errors import ConnectionLost, TooBusy

Question = Callable[[Asker], Awaitable[Any]]
WATCH_S = 1.0
FOLLOW_S = 0.5
DRAIN_S = 0.2
RESUME_S = 2.0


async def _every(url: str, root: str, pause_s: float, question: Question) -> AsyncIterator[Any]:
    """Ask again and again; a hub that goes away is waited for once it has answered.

    Raises:
        ConnectionLost: nobody answers the first time.
    """
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


def _devices(asking: Asker) -> Awaitable[Any]:
    return asking.ask("devices")


async def watch_devices(url: str, root: str, as_json: bool) -> None:
    """A table that renews itself, or a line of JSON each second, until Ctrl-C."""
    if as_json:
        async for rows in _every(url, root, WATCH_S, _devices):
            print_json(rows)
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        async for rows in _every(url, root, WATCH_S, _devices):
            live.update(make_table(tables.DEVICE_COLUMNS, map(tables.device_row, rows)))


class _Cursor:
    """Which tasks were shown already."""

    def __init__(self, limit: int) -> None:
        self._limit, self._after = limit, 0

    async def ask(self, asking: Asker) -> Any:
        """The tasks since the last question."""
        limit = 200 if self._after else self._limit
        try:
            rows = await asking.ask("tasks", {"after": self._after, "limit": limit})
        except ConnectionLost:
            self._after = 0  # a hub that starts again counts from the beginning
            raise
        self._after = rows[-1]["cursor"] if rows else self._after
        return rows


async def follow_tasks(url: str, root: str, limit: int, as_json: bool) -> None:
    """The last tasks and then each new one, a line each, until Ctrl-C."""
    if not as_json:
        print(tables.task_line(tables.TASK_COLUMNS), flush=True)
    async for rows in _every(url, root, FOLLOW_S, _Cursor(limit).ask):
        for row in rows:
            if as_json:
                print_json(row)
            else:
                print(tables.task_line(tables.task_row(row)), flush=True)


async def drain(url: str, root: str, device: str, wait_s: float) -> Mapping[str, Any]:
    """Drain a device and wait until it holds nothing; its standing.

    Raises:
        TooBusy: it still holds something after `wait_s` seconds; it stays drained.
    """
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
            await asyncio.sleep(DRAIN_S)


async def resume(url: str, root: str, device: str) -> Mapping[str, Any]:
    """Resume a device; its standing once it has heard of it, or after two seconds."""
    loop = asyncio.get_running_loop()
    async with asker(url, root) as asking:
        deadline_s = loop.time() + RESUME_S
        standing: Mapping[str, Any] = await asking.ask("resume", {"device": device})
        while standing["standing"] == "drained" and loop.time() < deadline_s:
            await asyncio.sleep(DRAIN_S)
            rows = {row["device"]: row for row in await asking.ask("devices")}
            seen = rows.get(device, standing)
            standing = {name: seen[name] for name in ("device", "drained", "standing", "held")}
        return standing
