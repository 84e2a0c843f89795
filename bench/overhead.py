"""What iSpine adds: to a model on the same machine, and to the bare broker.

Starts a hub with the embedded broker, one agent, a raw responder and a bare TCP server, each a
process of its own. Each round measures, one after the other so that noise hits all alike:

* `detect` end to end, against the same inference in this process plus a bare TCP round trip of
  the same bytes;
* `echo` of 1 KB and 100 KB with 300 B back, against two hops of the same bytes through the same
  broker: `raw` with iSpine's own link class (the baseline of `echo_ratio`), `paho` with paho's
  threaded loop.

    python bench/overhead.py --json
"""

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import paho.mqtt.client as paho
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from ispine.models.capability import RuntimeConfig, discover
from ispine.models.photos import demo_photos
from ispine.protocol.mqtt import MqttLink
from ispine.sdk import Spine

REPLY_BYTES = 300
FRAME_BYTES = 100_000
CLI = [sys.executable, "-m", "ispine.cli.main"]

RAW_RESPONDER = """
import asyncio, sys
from ispine.protocol.mqtt import MqttLink
async def main():
    link = MqttLink(sys.argv[1])
    await link.connect()
    await link.subscribe("raw/go", lambda m: link.publish("raw/back", m.payload[:300]))
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""

TCP_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True:
    left = int.from_bytes(peer.recv(4, socket.MSG_WAITALL) or b"\\0\\0\\0\\0", "big")
    if not left:
        break
    while left:
        left -= len(peer.recv(left))
    peer.sendall(bytes(300))
"""


