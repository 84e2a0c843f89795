"""Commands about the fleet: devices, tasks, why, drain, resume, capacity."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ispine.cli import fleet_tables as tables
from ispine.cli.options import DEFAULT_ROOT, DEFAULT_URL, AsJson, Root, Url
from ispine.cli.output import guarded, print_json, print_table

DeviceArgument = Annotated[str, typer.Argument(help="Device id.")]
Args = Mapping[str, str | int | float]


def _ask(url: str, root: str, verb: str, args: Args | None = None) -> Any:
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
        import asyncio

        from ispine.cli.fleet_live import watch_devices

        asyncio.run(watch_devices(url, root, as_json))
        return
    rows = _ask(url, root, "devices")
    if as_json:
        print_json(rows)
    else:
        print_table(tables.DEVICE_COLUMNS, map(tables.device_row, rows))


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
        import asyncio

        from ispine.cli.fleet_live import follow_tasks

        asyncio.run(follow_tasks(url, root, limit, as_json))
        return
    rows = _ask(url, root, "tasks", {"limit": limit})
    if as_json:
        print_json(rows)
    else:
        print_table(tables.TASK_COLUMNS, map(tables.task_row, rows))


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
    import asyncio

    from ispine.cli import fleet_live

    _print_standing(asyncio.run(fleet_live.drain(url, root, device, wait_s)), as_json)


@guarded
def resume(
    device: DeviceArgument,
    url: Url = DEFAULT_URL,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Give a drained device work again."""
    import asyncio

    from ispine.cli import fleet_live

    _print_standing(asyncio.run(fleet_live.resume(url, root, device)), as_json)


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
