"""Commands about the fleet: devices, tasks, why, drain, resume, capacity."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ispine.cli.asking import Asker, ask, asker
from ispine.cli.options import DEFAULT_URL, AsJson, Url
from ispine.cli.output import guarded, make_table, print_json, print_table

if TYPE_CHECKING:
    from rich.table import Table

DEVICE_COLUMNS = (
    "device",
    "standing",
    "load",
    "battery",
    "temp",
    "capabilities (ms)",
    "link ms",
    "answered",
    "actual/predicted p50 p95",
)
TASK_COLUMNS = ("task", "client", "capability", "status", "device", "variant", "total ms")


def _device_row(row: dict[str, Any]) -> Sequence[object]:
    battery = "mains" if row["battery_pct"] is None else f"{row['battery_pct']:.0f} %"
    if row["battery_pct"] is not None and row["charging"]:
        battery += " charging"
    skills = ", ".join(
        f"{skill['capability']} {skill['variants'][0]['service_ms']}"
        for skill in row["capabilities"]
        if skill["variants"]
    )
    calibration = f"{row['calibration_p50'] or '-'} {row['calibration_p95'] or '-'}"
    return (
        row["device"],
        row["standing"],
        f"{row['held']}/{row['slots']}",
        battery,
        "" if row["temp_c"] is None else f"{row['temp_c']:.0f} °C",
        skills,
        row["link_ms"],
        row["answered"],
        calibration,
    )


@guarded
def devices(
    url: Url = DEFAULT_URL,
    watch: Annotated[bool, typer.Option("--watch", help="Show until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """The fleet: what each device offers, how it is, how good predictions for it are."""
    if watch and not as_json:
        asyncio.run(_watch_devices(url))
        return
    rows = ask(url, "devices")
    if as_json:
        print_json(rows)
    else:
        print_table(DEVICE_COLUMNS, map(_device_row, rows))


async def _watch_devices(url: str) -> None:
    from rich.live import Live

    async with asker(url) as asking:
        with Live(await _device_table(asking), refresh_per_second=4) as live:
            while True:
                await asyncio.sleep(1)
                live.update(await _device_table(asking))


async def _device_table(asking: Asker) -> "Table":
    return make_table(DEVICE_COLUMNS, map(_device_row, await asking.ask("devices")))


def _task_row(row: dict[str, Any]) -> Sequence[object]:
    return (
        row["task"],
        row["client"],
        row["capability"],
        row["code"] or row["status"],
        row["device"],
        row["variant"],
        row["total_ms"],
    )


@guarded
def tasks(
    url: Url = DEFAULT_URL,
    follow: Annotated[bool, typer.Option("--follow", help="Show new ones until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The last tasks and what became of them."""
    rows = ask(url, "tasks", {"limit": limit})
    if as_json:
        if not follow:
            print_json(rows)
            return
        for row in rows:
            print_json(row)
    else:
        print_table(TASK_COLUMNS, map(_task_row, rows))
    if follow:
        last = rows[-1]["cursor"] if rows else 0
        asyncio.run(_follow(url, last, as_json))


async def _follow(url: str, last: int, as_json: bool) -> None:
    async with asker(url) as asking:
        while True:
            await asyncio.sleep(0.5)
            for row in await asking.ask("tasks", {"after": last, "limit": 200}):
                last = row["cursor"]
                if as_json:
                    print_json(row)
                else:
                    print(*(str(cell or "-").ljust(12) for cell in _task_row(row)), flush=True)


@guarded
def why(
    task: Annotated[str, typer.Argument(help="Task id, from `ispine tasks`.")],
    client: Annotated[str, typer.Option(help="Where the id alone is not enough.")] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Why a task went where it went: candidates, predictions, attempts, where the time went."""
    story = ask(url, "why", {"task": task, "client": client})
    if as_json:
        print_json(story)
        return
    print(
        f"{story['task']}: {story['capability']} for {story['client']},"
        f" {story['bytes']} bytes, within {story['within_ms']} ms → "
        f"{story['code'] or story['status']}"
        + (f" by {story['device']} {story['variant']}" if story["device"] else "")
    )
    for step in story["steps"]:
        detail = " ".join(str(step[k]) for k in ("device", "attempt", "detail") if k in step)
        print(f"  {step['at_ms']:>9} ms  {step['what']}  {detail}")
        for c in step.get("candidates", ()):
            print(
                f"               {c['device']} {c['variant']}: queue {c['queue_ms']} + link"
                f" {c['link_ms']} + compute {c['compute_ms']} ms, cost {c['cost_ms']}"
                + ("" if c["had_place"] else ", full")
            )
    parts = ", ".join(f"{name} {value} ms" for name, value in story["parts_ms"].items())
    print(f"  where the time went: {parts or 'nothing ran'}")
    if story["message"]:
        print(f"  {story['message']}")


def _order(verb: str, device: str, url: str, as_json: bool) -> None:
    standing = ask(url, verb, {"device": device})
    if as_json:
        print_json(standing)
    else:
        print(f"{standing['device']}: {standing['standing']}, holds {standing['held']}")


@guarded
def drain(
    device: Annotated[str, typer.Argument(help="Device id.")],
    url: Url = DEFAULT_URL,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait until it is empty.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Give a device nothing new; it finishes what it holds."""
    _order("drain", device, url, as_json)
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        row = next(r for r in ask(url, "devices") if r["device"] == device)
        if not row["held"]:
            return
        time.sleep(0.2)


@guarded
def resume(
    device: Annotated[str, typer.Argument(help="Device id.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a drained device work again."""
    _order("resume", device, url, as_json)


@guarded
def capacity(
    capability: Annotated[str, typer.Argument(help="Such as detect.")],
    fps: Annotated[float, typer.Option(help="Frames per second of one stream.")] = 15.0,
    within_ms: Annotated[float, typer.Option(help="Deadline of each frame.")] = 150.0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """How many more streams of this kind the fleet can carry, from measured service times."""
    found = ask(url, "capacity", {"capability": capability, "fps": fps, "within_ms": within_ms})
    if as_json:
        print_json(found)
        return
    print(
        f"{found['streams']} more streams of {fps:g} frames/s within {within_ms:g} ms:"
        f" {found['devices']} devices do {found['total_per_s']:g}/s,"
        f" {found['used_per_s']:g}/s are used"
    )
