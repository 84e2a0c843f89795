"""`ispine config`: the effective settings."""

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import guarded, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Settings.")


@app.callback()
def config() -> None:
    """Settings."""


@app.command()
@guarded
def show(as_json: AsJson = False) -> None:
    """Every setting, its value, and where it came from."""
    from ispine.cli import settings

    told = settings.origins(settings.load())
    if as_json:
        print_json({"file": str(settings.config_file()), "settings": told})
    else:
        rows = ((name, entry["value"], entry["from"]) for name, entry in told.items())
        print_table(("setting", "value", "from"), rows)
