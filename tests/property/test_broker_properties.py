"""The broker's core under arbitrary events, and its codec under arbitrary bytes."""

from collections import deque
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ispine.broker import BrokerConfig, Limits, Rule
from ispine.broker.access import covers
from ispine.broker.connection import Connection
from ispine.broker.core import BrokerCore, Refusal
from ispine.broker.intake import Intake, Memory
from ispine.broker.packets import Connect
from ispine.broker.rawclient import LastWill, connect_packet, packet, publish_packet, text
from ispine.broker.session import Outgoing, Session
from ispine.broker.trie import TopicTrie
from ispine.protocol.link import Will
from ispine.protocol.topics import matches

levels = st.sampled_from(["a", "b", "", "$x"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=3), st.booleans())
    .map(lambda pair: "/".join([*pair[0], "#"] if pair[1] else pair[0]))
    .filter(bool)
)


@given(st.lists(st.tuples(filters, st.integers(0, 1)), max_size=20), topics)
def test_the_trie_agrees_with_a_scan(wanted: list[tuple[str, int]], topic: str) -> None:
    trie: TopicTrie[str] = TopicTrie()
    for topic_filter, qos in wanted:
        trie.add(topic_filter, topic_filter, qos)
    latest = dict(wanted)
    assert trie.match(topic) == {
        topic_filter: qos for topic_filter, qos in latest.items() if matches(topic_filter, topic)
    }
    for topic_filter in latest:
        assert trie.remove(topic_filter, topic_filter)
    assert trie.match(topic) == {}
    assert not trie._root.children


@given(filters, filters, topics)
def test_a_covering_filter_matches_whatever_the_covered_one_does(
    allowed: str, wanted: str, topic: str
) -> None:
    if covers(allowed, wanted) and matches(wanted, topic):
        assert matches(allowed, topic)


class NoWire:
    """Takes everything."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_slow = False
        self.is_gone = False
        self.turns = 0

    def write(self, data: bytes | bytearray) -> None:
        self.written += data

    def take_turns(self) -> None:
        self.turns += 1

    def finish(self) -> None:
        self.is_gone = True

    def abort(self) -> None:
        self.is_gone = True


good_packets = st.sampled_from(
    [
        connect_packet("x", will=LastWill("w", b"1")),
        publish_packet("a/b", b"1"),
        publish_packet("a/b", b"1", 1, retain=True),
        publish_packet("a/b", b"1", 2),
        packet(0x82, b"\x00\x01" + text("a/#") + b"\x01"),
        packet(0xA2, b"\x00\x01" + text("a/#")),
        packet(0x40, b"\x00\x01"),
        packet(0x62, b"\x00\x01"),
        packet(0x50, b"\x00\x01"),
        packet(0x70, b"\x00\x01"),
        b"\xc0\x00",
        b"\xe0\x00",
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A plausible stream with some bytes changed, cut out or put in."""
    first = connect_packet("x") if draw(st.booleans()) else b""
    data = bytearray(first + b"".join(draw(st.lists(good_packets, max_size=6))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 3))
        data[at : at + cut] = draw(st.binary(max_size=3))
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated()), st.integers(1, 50))
def test_no_bytes_stop_a_connection(data: bytes, step: int) -> None:
    core = BrokerCore(BrokerConfig())
    memory = Memory(10_000)
    wire = NoWire()
    connection = Connection(core, wire, "127.0.0.1", memory)
    view = memoryview(data)
    while view and not connection.is_closed:
        used = connection.feed(view[:step])
        view = view[used:]
        if connection.has_more:
            connection.go_on()
        core.check_invariants()
    if not connection.is_closed:
        connection.lost()
    core.check_invariants()
    assert memory.used == 0
    assert all(session.peer is None for session in core.sessions.values())


class NoHolder:
    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3000), max_size=12),
    st.lists(st.integers(1, 4000), min_size=1, max_size=10),
    st.booleans(),
)
def test_packets_come_out_as_they_went_in(
    sizes: list[int], steps: list[int], in_turns: bool
) -> None:
    sent = [publish_packet("t", bytes((n % 251,)) * size) for n, size in enumerate(sizes)]
    got: list[bytes] = []

    def on_packet(whole: bytes | bytearray, body: int) -> bool:
        got.append(bytes(whole))
        return not in_turns

    intake = Intake(Memory(1 << 20), NoHolder(), lambda _: 1 << 20, on_packet)
    stream = memoryview(b"".join(sent))
    queue = deque(steps)
    while stream:
        queue.rotate()
        room = intake.room()
        count = min(queue[0], len(stream), len(room))
        room[:count] = stream[:count]
        stream = stream[count:]
        intake.wrote(count)
        while intake.has_more:
            intake.go_on()
    assert got == sent


