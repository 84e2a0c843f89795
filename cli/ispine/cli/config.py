"""`ispine config`: the effective settings."""

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import guarded, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Settings.")

# Options that a call decides, not a setting.
_NOT_SETTINGS = {"as_json", "verbose", "slowdown", "help", "url", "root"}


@app.callback()
def config() -> None:
    """Settings."""


@app.command()
@guarded
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Every setting, its value, and where it came from."""
    from ispine.cli.settings import load, origins
    from ispine.cli.settings_file import config_file, usual_files

    rows = {name: (value, "default") for name, value in _defaults(context).items()}
    for origin in origins(load()):
        rows[origin.name] = (origin.value, origin.source)
    file = config_file()
    if as_json:
        told = {name: {"value": _plain(v), "from": source} for name, (v, source) in rows.items()}
        print_json({"file": str(file or ""), "settings": told})
        return
    print_table(("setting", "value", "from"), ((n, _plain(v), f) for n, (v, f) in rows.items()))
    print(f"file: {file or 'none; it would be read from ' + ' or '.join(map(str, usual_files()))}")


def _defaults(context: typer.Context) -> dict[str, object]:
    """The commands' own defaults, by the name of the setting."""
    made: dict[str, object] = {"url": None, "models_dir": None, "root": "ispine"}
    commands = getattr(context.find_root().command, "commands", {})
    for section in ("hub", "agent"):
        for option in commands[section].params:
            if option.name not in _NOT_SETTINGS:
                name = "id" if option.name in ("hub_id", "device_id") else option.name
                made[f"{section}.{name}"] = option.default
    return made


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return list(value)
    return value if isinstance(value, bool | int | float | None) else str(value)
