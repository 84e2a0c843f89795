"""`ispine rules`: the owner's rules of this device."""

from pathlib import Path
from typing import Annotated

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import guarded, print_json

app = typer.Typer(no_args_is_help=True, help="When this device lends itself.")
File = Annotated[Path | None, typer.Argument(help="TOML file; the defaults without it.")]


@app.command()
@guarded
def show(file: File = None, as_json: AsJson = False) -> None:
    """The rules, and whether they would take work now."""
    from datetime import datetime

    from ispine.agent import rules
    from ispine.agent.sensors import Sensors

    owner = rules.load(file) if file is not None else rules.Rules()
    refusal = rules.refusal_of(owner, Sensors().read(), datetime.now().time())
    if as_json:
        print_json({"rules": owner.model_dump(), "accepts": not refusal, "refusal": refusal})
        return
    for name, value in owner.model_dump().items():
        print(f"{name:20} {value}")
    print(f"now: {refusal or 'takes work'}")


@app.command()
@guarded
def check(
    file: Annotated[Path, typer.Argument(help="TOML file.")], as_json: AsJson = False
) -> None:
    """Whether a rules file is valid."""
    from ispine.agent import rules

    owner = rules.load(file)
    if as_json:
        print_json({"valid": True, "rules": owner.model_dump()})
    else:
        print(f"{file}: valid")