class FakePeer:
    """Counts what a session sends and acknowledges nothing by itself."""

    def __init__(self) -> None:
        self.is_slow = False
        self.is_closed = False
        self.unacknowledged: list[tuple[int, int]] = []
        self.uncompleted: list[int] = []

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        assert not self.is_closed
        if qos and not dup:
            self.unacknowledged.append((mid, qos))

    def release(self, mid: int) -> None:
        self.uncompleted.append(mid)

    def close(self, reason: str) -> None:
        self.is_closed = True


class Broker(RuleBasedStateMachine):
    """Clients come, go, subscribe, publish, stall and acknowledge in any order."""

    LIMITS: ClassVar[Limits] = Limits(
        queue_bytes=1024,
        queue_messages=5,
        inflight=3,
        queues_bytes=3000,
        subscriptions=4,
        retained_messages=3,
        retained_bytes=1024,
        sessions=3,
        connections=5,
    )

    def __init__(self) -> None:
        super().__init__()
        rules = (
            Rule(role="wearable", action="publish", topic_filter="a/#"),
            Rule(role="wearable", action="subscribe", topic_filter="a/+"),
        )
        self.core = BrokerCore(BrokerConfig(limits=self.LIMITS, rules=rules))
        self.peers: dict[str, tuple[Session, FakePeer]] = {}

    names = st.sampled_from(["one", "two", "three", "four", "five", "six"])

    @rule(name=names, clean=st.booleans(), will=st.one_of(st.none(), topics))
    def connects(self, name: str, clean: bool, will: str | None) -> None:
        peer = FakePeer()
        testament = None if will is None else Will(will, b"gone")
        answer = self.core.connect(
            Connect(name, clean, 0, None, None, testament, 1, True, 4), peer, "127.0.0.1"
        )
        if isinstance(answer, Refusal):
            return
        if name in self.peers:
            assert self.peers[name][1].is_closed
        self.peers[name] = (answer[0], peer)
        self.core.resume(answer[0])

    @rule(name=names, is_clean=st.booleans())
    def leaves(self, name: str, is_clean: bool) -> None:
        session, peer = self.peers.pop(name, (None, None))
        if session is not None and peer is not None:
            peer.is_closed = True
            self.core.disconnect(session, is_clean=is_clean)

    @rule(name=names, wanted=filters, qos=st.integers(0, 2))
    def subscribes(self, name: str, wanted: str, qos: int) -> None:
        if name in self.peers:
            session = self.peers[name][0]
            code = self.core.subscribe(session, [(wanted, qos)])[0]
            assert code in (qos, 128)
            if code <= 2:
                assert covers("a/+", wanted)
                self.core.send_retained(session, wanted)

    @rule(name=names, wanted=filters)
    def unsubscribes(self, name: str, wanted: str) -> None:
        if name in self.peers:
            self.core.unsubscribe(self.peers[name][0], [wanted])

    @rule(
        name=names,
        topic=topics,
        size=st.sampled_from([0, 1, 300, 900]),
        qos=st.integers(0, 2),
        retain=st.booleans(),
    )
    def publishes(self, name: str, topic: str, size: int, qos: int, retain: bool) -> None:
        if name in self.peers:
            message = Outgoing(topic, bytes(size))
            self.core.publish(self.peers[name][0], message, qos, retain=retain)

    @rule(name=names, is_slow=st.booleans())
    def stalls(self, name: str, is_slow: bool) -> None:
        if name in self.peers:
            session, peer = self.peers[name]
            peer.is_slow = is_slow
            session.pump()

    @rule(name=names)
    def acknowledges(self, name: str) -> None:
        if name in self.peers and self.peers[name][1].unacknowledged:
            session, peer = self.peers[name]
            mid, qos = peer.unacknowledged.pop(0)
            if qos == 1:
                session.acknowledge(mid)
            else:
                session.note_received(mid)

    @rule(name=names)
    def completes(self, name: str) -> None:
        if name in self.peers and self.peers[name][1].uncompleted:
            session, peer = self.peers[name]
            session.complete(peer.uncompleted.pop(0))

    @rule(name=names)
    def acknowledges_nonsense(self, name: str) -> None:
        if name in self.peers:
            self.peers[name][0].acknowledge(65_535)
            self.peers[name][0].note_received(65_534)
            self.peers[name][0].complete(65_533)

    @invariant()
    def holds(self) -> None:
        self.core.check_invariants()


TestBroker = Broker.TestCase
TestBroker.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_hog_is_given_up_not_its_neighbour() -> None:
    given_up: list[str] = []

    class Holder:
        def __init__(self, name: str) -> None:
            self.name = name

        def fail(self, reason: str) -> None:
            given_up.append(self.name)

    memory = Memory(1000)
    small, hog = Holder("small"), Holder("hog")
    memory.hold(hog, 900)
    memory.hold(small, 200)
    assert given_up == ["hog"]
    assert memory.used == 200
    memory.hold(small, 0)
    assert memory.used == 0
