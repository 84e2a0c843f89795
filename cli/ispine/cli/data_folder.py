"""The hub's folder for durable tasks: made where it is missing, and one hub's at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ispine.protocol.errors import ConfigError


@contextmanager
def data_folder(data: Path | None) -> Iterator[Path | None]:
    """The folder, locked until the end of the block or of the process, however it ends.

    Raises:
        ConfigError: it cannot be made, or another hub uses it.
    """
    if data is None:
        yield None
        return
    handle = _open(data)
    try:
        _lock(handle, data)
        yield data
    finally:
        os.close(handle)


def _open(data: Path) -> int:
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(
            f"expected a data folder at {data}; {error.strerror}; choose another --data"
        ) from error


def _lock(handle: int, data: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"expected a data folder of this hub's own; another hub uses {data};"
            " stop it, or choose another --data"
        ) from error
