"""How fast the embedded broker is, beside mosquitto in the same run.

The broker runs in a process of its own; the load comes from raw sockets in this one, with packets
encoded beforehand, so that the broker is what is measured. Access rules are on.

    python bench/broker.py --json
"""

import argparse
import json
import os
import platform
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PUBLISHERS = 10
SMALL_BYTES, LARGE_BYTES = 200, 100_000
IDLE_CLIENTS = 500
SECRET = "bench-secret-of-enough-bits"


# -- the broker, in its own process --------------------------------------------------------------


async def _serve() -> None:
    import asyncio

    from ispine.broker import BrokerConfig, Rule, User, engine_for
    from ispine.broker.credentials import hash_secret

    config = BrokerConfig(
        engine="embedded",
        port=0,
        users=(User(name="bench", role="device", secret_hash=hash_secret(SECRET)),),
        rules=tuple(
            Rule(role=role, action=action, topic_filter=topic_filter)
            for role in ("device", "wearable")
            for action in ("publish", "subscribe")
            for topic_filter in ("ispine/other/{id}/+", "ispine/queues/{id}/#", "ispine/bench/#")
        ),
    )
    engine = engine_for(config)
    await engine.start()
    print(engine.url.rsplit(":", 1)[1], flush=True)
    await asyncio.Event().wait()


def _serve_forever(loop: str) -> None:
    import asyncio

    if loop == "uvloop":
        import uvloop

        uvloop.run(_serve())
    else:
        asyncio.run(_serve())


@contextmanager
def embedded(loop: str) -> Iterator[int]:
    """The embedded engine with rules; yields its port."""
    command = [sys.executable, __file__, "--serve", loop]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield int(child.stdout.readline())
    finally:
        child.terminate()
        child.wait(10)
        child.stdout.close()


@contextmanager
def mosquitto() -> Iterator[int]:
    """A mosquitto with TCP_NODELAY, as iSpine would configure it; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "m.conf")
        settings.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
        )
        child = subprocess.Popen(
            [_mosquitto_program(), "-c", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            yield port
        finally:
            child.terminate()
            child.wait(10)


def _mosquitto_program() -> str:
    return shutil.which("mosquitto") or "/usr/sbin/mosquitto"


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"expected a broker on port {port} within 10 s")


# -- clients: raw sockets ------------------------------------------------------------------------


def _packet(first: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        length.append(low | 0x80 if size else low)
        if not size:
            return bytes((first,)) + bytes(length) + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def publish_packet(topic: str, payload: bytes) -> bytes:
    """A PUBLISH at QoS 0."""
    return _packet(0x30, _text(topic) + payload)


def connect(port: int, client_id: str, *, with_secret: bool = True) -> socket.socket:
    """A connected client."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flags, tail = (0xC2, _text("bench") + _text(SECRET)) if with_secret else (0x02, b"")
    sock.sendall(_packet(0x10, _text("MQTT") + bytes((4, flags, 0, 0)) + _text(client_id) + tail))
    answer = sock.recv(4, socket.MSG_WAITALL)
    if answer != b"\x20\x02\x00\x00":
        raise SystemExit(f"expected the broker to accept {client_id}; got {answer!r}")
    return sock


def subscribe(sock: socket.socket, topic_filter: str) -> None:
    """Subscribe at QoS 0."""
    sock.sendall(_packet(0x82, b"\x00\x01" + _text(topic_filter) + b"\x00"))
    if sock.recv(5, socket.MSG_WAITALL)[-1] != 0:
        raise SystemExit(f"expected the broker to grant {topic_filter}")


