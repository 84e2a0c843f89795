"""What the commands print: tables for people, one JSON value for programs, one line for errors."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

import typer

from ispine.protocol.errors import ConfigError, IspineError, TaskError

if TYPE_CHECKING:
    from rich.table import Table

Json = object
P = ParamSpec("P")
Item = TypeVar("Item")

_PIPE_WIDTH = 160

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130


def print_json(value: Json) -> None:
    """One JSON value on one line."""
    print(json.dumps(value, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table that fits the terminal; a wide one for a file or a pipe."""
    from rich.console import Console

    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=_PIPE_WIDTH if is_free else None).print(make_table(columns, rows, title))


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = ""
) -> "Table":
    """The table itself, for a live display."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    return table


def tracked(items: Iterable[Item], doing: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a progress bar on stderr while they are worked on; none without a terminal.

    Args:
        items: what is worked on.
        doing: such as "checking models".
        total: how many there are, where `items` cannot tell.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, doing, total, console=Console(stderr=True), transient=True)


@contextmanager
def working(doing: str) -> Iterator[None]:
    """A sign of life on stderr while one long step runs; none without a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{doing} …"):
        yield


def error_json(error: IspineError) -> dict[str, Json]:
    """What programs are told of an error."""
    told: dict[str, Json] = {"code": error.code, "message": str(error)}
    if isinstance(error, TaskError):
        told |= {"task_id": error.task_id, **dict(error.fields)}
    return told


def fail(error: IspineError, *, as_json: bool) -> NoReturn:
    """Say what went wrong, to people on stderr or to programs on stdout, and end with 1."""
    if as_json:
        print_json({"error": error_json(error)})
    else:
        print(f"ispine: {error}", file=sys.stderr)
    raise typer.Exit(REFUSED)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose typed errors become one line and exit code 1, and Ctrl-C code 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            command(*args, **kwargs)
        except IspineError as error:
            fail(error, as_json=as_json)
        except ModuleNotFoundError as error:
            fail(_missing(error), as_json=as_json)
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(DONE) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run


def _missing(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"expected the package {error.name} for this command; it is not installed;"
        " install it with: pip install 'ispine[all]'"
    )


def _forget_stdout() -> None:
    """Nobody reads any more (`ispine tasks | head`): let the last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
