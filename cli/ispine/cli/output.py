"""What the commands print: tables for people, one JSON value for programs, one line for errors."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, ParamSpec

import typer

from ispine.protocol.errors import IspineError, TaskError

if TYPE_CHECKING:
    from rich.table import Table

Json = object
P = ParamSpec("P")

DONE, REFUSED, USAGE = 0, 1, 2


def print_json(value: Json) -> None:
    """One JSON value on one line."""
    print(json.dumps(value, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table that fits the terminal."""
    from rich.console import Console

    Console().print(make_table(columns, rows, title))


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = ""
) -> "Table":
    """The table itself, for a live display."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    return table


def fail(error: IspineError, *, as_json: bool) -> NoReturn:
    """Say what went wrong, to people on stderr or to programs on stdout, and end with 1."""
    if as_json:
        told: dict[str, object] = {"code": error.code, "message": str(error)}
        if isinstance(error, TaskError):
            told |= {"task_id": error.task_id, **dict(error.fields)}
        print_json({"error": told})
    else:
        print(f"ispine: {error}", file=sys.stderr)
    raise typer.Exit(REFUSED)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose typed errors become one line and exit code 1, and Ctrl-C code 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except IspineError as error:
            fail(error, as_json=bool(kwargs.get("as_json")))
        except BrokenPipeError:
            raise typer.Exit(DONE) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run