def throughput(port: int, payload_bytes: int, publishers: int, seconds: float) -> float:
    """Messages per second that one subscriber gets from all publishers."""
    batch_size = max(1, 32_768 // payload_bytes)
    packets = [
        publish_packet(f"ispine/bench/{index}", bytes(payload_bytes)) for index in range(publishers)
    ]
    batches = [memoryview(packet * batch_size) for packet in packets]
    with ExitStack() as stack:
        reader = stack.enter_context(connect(port, "reader"))
        subscribe(reader, "ispine/bench/#")
        writers = [
            stack.enter_context(connect(port, f"writer-{index}")) for index in range(publishers)
        ]
        received = _pump(reader, writers, batches, seconds)
    return received / len(packets[0]) / seconds


def _pump(
    reader: socket.socket, writers: list[socket.socket], batches: list[memoryview], seconds: float
) -> int:
    chooser = selectors.DefaultSelector()
    left = dict(zip(writers, batches, strict=True))
    whole = dict(left)
    for sock in writers:
        sock.setblocking(False)
        chooser.register(sock, selectors.EVENT_WRITE)
    reader.setblocking(False)
    chooser.register(reader, selectors.EVENT_READ)
    buffer = bytearray(1 << 20)
    received = 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for key, _ in chooser.select(0.1):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is reader:
                received += reader.recv_into(buffer)
            else:
                sent = sock.send(left[sock])
                left[sock] = left[sock][sent:] or whole[sock]
    for sock in writers:
        chooser.unregister(sock)
    while chooser.select(0.3):
        reader.recv_into(buffer)
    chooser.close()
    return received


class Loop:
    """One client that gets its own messages back: two hops."""

    def __init__(self, port: int, name: str, *, with_secret: bool) -> None:
        self.sock = connect(port, name, with_secret=with_secret)
        subscribe(self.sock, f"ispine/bench/{name}")
        self._packet = publish_packet(f"ispine/bench/{name}", bytes(LARGE_BYTES))
        self._buffer = bytearray(len(self._packet))

    def round_trip_ms(self) -> float:
        """Send one message and wait until it is back whole."""
        started = time.perf_counter()
        self.sock.sendall(self._packet)
        view = memoryview(self._buffer)
        while view:
            got = self.sock.recv_into(view)
            if not got:
                raise SystemExit("expected the broker to stay; it closed the connection")
            view = view[got:]
        return (time.perf_counter() - started) * 1e3


def compare(ours: Loop, theirs: Loop | None, rounds: int) -> tuple[list[float], list[float]]:
    """Round trips of both, one after the other so that noise hits both alike."""
    mine: list[float] = []
    other: list[float] = []
    for _ in range(rounds):
        mine.append(ours.round_trip_ms())
        if theirs is not None:
            other.append(theirs.round_trip_ms())
    return mine[rounds // 10 :], other[rounds // 10 :]


def idle_ratio(port: int, rounds: int) -> float:
    """Median round trip with many idle clients over that with none, taken alternately."""
    alone: list[float] = []
    crowded: list[float] = []
    with Loop(port, "idle-loop", with_secret=True).sock as sock:
        loop = Loop(port, "idle-loop-2", with_secret=True)
        for _ in range(2):
            alone += [loop.round_trip_ms() for _ in range(rounds)]
            with ExitStack() as stack:
                for index in range(IDLE_CLIENTS):
                    stack.enter_context(connect(port, f"idle-{index}"))
                crowded += [loop.round_trip_ms() for _ in range(rounds)]
        loop.sock.close()
        del sock
    return statistics.median(crowded) / statistics.median(alone)


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p95 and p99."""
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 3), "p95": round(cuts[94], 3), "p99": round(cuts[98], 3)}


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return found.stdout.strip() or "unknown"


def measure(loop: str, seconds: float) -> dict[str, object]:
    """The whole benchmark."""
    has_mosquitto = Path(_mosquitto_program()).exists()
    with ExitStack() as stack:
        port = stack.enter_context(embedded(loop))
        other = stack.enter_context(mosquitto()) if has_mosquitto else None
        small = throughput(port, SMALL_BYTES, PUBLISHERS, seconds)
        large = throughput(port, LARGE_BYTES, 2, seconds) * LARGE_BYTES / 1e6
        their_small = throughput(other, SMALL_BYTES, PUBLISHERS, seconds) if other else None
        their_large = throughput(other, LARGE_BYTES, 2, seconds) if other else None
        mine, theirs = compare(
            Loop(port, "loop", with_secret=True),
            Loop(other, "loop", with_secret=False) if other else None,
            400,
        )
        crowded = idle_ratio(port, 150)
    ratio = statistics.median(mine) / statistics.median(theirs) if theirs else None
    return {
        "msgs_per_s_200b": round(small),
        "mb_per_s_100kb": round(large),
        "rtt_ratio_to_mosquitto_100kb": None if ratio is None else round(ratio, 2),
        "rtt_ratio_500_idle": round(crowded, 2),
        "rtt_100kb_ms": percentiles(mine),
        "mosquitto_rtt_100kb_ms": percentiles(theirs) if theirs else None,
        "mosquitto_msgs_per_s_200b": None if their_small is None else round(their_small),
        "mosquitto_mb_per_s_100kb": None
        if their_large is None
        else round(their_large * LARGE_BYTES / 1e6),
        "loop": loop,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        "commit": _commit(),
    }


def _best_loop() -> str:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return "asyncio"
    return "uvloop"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=3.0, help="per throughput run")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default=_best_loop())
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve_forever(options.serve)
        return
    found = measure(options.loop, options.seconds)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
