"""Parts of iSpine as child processes: started, waited for, watched, ended by their own id."""

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

from ispine.protocol.errors import ConfigError

START_S = 30.0
STOP_S = 8.0
_TAIL_BYTES = 2000


class Child:
    """One `ispine` command in a process of its own.

    Args:
        name: for messages.
        arguments: of the command; it must print a ready line with `--json`.
        environment: added to this process's.
    """

    def __init__(
        self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ispine.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
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

    def wait_ready(self, timeout_s: float = START_S) -> dict[str, object]:
        """Wait for the ready line.

        Raises:
            ConfigError: the process ended or stayed silent; with its last words.
        """
        is_told = self._has_spoken.wait(timeout_s)
        if is_told and self._ready.get("event") == "ready":
            return self._ready
        self.stop(grace_s=0.5)
        told = self._ready.get("error")
        why = told.get("message") if isinstance(told, dict) else self.last_words()
        raise ConfigError(f"expected {self.name} to come up; {why or 'it ended without a word'}")

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
        if self.process.stdout is not None:
            self.process.stdout.close()

    def close(self) -> None:
        """Stop it and forget what it wrote."""
        self.stop()
        self._errors.close()
