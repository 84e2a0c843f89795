"""Random, truncated and mutated packets against a live broker, for a bounded time.

`ISPINE_FUZZ_SECONDS` makes it longer. The seed is printed on failure and can be set with
`ISPINE_FUZZ_SEED`.
"""

import logging
import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ispine.broker.rawclient import (
    Closed,
    LastWill,
    RawClient,
    Silence,
    connect_packet,
    packet,
    publish_packet,
    text,
)
from ispine.protocol.topics import TOPICS
from ispine.sdk import Spine

if TYPE_CHECKING:
    from tests.conftest import Fleet
    from tests.integration.conftest import Served

SECONDS = float(os.environ.get("ISPINE_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("ISPINE_FUZZ_SEED", str(random.SystemRandom().randrange(2**32))))
CAPTURED = (
    connect_packet("fuzz", keepalive_s=5, will=LastWill("will/fuzz", b"gone", 1, retain=True)),
    connect_packet("fuzz", clean=False, username="user", password="secret"),
    publish_packet("ispine/tasks/detect/glasses-1", bytes(300)),
    publish_packet("ispine/devices/phone/status", b"online", 1, retain=True, mid=77),
    publish_packet("exact/ly", b"once", 2, mid=78),
    packet(0x62, b"\x00\x4e"),
    packet(0x50, b"\x00\x01"),
    packet(0x82, b"\x00\x01" + text("ispine/#") + b"\x01" + text("+/+") + b"\x02"),
    packet(0xA2, b"\x00\x02" + text("ispine/#")),
    packet(0x40, b"\x00\x01"),
    b"\xc0\x00",
    b"\xe0\x00",
)


def mutated(noise: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(noise.randint(1, 4)):
        at = noise.randrange(len(changed) + 1)
        match noise.randrange(4):
            case 0:
                changed[at : at + 1] = noise.randbytes(1)
            case 1:
                del changed[at : at + noise.randint(1, 8)]
            case 2:
                changed[at:at] = noise.randbytes(noise.randint(1, 8))
            case _:
                changed[at:at] = noise.choice((b"\xff\xff\xff\x7f", b"\x00\x00", b"+", b"#", b"\0"))
    return bytes(changed)


def stream(noise: random.Random) -> bytes:
    if noise.random() < 0.1:
        return noise.randbytes(noise.randint(1, 400))
    parts = [noise.choice(CAPTURED) for _ in range(noise.randint(1, 6))]
    if noise.random() < 0.8:
        parts.insert(0, CAPTURED[0])
    index = noise.randrange(len(parts))
    parts[index] = mutated(noise, parts[index])
    whole = b"".join(parts) or b"\0"
    return whole[: noise.randint(1, len(whole))] if noise.random() < 0.3 else whole


@pytest.mark.engines("embedded")
def test_no_bytes_stop_the_broker(broker: "Served", caplog: pytest.LogCaptureFixture) -> None:
    noise = random.Random(SEED)
    healthy = broker.client("healthy")
    healthy.subscribe("healthy/only")
    ends = time.monotonic() + SECONDS
    count = 0
    with caplog.at_level(logging.ERROR):
        while time.monotonic() < ends:
            with suppress(Closed, Silence, OSError), RawClient(broker.port) as client:
                client.send(stream(noise))
                client.is_closed_within(0.002)
            count += 1
            if count % 50 == 0:
                healthy.publish("healthy/only", b"%d" % count)
                assert healthy.message().payload == b"%d" % count, f"seed {SEED}"
    assert count > 50
    assert not caplog.records, f"seed {SEED}: {caplog.text[:2000]}"
    core = getattr(broker.engine, "core", None)
    assert core is not None
    assert broker.loop is not None
    broker.loop.run(checked(core))


def payloads(noise: random.Random) -> Iterator[bytes]:
    """Noise behind every beginning that a component might take for something."""
    beginnings = (b"", b"\xc1\x01", b"\xc1\x02", b"{", b'{"type": ', b"\xff\xd8\xff\xe0", b"RIFF")
    while True:
        # An empty state or status is no noise: it says that the device has left for good.
        yield (noise.choice(beginnings) + noise.randbytes(noise.choice((0, 1, 100, 3000)))) or b"?"
        yield b"\xc1\x01" + b"\x81\xa1a" * noise.randint(1, 10_000)
        yield b"\xc1\x01" + noise.choice(
            (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc0")
        )


def test_no_bytes_on_any_topic_stop_a_component(echo_fleet: "Fleet", spine: Spine) -> None:
    noise = random.Random(SEED)
    names = {"device": "a1", "capability": "echo", "client": "fuzz", "task": "t1"}
    topics = []
    for spec in TOPICS:
        topic = f"ispine/{spec.pattern}"
        for level in re.findall("<([a-z]+)>", topic):
            topic = topic.replace(f"<{level}>", names.get(level, "x1"))
        topics.append(topic)
    ends = time.monotonic() + SECONDS
    with RawClient(echo_fleet.port) as client:
        client.connect("fuzz-topics")
        for payload in payloads(noise):
            client.send(publish_packet(noise.choice(topics), payload))
            if time.monotonic() > ends:
                break
        client.ping()
    for child in echo_fleet.children:
        assert child.is_running, f"seed {SEED}: {child.name} has ended"
        assert "Traceback" not in child.last_words(), f"seed {SEED}: {child.last_words()[-2000:]}"
    result = spine.call("echo", b"still here", within_ms=10_000)
    assert result.data == b"still here", f"seed {SEED}"


async def checked(core: object) -> None:
    check = getattr(core, "check_invariants", None)
    assert check is not None
    check()
