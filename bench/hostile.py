"""What hostile clients cost the embedded broker and its healthy clients.

Against a broker in a process of its own: 2,000 connections that send nothing, garbage or a broken
CONNECT; 200 half-open CONNECTs; five unfinished publishes of 40 MB; a subscriber that does not read
200 MB of traffic; a flood of tiny packets. Meanwhile healthy clients measure the wait for their own
messages, and new ones connect. Afterwards the broker's memory is compared with before.

    python bench/hostile.py --json
"""

import argparse
import json
import os
import platform
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from ispine.broker.listener import allow_open_files
from ispine.broker.rawclient import (
    Closed,
    RawClient,
    Silence,
    connect_packet,
    packet,
    publish_packet,
    text,
)

CONNECTIONS, HALF_OPEN, UNFINISHED = 2000, 200, 5
FLOOD_BYTES = 200_000_000
SETTLE_S = 8.0

SERVER = """
import asyncio
from ispine.broker import BrokerConfig, engine_for
async def main():
    engine = engine_for(BrokerConfig(engine="embedded", port=0))
    await engine.start()
    print(engine.url.rsplit(":", 1)[1], flush=True)
    await asyncio.Event().wait()
try:
    import uvloop
except ImportError:
    asyncio.run(main())
else:
    uvloop.run(main())
"""


@contextmanager
def broker() -> Iterator[tuple[int, psutil.Process]]:
    """The embedded engine; yields its port and process."""
    child = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield int(child.stdout.readline()), psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(10)
        child.stdout.close()


class Healthy:
    """Clients that do what clients do, and note how long it takes."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self.peak_rss = 0
        self._process = process
        self.waits_s: list[float] = []
        self._worst_s = 0.0
        self.failures: list[str] = []
        self._port = port
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._talk, self._arrive, self._weigh)
        ]

    def __enter__(self) -> "Healthy":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def take_worst_ms(self) -> float:
        """The longest wait since this was asked last, of messages and of new connections."""
        worst, self._worst_s = self._worst_s, 0.0
        return round(worst * 1e3, 1)

    def _note(self, waited_s: float) -> None:
        self.waits_s.append(waited_s)
        self._worst_s = max(self._worst_s, waited_s)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (Closed, Silence, OSError) as error:
            self.failures.append(f"{type(error).__name__} {error}")

    def _talk(self) -> None:
        with RawClient(self._port) as client:
            client.connect("healthy", keepalive_s=10)
            client.subscribe("healthy")
            while not self._stop.wait(0.005):
                began = time.perf_counter()
                client.publish("healthy", bytes(1000))
                client.message()
                self._note(time.perf_counter() - began)

    def _arrive(self) -> None:
        while not self._stop.wait(0.1):
            began = time.perf_counter()
            with RawClient(self._port) as client:
                client.connect()
                client.ping()
            self._note(time.perf_counter() - began)

    def _weigh(self) -> None:
        while not self._stop.wait(0.02):
            self.peak_rss = max(self.peak_rss, int(self._process.memory_info().rss))


def strangers(port: int, stack: ExitStack) -> None:
    """Many connections that send nothing, noise, or something broken."""
    noise = random.Random(4)
    greetings = (
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        noise.randbytes(100),
        connect_packet("x")[:-1] + b"\xff" * 3,
        packet(0x10, text("MQTT") + b"\x04\xff\x00\x00"),
        b"\x10\xff\xff\xff\x7f",
    )
    for number in range(min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 300)):
        with suppress(OSError):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            sock.sendall(greetings[number % len(greetings)])


def half_open(port: int, stack: ExitStack) -> None:
    """CONNECTs that never end."""
    for number in range(HALF_OPEN):
        with suppress(OSError):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            sock.sendall(connect_packet(f"half-{number}", keepalive_s=60)[:12])


def unfinished(port: int, stack: ExitStack) -> None:
    """Publishes that announce 40 MB and stop before the end; then some just below the limit."""
    zeros = bytes(500_000)
    for announced in [40_000_000] * UNFINISHED + [8_000_000] * 2 * UNFINISHED:
        with suppress(OSError, Closed, Silence):
            client = stack.enter_context(RawClient(port))
            client.connect()
            client.send(b"\x30" + _length(announced) + text("big"))
            for _ in range(announced // len(zeros) - 1):
                client.send(zeros)


def _length(size: int) -> bytes:
    """A remaining length in four bytes, however small."""
    return bytes(size >> shift & 0x7F | (0x80 if shift < 21 else 0) for shift in (0, 7, 14, 21))


def stalled(port: int, stack: ExitStack) -> None:
    """A subscriber that does not read what it asked for."""
    victim = stack.enter_context(RawClient(port))
    victim.connect("stalled")
    victim.subscribe("flood", qos=1)
    writer = stack.enter_context(RawClient(port, timeout_s=30))
    writer.connect("writer")
    block = publish_packet("flood", bytes(100_000))
    for _ in range(FLOOD_BYTES // len(block)):
        writer.send(block)
    writer.ping()


def tiny(port: int, stack: ExitStack) -> None:
    """Small packets as fast as they go, for two seconds, from four clients."""
    block = memoryview(b"\xc0\x00" * 16_000 + publish_packet("tiny", b"") * 4_000)
    clients = [stack.enter_context(RawClient(port)) for _ in range(4)]
    for client in clients:
        client.connect()
        client.sock.setblocking(False)
    ends = time.monotonic() + 2
    left = dict.fromkeys(clients, block)
    while time.monotonic() < ends:
        for client in clients:
            with suppress(BlockingIOError):
                left[client] = left[client][client.sock.send(left[client]) :] or block
            with suppress(BlockingIOError):
                client.sock.recv(1 << 18)


def settled_rss(process: psutil.Process, below: int) -> int:
    """Resident bytes once they are below a bound, or after a while."""
    ends = time.monotonic() + SETTLE_S
    while (rss := int(process.memory_info().rss)) > below and time.monotonic() < ends:
        time.sleep(0.1)
    return rss


def measure() -> dict[str, object]:
    """The whole run."""
    allow_open_files(CONNECTIONS + HALF_OPEN)
    with broker() as (port, process), Healthy(port, process) as healthy:
        time.sleep(0.5)
        before = int(process.memory_info().rss)
        steps: dict[str, float] = {}
        worst: dict[str, float] = {}
        for attack in (strangers, half_open, unfinished, stalled, tiny):
            began = time.monotonic()
            with ExitStack() as stack:
                attack(port, stack)
            steps[attack.__name__] = round(time.monotonic() - began, 2)
            worst[attack.__name__] = healthy.take_worst_ms()
        after = settled_rss(process, before + 4_000_000)
        alive = process.is_running() and not healthy.failures
    return {
        "rss_growth_mb": round((healthy.peak_rss - before) / 1e6, 1),
        "rss_left_mb": round((after - before) / 1e6, 1),
        "worst_wait_ms": max(worst.values()),
        "alive": alive,
        "failures": healthy.failures,
        "waits": len(healthy.waits_s),
        "p99_wait_ms": round(sorted(healthy.waits_s)[int(len(healthy.waits_s) * 0.99)] * 1e3, 2),
        "seconds": steps,
        "worst_ms_during": worst,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        "commit": _commit(),
    }


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure()
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
