"""Long-running processes: signals, logs, the ready line, and word to the service manager."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from ispine.cli import lifeline

_FIELDS = (
    "task_id",
    "device_id",
    "client_id",
    "attempt",
    "elapsed_ms",
    "event_id",
    "endpoint",
    "why",
    "url",
    "pid",
    "refusal",
    "capability",
    "capabilities",
    "slots",
    "topic",
    "peer",
    "reason",
    "term",
)


class _Formatter(logging.Formatter):
    """A short message and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        known = ((name, getattr(record, name, None)) for name in _FIELDS)
        return line + "".join(f" {name}={value}" for name, value in known if value is not None)


def set_up_logs(verbose: int) -> None:
    """Logs go to stderr; payloads are never among them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.getLogger("ispine").setLevel(level)


def say_ready(what: str, *, as_json: bool, **facts: object) -> None:
    """Tell whoever waits that this process serves now."""
    notify("READY=1")
    if as_json:
        line = json.dumps({"event": "ready", "role": what, "pid": os.getpid(), **facts})
    else:
        line = f"{what} ready: " + ", ".join(f"{name} {value}" for name, value in facts.items())
    with suppress(BrokenPipeError):
        print(line, flush=True)


def notify(state: str) -> None:
    """Word to systemd (sd_notify(3)), where it listens."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.connect(address)
        sock.send(state.encode())


async def feed_watchdog() -> None:
    """Tell systemd's watchdog that the event loop still turns, where it wants to know."""
    interval_s = watchdog_interval_s(os.environ, os.getpid())
    while interval_s > 0:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s / 2)


def watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float:
    """Seconds within which process `pid` must be heard (sd_watchdog_enabled(3)); 0 for never."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    told = environment.get("WATCHDOG_USEC", "")
    return int(told) / 1e6 if told.isdecimal() else 0.0


@asynccontextmanager
async def until_told_to_stop() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM, SIGINT or the parent's end sets; feeds the watchdog meanwhile."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    has_lifeline = lifeline.is_given()
    if has_lifeline:
        loop.add_reader(0, _feel_lifeline, loop, stopped)
    watchdog = loop.create_task(feed_watchdog(), name="watchdog")
    try:
        yield stopped
    finally:
        notify("STOPPING=1")
        if has_lifeline:
            loop.remove_reader(0)
        watchdog.cancel()
        await asyncio.gather(watchdog, return_exceptions=True)


def _feel_lifeline(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    if lifeline.is_cut():
        loop.remove_reader(0)
        stopped.set()
