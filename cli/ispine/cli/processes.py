"""Parts of iSpine as child processes: started, waited for, watched, ended by their own id.

A child gets a pipe as its standard input, the lifeline: when its parent goes, however suddenly, the
pipe ends and the child stops. It is in a process group of its own, so that Ctrl-C reaches the
parent only, which stops its children in order.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from ispine.cli import lifeline
from ispine.protocol.errors import ConfigError

START_S = 30.0
STOP_S = 8.0
_TAIL_BYTES = 2000


class StoppedEarly(Exception):
    """This process was told to stop while it waited for a child."""


class Child:
    """One `ispine` command in a process of its own.

    Args:
        name: for messages.
        arguments: of the command; it must print a ready line with `--json`.
        environment: added to this process's.
        has_settings: whether the user's settings hold for it; without them only `arguments` do.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str] | None = None,
        *,
        has_settings: bool = False,
    ) -> None:
        self.name = name
        self.started_s = time.monotonic()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
        own = {lifeline.VARIABLE: "stdin", **(environment or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ispine.cli.main", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**_inherited(has_settings), **own},
            process_group=0,
        )
        self._ready: dict[str, object] = {}
        self._lines = threading.Thread(target=self._read, daemon=True)
        self._has_spoken = threading.Event()
        self._lines.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not self._has_spoken.is_set():
                with suppress(ValueError):
                    self._ready = json.loads(line)
                    self._has_spoken.set()
        self._has_spoken.set()

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it serves."""
        return self._ready.get("event") == "ready"

    def wait_ready(
        self, timeout_s: float = START_S, stop: threading.Event | None = None
    ) -> dict[str, object]:
        """Wait for the ready line.

        Args:
            timeout_s: how long.
            stop: ends the waiting early.

        Raises:
            ConfigError: the process ended or stayed silent; with its last words.
            StoppedEarly: `stop` was set.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._has_spoken.wait(0.1) and time.monotonic() < deadline_s:
            if stop is not None and stop.is_set():
                raise StoppedEarly
        if self.is_ready:
            return self._ready
        self.stop(grace_s=0.5)
        raise ConfigError(
            f"expected {self.name} to come up; {self.why_it_failed() or 'it ended without a word'}"
        )

    def why_it_failed(self) -> str:
        """The error that it printed as JSON, else its last words."""
        told = self._ready.get("error")
        message = told.get("message") if isinstance(told, dict) else None
        return str(message or self.last_words())

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors.tell() - _TAIL_BYTES, 0))
        return self._errors.read().decode(errors="replace").strip()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def stop(self, grace_s: float = STOP_S) -> None:
        """SIGTERM, then SIGKILL after `grace_s` seconds. Idempotent."""
        if self.is_running:
            self.process.terminate()
        deadline_s = time.monotonic() + grace_s
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(deadline_s - time.monotonic(), 0.05))
        if self.is_running:
            self.process.kill()
            self.process.wait()
        self._lines.join(1.0)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Stop it and forget what it wrote."""
        self.stop()
        self._errors.close()


def _inherited(has_settings: bool) -> dict[str, str]:
    if has_settings:
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISPINE_")}
    return {**kept, "ISPINE_CONFIG": os.devnull}
