"""Sessions and routing without a socket."""

import pytest

from ispine.broker import BrokerConfig, Limits
from ispine.broker.core import BrokerCore, Refusal, is_topic
from ispine.broker.listener import Rate
from ispine.broker.packets import Connect, Malformed
from ispine.broker.session import Outgoing, Session
from ispine.protocol.errors import ConfigError
from ispine.protocol.link import Will


class FakePeer:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, int, int, bool]] = []
        self.is_slow = False
        self.closed = ""

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        self.sent.append((message.topic, message.payload, qos, mid, dup))

    def release(self, mid: int) -> None:
        self.sent.append(("release", b"", 2, mid, False))

    def close(self, reason: str) -> None:
        self.closed = reason

    @property
    def payloads(self) -> list[bytes]:
        return [each[1] for each in self.sent]


def join(
    core: BrokerCore, client_id: str, *, clean: bool = True, will: Will | None = None
) -> tuple[Session, FakePeer]:
    peer = FakePeer()
    request = Connect(client_id, clean, 0, None, None, will, 0, False, 4)
    answer = core.connect(request, peer, "127.0.0.1")
    assert not isinstance(answer, Refusal)
    core.resume(answer[0])
    core.check_invariants()
    return answer[0], peer


def make(**limits: int) -> BrokerCore:
    return BrokerCore(BrokerConfig(limits=Limits.model_validate(limits)))


def test_one_encoding_for_all_readers() -> None:
    core = make()
    sender, _ = join(core, "sender")
    packets: list[bytes | bytearray] = []

    class Reader(FakePeer):
        def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
            packets.append(message.at_qos_0())

    for name in ("a", "b"):
        request = Connect(name, True, 0, None, None, None, 0, False, 4)
        answer = core.connect(request, Reader(), "127.0.0.1")
        assert not isinstance(answer, Refusal)
        core.subscribe(answer[0], [("x", 0)])
    core.publish(sender, Outgoing("x", b"1"), 0, retain=False)
    assert packets[0] is packets[1]


def test_what_follows_a_queued_message_waits_behind_it() -> None:
    core = make(inflight=1)
    sender, _ = join(core, "sender")
    reader, peer = join(core, "reader")
    core.subscribe(reader, [("x", 1)])
    for number in range(6):
        core.publish(sender, Outgoing("x", b"%d" % number), number % 2, retain=False)
        core.check_invariants()
    assert peer.payloads == [b"0", b"1", b"2"] or peer.payloads == [b"0", b"1"]
    while reader.inflight:
        reader.acknowledge(next(iter(reader.inflight)))
        core.check_invariants()
    assert peer.payloads == [b"%d" % number for number in range(6)]


def test_at_most_once_does_not_outlive_the_connection() -> None:
    core = make(inflight=1)
    sender, _ = join(core, "sender")
    reader, _ = join(core, "reader", clean=False)
    core.subscribe(reader, [("x", 1)])
    for payload, qos in ((b"a", 1), (b"b", 1), (b"c", 0)):
        core.publish(sender, Outgoing("x", payload), qos, retain=False)
    core.disconnect(reader, is_clean=True)
    core.check_invariants()
    _, peer = join(core, "reader", clean=False)
    assert peer.payloads == [b"a"]
    reader.acknowledge(peer.sent[0][3])
    assert peer.payloads == [b"a", b"b"]


def test_delivery_at_qos_2_survives_a_reconnect_at_each_step() -> None:
    core = make()
    sender, _ = join(core, "sender")
    reader, peer = join(core, "reader", clean=False)
    core.subscribe(reader, [("x", 2)])
    core.publish(sender, Outgoing("x", b"1"), 2, retain=False)
    assert peer.sent == [("x", b"1", 2, 1, False)]
    core.disconnect(reader, is_clean=True)
    _, peer = join(core, "reader", clean=False)
    assert peer.sent == [("x", b"1", 2, 1, True)]
    reader.note_received(1)
    core.check_invariants()
    core.disconnect(reader, is_clean=True)
    _, peer = join(core, "reader", clean=False)
    assert peer.sent == [("release", b"", 2, 1, False)]
    reader.acknowledge(1)
    assert reader.inflight
    reader.complete(1)
    assert not reader.inflight
    assert core.counters.queued_bytes == 0
    core.check_invariants()


def test_all_queues_together_are_bounded() -> None:
    core = make(queues_bytes=2000)
    sender, _ = join(core, "sender")
    for name in ("a", "b", "c"):
        reader, _ = join(core, name, clean=False)
        core.subscribe(reader, [("x", 1)])
        core.disconnect(reader, is_clean=True)
    core.publish(sender, Outgoing("x", bytes(900)), 1, retain=False)
    core.check_invariants()
    assert core.counters.queued_bytes == 1802
    assert core.counters.dropped == {"all queues full": 1}


def test_oldest_absent_session_goes_first() -> None:
    core = make(sessions=2)
    for name in ("a", "b", "c"):
        session, _ = join(core, name, clean=False)
        core.disconnect(session, is_clean=True)
        core.check_invariants()
    assert set(core.sessions) == {"b", "c"}


def test_retained_store_is_bounded() -> None:
    core = make(retained_messages=2)
    sender, _ = join(core, "sender")
    for topic in ("a", "b", "c"):
        core.publish(sender, Outgoing(topic, b"1"), 0, retain=True)
    core.publish(sender, Outgoing("a", b"22"), 0, retain=True)
    core.check_invariants()
    assert {topic: kept.payload for topic, kept in core.retained.items()} == {
        "a": b"22",
        "b": b"1",
    }
    assert core.counters.dropped == {"retained store full": 1}


def test_will_of_a_client_that_is_taken_over() -> None:
    core = make()
    watcher, seen = join(core, "watcher")
    core.subscribe(watcher, [("will", 0)])
    _, old = join(core, "twice", will=Will("will", b"gone"))
    join(core, "twice")
    assert old.closed == "taken over"
    assert seen.payloads == [b"gone"]


@pytest.mark.parametrize("topic", ["", "a/+", "#", "x" * 1025, "ä" * 600, "a\0"])
def test_illegal_will_is_refused(topic: str) -> None:
    request = Connect("x", True, 0, None, None, Will(topic, b""), 0, False, 4)
    answer = make().connect(request, FakePeer(), "127.0.0.1")
    assert isinstance(answer, Refusal)


def test_nobody_publishes_below_sys() -> None:
    core = make()
    sender, peer = join(core, "sender")
    core.subscribe(sender, [("$SYS/#", 0)])
    core.publish(sender, Outgoing("$SYS/x", b"1"), 0, retain=False)
    assert peer.sent == []
    with pytest.raises(Malformed):
        core.publish(sender, Outgoing("a/#", b"1"), 0, retain=False)
    assert is_topic("ä" * 512)


def test_parts_of_the_hub_have_names_of_their_own() -> None:
    core = make()
    core.attach("hub", None, FakePeer())
    join(core, "hub")
    with pytest.raises(ConfigError):
        core.attach("hub", None, FakePeer())


def test_rate_refills_and_forgets() -> None:
    rate = Rate(1.0)
    allowed = [rate.allows("10.0.0.1", 0.0) for _ in range(5)]
    assert allowed == [True, True, True, False, False]
    assert rate.allows("10.0.0.2", 0.0)
    assert rate.allows("10.0.0.1", 1.1)
    assert all(rate.allows("127.0.0.1", 0.0) for _ in range(30))
    for number in range(5000):
        rate.allows(f"10.1.{number // 256}.{number % 256}", 1.0)
    assert len(rate._buckets) <= 4096
