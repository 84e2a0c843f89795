"""Keeps child processes running: restart with back-off, stop in reverse order."""

import logging
import random
import signal
import socket
import threading
import time
from types import FrameType
from typing import Self

from ispine.cli.processes import Child
from ispine.protocol.errors import ConfigError

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
STABLE_S = 60.0
_POLL_S = 0.2


def free_port(host: str) -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class _Entry:
    def __init__(self, name: str, arguments: list[str], child: Child) -> None:
        self.name, self.arguments, self.child = name, arguments, child
        self.started_s = time.monotonic()
        self.wait_s = FIRST_WAIT_S
        self.restart_at_s: float | None = None


class Supervisor:
    """Starts children in order and watches them until SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        return self

    def __exit__(self, *_exc: object) -> None:
        for entry in reversed(self._entries):
            entry.child.close()

    def _told_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    def start(self, name: str, arguments: list[str]) -> dict[str, object]:
        """Start a child and wait until it serves.

        Raises:
            ConfigError: it does not come up the first time.
        """
        child = Child(name, arguments)
        self._entries.append(_Entry(name, arguments, child))
        return child.wait_ready()

    def watch(self) -> None:
        """Restart what ends, until told to stop."""
        while not self._stop.wait(_POLL_S):
            for entry in self._entries:
                self._look_after(entry)

    def _look_after(self, entry: _Entry) -> None:
        now_s = time.monotonic()
        if entry.child.is_running:
            if now_s - entry.started_s > STABLE_S:
                entry.wait_s = FIRST_WAIT_S
        elif entry.restart_at_s is None:
            entry.restart_at_s = now_s + entry.wait_s * random.uniform(0.8, 1.2)
            entry.wait_s = min(entry.wait_s * 2, LONGEST_WAIT_S)
            log.warning("process ended", extra={"why": f"{entry.name}: {entry.child.last_words()}"})
        elif now_s >= entry.restart_at_s:
            self._restart(entry)

    def _restart(self, entry: _Entry) -> None:
        entry.child.close()
        entry.child = Child(entry.name, entry.arguments)
        entry.started_s, entry.restart_at_s = time.monotonic(), None
        try:
            entry.child.wait_ready()
        except ConfigError as error:
            log.warning("restart failed", extra={"why": str(error)})
