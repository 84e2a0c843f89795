"""`ispine rules`: the owner's rules of this device."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ispine.cli.options import DEFAULT_ROOT, DEFAULT_URL, AsJson, Root, Url
from ispine.cli.output import guarded, print_json
from ispine.protocol.errors import ConfigError, TaskRejected

if TYPE_CHECKING:
    from ispine.agent.rules import Rules

app = typer.Typer(no_args_is_help=True, help="When this device lends itself.")


def owner_rules(
    path: Path | None,
    min_battery: float | None = None,
    max_temp: float | None = None,
    only_when_charging: bool | None = None,
    only_when_idle: bool | None = None,
) -> "Rules":
    """The rules of a file, with what else was said in its place.

    Raises:
        ConfigError: the file, or a value, is wrong.
    """
    from pydantic import ValidationError

    from ispine.agent import rules

    given = {
        "min_battery_pct": min_battery,
        "max_temp_c": max_temp,
        "only_when_charging": only_when_charging or None,
        "only_when_idle": only_when_idle or None,
    }
    base = rules.load(path) if path is not None else rules.Rules()
    said = {name: value for name, value in given.items() if value is not None}
    try:
        return rules.Rules.model_validate({**base.model_dump(), **said})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@app.command()
@guarded
def show(
    file: Annotated[
        Path | None,
        typer.Argument(help="TOML file; without it, what the settings say of the agent here."),
    ] = None,
    device: Annotated[str, typer.Option(help="Ask the hub about this device instead.")] = "",
    url: Url = DEFAULT_URL,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """The rules, and whether they would take work now."""
    told = _of_fleet(device, url, root) if device else _of_here(file)
    if as_json:
        print_json(told)
        return
    for name, value in told["rules"].items():
        print(f"{name:20} {value}")
    print(f"now: {told['refusal'] or 'takes work'}")


def _of_here(file: Path | None) -> dict[str, Any]:
    from datetime import datetime

    from ispine.agent.rules import refusal_of
    from ispine.agent.sensors import Sensors

    owner = owner_rules(file) if file is not None else _of_settings()
    refusal = refusal_of(owner, Sensors().read(), datetime.now().time())
    return {"rules": owner.model_dump(), "accepts": not refusal, "refusal": refusal}


def _of_settings() -> "Rules":
    from ispine.cli.settings import load

    said = load().agent
    return owner_rules(
        said.rules, said.min_battery, said.max_temp, said.only_when_charging, said.only_when_idle
    )


def _of_fleet(device: str, url: str, root: str) -> dict[str, Any]:
    from ispine.cli.asking import ask

    rows = {row["device"]: row for row in ask(url, "devices", root=root)}
    if device not in rows:
        names = ", ".join(sorted(rows)) or "none"
        raise TaskRejected(f"expected a known device ({names}); got {device}")
    standing = rows[device]["standing"]
    is_ready = standing == "ready"
    return {
        "rules": rows[device].get("rules", {}),
        "accepts": is_ready,
        "refusal": "" if is_ready else standing,
    }


@app.command()
@guarded
def check(
    file: Annotated[Path, typer.Argument(help="TOML file.")], as_json: AsJson = False
) -> None:
    """Whether a rules file is valid."""
    owner = owner_rules(file)
    if as_json:
        print_json({"valid": True, "rules": owner.model_dump()})
    else:
        print(f"{file}: valid")
