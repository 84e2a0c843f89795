"""Options that several commands share."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="ISPINE_URL", help="The hub's broker, such as mqtt://192.168.1.10:1883."
    ),
]
Root = Annotated[
    str, typer.Option("--root", envvar="ISPINE_ROOT", help="First level of every topic.")
]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more.")]
DEFAULT_URL = "mqtt://127.0.0.1:1883"
DEFAULT_ROOT = "ispine"