@contextmanager
def process(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child process and its first line; ended by its own id."""
    child = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None, text=True
    )
    assert child.stdout is not None
    try:
        line = child.stdout.readline().strip()
        if not line:
            raise SystemExit(f"expected {arguments[-4:]} to come up; it ended")
        yield child, line
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class RawClient:
    """Two hops of bare MQTT through the same broker, with the same link class."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._link = MqttLink(url)
        self._answer: asyncio.Future[None]
        self._loop.run_until_complete(self._link.connect())
        self._loop.run_until_complete(self._link.subscribe("raw/back", self._on_back))

    def _on_back(self, _message: object) -> None:
        self._answer.set_result(None)

    def round_trip(self, payload: bytes) -> None:
        """Send and wait for the answer."""
        self._answer = self._loop.create_future()
        self._link.publish("raw/go", payload)
        self._loop.run_until_complete(asyncio.wait_for(self._answer, 5))

    def close(self) -> None:
        """Disconnect."""
        self._loop.run_until_complete(self._link.close())
        self._loop.close()


class PahoClient:
    """Two hops of bare MQTT with paho's own threaded loop, as most programs use it."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("mqtt://").rsplit(":", 1)
        self._back = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._on_message
        self._client.on_socket_open = self._no_delay
        self._client.connect(host, int(port))
        self._client.loop_start()
        self._client.subscribe("raw/back")
        time.sleep(0.2)

    def _no_delay(self, _client: object, _data: object, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _on_message(self, *_args: object) -> None:
        self._back.set()

    def round_trip(self, payload: bytes) -> None:
        """Send and wait for the answer."""
        self._back.clear()
        self._client.publish("raw/go", payload)
        if not self._back.wait(5):
            raise SystemExit("expected an answer within 5 s; none came")

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class TcpClient:
    """A bare TCP round trip."""

    def __init__(self, port: int) -> None:
        self._peer = socket.create_connection(("127.0.0.1", port))
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round_trip(self, payload: bytes) -> None:
        """Send and wait for 300 bytes."""
        self._peer.sendall(len(payload).to_bytes(4, "big") + payload)
        left = REPLY_BYTES
        while left:
            left -= len(self._peer.recv(left))

    def close(self) -> None:
        """Disconnect."""
        self._peer.close()


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that `work` took."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of `values` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interleaved(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Each work once per round, in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(timed(work))
    return times


def measure_echo(
    spine: Spine, raw: RawClient, threaded: PahoClient, rounds: int
) -> dict[str, float]:
    """Echo against two bare hops."""
    small, big = os.urandom(1000), os.urandom(FRAME_BYTES)
    options = {"reply_bytes": REPLY_BYTES}

    def echo(data: bytes) -> Callable[[], object]:
        return lambda: spine.call("echo", data, within_ms=5000, options=options)

    works: dict[str, Callable[[], object]] = {
        "echo_1k": echo(small),
        "raw_1k": lambda: raw.round_trip(small),
        "echo_100k": echo(big),
        "raw_100k": lambda: raw.round_trip(big),
        "paho_100k": lambda: threaded.round_trip(big),
    }
    interleaved(works, 30)
    times = interleaved(works, rounds)
    return {
        "echo_ratio": statistics.median(times["echo_100k"]) / statistics.median(times["raw_100k"]),
        "echo_1k_p50_ms": statistics.median(times["echo_1k"]),
        "echo_100k_p50_ms": statistics.median(times["echo_100k"]),
        "echo_100k_p99_ms": quantile(times["echo_100k"], 0.99),
        "raw_1k_p50_ms": statistics.median(times["raw_1k"]),
        "raw_100k_p50_ms": statistics.median(times["raw_100k"]),
        "paho_100k_p50_ms": statistics.median(times["paho_100k"]),
    }


def measure_model(spine: Spine, tcp: TcpClient, rounds: int) -> dict[str, float]:
    """`detect` end to end against the same inference here."""
    photo = max(demo_photos(), key=lambda p: len(p.data) if len(p.data) < 150_000 else 0).data
    detector = discover()["detect"](RuntimeConfig(threads=1))
    detector.load()
    variant = detector.variants[0].name
    works: dict[str, Callable[[], object]] = {
        "model": lambda: detector.run(photo, variant=variant),
        "tcp": lambda: tcp.round_trip(photo),
        "ispine": lambda: spine.detect(photo, within_ms=5000),
    }
    interleaved(works, 10)
    times = interleaved(works, rounds)
    bare = statistics.median(times["model"]) + statistics.median(times["tcp"])
    return {
        "x_model": statistics.median(times["ispine"]) / bare,
        "detect_p50_ms": statistics.median(times["ispine"]),
        "model_p50_ms": statistics.median(times["model"]),
        "tcp_100k_p50_ms": statistics.median(times["tcp"]),
        "photo_bytes": float(len(photo)),
    }


def measure_idle(pid: int, seconds: float) -> dict[str, float]:
    """Memory and CPU of a hub that nobody uses."""
    hub = psutil.Process(pid)
    hub.cpu_percent(None)
    time.sleep(seconds)
    return {
        "hub_idle_cpu_pct": hub.cpu_percent(None),
        "hub_rss_mb": hub.memory_info().rss / 2**20,
    }


def run(rounds: int, idle_s: float) -> dict[str, object]:
    """All measurements."""
    hub_arguments = [*CLI, "hub", "--port", "0", "--engine", "embedded", "--json"]
    with ExitStack() as stack:
        hub, ready = stack.enter_context(process(hub_arguments))
        url = json.loads(ready)["url"]
        idle = measure_idle(hub.pid, idle_s)
        agent = [*CLI, "agent", "--url", url, "--id", "bench", "--threads", "1", "--json"]
        stack.enter_context(process([*agent, "--capability", "echo", "--capability", "detect"]))
        stack.enter_context(process([sys.executable, "-c", RAW_RESPONDER, url]))
        _, port = stack.enter_context(process([sys.executable, "-c", TCP_SERVER]))
        raw, threaded, tcp = RawClient(url), PahoClient(url), TcpClient(int(port))
        stack.callback(raw.close)
        stack.callback(threaded.close)
        stack.callback(tcp.close)
        with Spine.connect(url) as spine:
            echo = measure_echo(spine, raw, threaded, rounds)
            model = measure_model(spine, tcp, max(20, rounds // 5))
    return {**model, **echo, **idle, "machine": platform.processor() or platform.machine()}


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--rounds", type=int, default=400, help="echo round trips of each kind")
    parser.add_argument("--idle", type=float, default=8.0, help="seconds to watch the idle hub")
    arguments = parser.parse_args()
    numbers = run(arguments.rounds, arguments.idle)
    if arguments.json:
        print(json.dumps(numbers))
        return
    for name, value in numbers.items():
        print(f"{name:20} {value:.3f}" if isinstance(value, float) else f"{name:20} {value}")


if __name__ == "__main__":
    main()
