"""Long-running processes: signals, logs, the ready line, and word to the service manager."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

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
    interval_us = int(os.environ.get("WATCHDOG_USEC") or 0)
    while interval_us > 0:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_us / 2e6)


@asynccontextmanager
async def until_told_to_stop() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets; feeds the watchdog meanwhile."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    watchdog = loop.create_task(feed_watchdog(), name="watchdog")
    try:
        yield stopped
    finally:
        notify("STOPPING=1")
        watchdog.cancel()
        await asyncio.gather(watchdog, return_exceptions=True)
