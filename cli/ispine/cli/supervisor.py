"""Keeps child processes running: restart with back-off, stop in reverse order."""

import logging
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

from ispine.cli.processes import START_S, Child
from ispine.cli.running import notify

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STABLE_S = 60.0
_POLL_S = 0.2


def free_port(host: str) -> int:
    """A TCP port that nobody uses now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class _Entry:
    """One child, and when it is to be started again."""

    def __init__(self, child: Child, arguments: list[str]) -> None:
        self.child, self.arguments = child, arguments
        self.pause_s = FIRST_PAUSE_S
        self.restart_at_s: float | None = None


class Supervisor:
    """Starts children in order and watches them until SIGTERM or SIGINT.

    Args:
        start_child: starts `ispine` with these arguments; the first is its name.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        start_child: Callable[[list[str]], Child] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start_child = start_child or _start
        self._clock = clock
        self._entries: list[_Entry] = []
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        return self

    def __exit__(self, *_exc: object) -> None:
        notify("STOPPING=1")
        for entry in reversed(self._entries):
            entry.child.close()

    def _told_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    def start(self, arguments: list[str]) -> dict[str, object]:
        """Start a child and wait until it serves; its ready line.

        Raises:
            ConfigError: it does not come up the first time.
            StoppedEarly: this process was told to stop before.
        """
        child = self._start_child(arguments)
        self._entries.append(_Entry(child, arguments))
        return child.wait_ready(stop=self._stop)

    def watch(self) -> None:
        """Restart what ends, until told to stop."""
        while not self._stop.wait(_POLL_S):
            self.look_after_all()

    def look_after_all(self) -> None:
        """One look at every child."""
        for entry in self._entries:
            self._look_after(entry)

    def _look_after(self, entry: _Entry) -> None:
        now_s, child = self._clock(), entry.child
        if child.is_running:
            self._check(entry, now_s - child.started_s)
        elif entry.restart_at_s is None:
            entry.restart_at_s = now_s + entry.pause_s * random.uniform(0.8, 1.2)
            entry.pause_s = min(entry.pause_s * 2, LONGEST_PAUSE_S)
            log.warning("process ended", extra={"why": f"{child.name}: {child.why_it_failed()}"})
        elif now_s >= entry.restart_at_s:
            child.close()
            entry.child, entry.restart_at_s = self._start_child(entry.arguments), None
            log.info("process started again", extra={"why": child.name})

    def _check(self, entry: _Entry, age_s: float) -> None:
        if age_s > STABLE_S:
            entry.pause_s = FIRST_PAUSE_S
        elif age_s > START_S and not entry.child.is_ready:
            log.warning("process does not come up", extra={"why": entry.child.name})
            entry.child.kill()


def _start(arguments: list[str]) -> Child:
    return Child(arguments[0], arguments, has_settings=True)
