"""Sessions and routing: the broker without a socket or a clock.

Theory of operation. A transport authenticates nobody and decides nothing: it hands packets to this
core and gives it a `Peer` to send through. Nothing is touched before a client is admitted: no
session, no takeover, no will. A session belongs to the identity that made it. Whatever is
published is checked against the rules of the publisher, and again, per receiver, against the rules
of the reader; wills and retained messages take the same way.
"""

from collections import OrderedDict
from dataclasses import dataclass

from ispine.broker.access import Access, Identity
from ispine.broker.config import BrokerConfig
from ispine.broker.packets import (
    BAD_CLIENT_ID,
    BAD_CREDENTIALS,
    BAD_VERSION,
    NOT_AUTHORISED,
    UNAVAILABLE,
    Connect,
    Malformed,
)
from ispine.broker.session import Counters, Outgoing, Peer, Session
from ispine.broker.trie import TopicTrie
from ispine.protocol.errors import ConfigError
from ispine.protocol.ids import new_task_id
from ispine.protocol.link import MAX_TOPIC_BYTES, Will
from ispine.protocol.topics import matches

REFUSED = 0x80


@dataclass(frozen=True, slots=True)
class Retained:
    """The last retained message of a topic."""

    topic: str
    payload: bytes
    qos: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client may not connect: the CONNACK code and a word for the counter."""

    code: int
    reason: str


class BrokerCore:
    """All sessions, subscriptions and retained messages of one broker.

    Args:
        config: limits, users and rules.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.limits = config.limits
        self.access = Access(config)
        self.counters = Counters()
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, Retained] = {}
        self._retained_bytes = 0
        self._trie: TopicTrie[Session] = TopicTrie()
        self._away: OrderedDict[str, None] = OrderedDict()

    def connect(self, request: Connect, peer: Peer, address: str) -> tuple[Session, bool] | Refusal:
        """Admit a client.

        Returns:
            Its session and whether that was there before; the transport sends CONNACK and then
            calls `resume`. Or why it is refused.
        """
        refusal = self._refusal(request)
        if refusal is None:
            identity = self.access.admit(request.username, request.password, address)
            if identity is None:
                code = NOT_AUTHORISED if request.username is None else BAD_CREDENTIALS
                refusal = Refusal(code, "not authorised")
            else:
                return self._open(request, identity, peer)
        self.counters.count(self.counters.refused, refusal.reason)
        return refusal

    def attach(self, name: str, will: Will | None, peer: Peer) -> Session:
        """A session for a part of the hub in this process, with the role `hub`.

        Raises:
            ConfigError: the name is in use by somebody else.
        """
        request = Connect(name, True, 0, None, None, will, 1, True, 4)
        opened = self._open(request, Identity(name, "hub"), peer)
        if isinstance(opened, Refusal):
            raise ConfigError(f"expected {name!r} to be free; {opened.reason}; choose another name")
        return opened[0]

    def _refusal(self, request: Connect) -> Refusal | None:
        if request.version not in (3, 4):
            return Refusal(BAD_VERSION, "protocol version")
        if not request.client_id and not request.is_clean:
            return Refusal(BAD_CLIENT_ID, "client id")
        if len(request.client_id) > 256:
            return Refusal(BAD_CLIENT_ID, "client id")
        return None

    def _open(
        self, request: Connect, identity: Identity, peer: Peer
    ) -> tuple[Session, bool] | Refusal:
        client_id = request.client_id or f"auto-{new_task_id()}"
        old = self.sessions.get(client_id)
        if old is not None and old.identity != identity:
            self.counters.count(self.counters.refused, "client id of another")
            return Refusal(BAD_CLIENT_ID, "client id of another")
        if old is None and len(self.sessions) >= self.limits.sessions + self.limits.connections:
            self.counters.count(self.counters.refused, "too many sessions")
            return Refusal(UNAVAILABLE, "too many sessions")
        if old is not None and old.peer is not None:
            self._take_over(old)
        kept = self.sessions.get(client_id)
        if kept is not None and (request.is_clean or kept.is_clean):
            self._forget(kept)
            kept = None
        session = kept or self._fresh(client_id, identity, request.is_clean)
        self._away.pop(client_id, None)
        session.is_clean = request.is_clean
        session.will, session.will_qos = request.will, request.will_qos
        session.will_retain = request.will_retain
        session.peer = peer
        self.counters.connections_total += 1
        return session, kept is not None

    def _fresh(self, client_id: str, identity: Identity, is_clean: bool) -> Session:
        session = self.sessions[client_id] = Session(
            client_id, identity, is_clean=is_clean, limits=self.limits, counters=self.counters
        )
        return session

    def _take_over(self, session: Session) -> None:
        peer = session.peer
        self.counters.count(self.counters.closed, "taken over")
        self.disconnect(session, is_clean=False)
        if peer is not None:
            peer.close("taken over")

    def resume(self, session: Session) -> None:
        """After CONNACK: send what was kept."""
        if session.peer is not None:
            session.resume(session.peer)

    def disconnect(self, session: Session, *, is_clean: bool) -> None:
        """The connection ended; with `is_clean` the will is forgotten, else published."""
        session.peer = None
        will, session.will = session.will, None
        if session.is_clean:
            self._forget(session)
        else:
            self._keep_away(session)
        if will is not None and not is_clean:
            self._publish_will(session, will.topic, will.payload)

    def _publish_will(self, session: Session, topic: str, payload: bytes) -> None:
        try:
            self._check_topic(topic)
        except Malformed:
            self.counters.count(self.counters.dropped, "illegal will")
            return
        self.counters.wills_sent += 1
        self.publish(session, topic, payload, session.will_qos, retain=session.will_retain)

    def _keep_away(self, session: Session) -> None:
        self._away[session.client_id] = None
        self._away.move_to_end(session.client_id)
        while len(self._away) > self.limits.sessions:
            oldest = next(iter(self._away))
            self.counters.count(self.counters.dropped, "oldest session")
            self._forget(self.sessions[oldest])

    def _forget(self, session: Session) -> None:
        for topic_filter in session.subscriptions:
            self._trie.remove(topic_filter, session)
        session.subscriptions.clear()
        self._away.pop(session.client_id, None)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]

    def _check_topic(self, topic: str) -> None:
        if not topic or "+" in topic or "#" in topic or "\0" in topic:
            raise Malformed("illegal topic")
        if len(topic) > MAX_TOPIC_BYTES or len(topic.encode()) > MAX_TOPIC_BYTES:
            raise Malformed("illegal topic")

    def publish(
        self, session: Session, topic: str, payload: bytes, qos: int, *, retain: bool
    ) -> None:
        """Route one message of a client.

        A message that the rules forbid is dropped and counted (MQTT 3.1.1 has no way to say so).

        Raises:
            Malformed: a topic that may not be published to.
        """
        self._check_topic(topic)
        self.counters.messages_in += 1
        self.counters.bytes_in += len(payload)
        if topic[0] == "$" or not self.access.may_publish(session.identity, topic):
            self.counters.count(self.counters.dropped, "not authorised")
            return
        if retain:
            self._retain(topic, payload, qos)
        self._route(topic, payload, min(qos, 1))

    def _route(self, topic: str, payload: bytes, qos: int) -> None:
        readers = self._trie.match(topic)
        if not readers:
            return
        message = Outgoing(topic, payload)
        access = self.access
        for reader, granted in readers.items():
            if access.has_rules and not access.may_receive(reader.identity, topic):
                self.counters.count(self.counters.dropped, "reader not authorised")
                continue
            reader.deliver(message, min(qos, granted))

    def _retain(self, topic: str, payload: bytes, qos: int) -> None:
        old = self.retained.pop(topic, None)
        if old is not None:
            self._retained_bytes -= len(old.payload)
        if not payload:
            return
        is_full = len(self.retained) >= self.limits.retained_messages
        if is_full or self._retained_bytes + len(payload) > self.limits.retained_bytes:
            self.counters.count(self.counters.dropped, "retained store full")
            return
        self.retained[topic] = Retained(topic, payload, min(qos, 1))
        self._retained_bytes += len(payload)

    def subscribe(self, session: Session, wanted: list[tuple[str, int]]) -> list[int]:
        """Subscribe; the granted QoS of each filter, 128 for a refused one.

        The transport sends SUBACK and then calls `send_retained`.
        """
        codes: list[int] = []
        for topic_filter, qos in wanted:
            is_new = topic_filter not in session.subscriptions
            if not self.access.may_subscribe(session.identity, topic_filter):
                self.counters.count(self.counters.refused, "subscription not authorised")
                codes.append(REFUSED)
            elif is_new and len(session.subscriptions) >= self.limits.subscriptions:
                self.counters.count(self.counters.refused, "too many subscriptions")
                codes.append(REFUSED)
            else:
                granted = min(qos, 1)
                session.subscriptions[topic_filter] = granted
                self._trie.add(topic_filter, session, granted)
                codes.append(granted)
        return codes

    def send_retained(self, session: Session, topic_filter: str) -> None:
        """Send the retained messages of a filter that was just granted."""
        granted = session.subscriptions.get(topic_filter)
        if granted is None:
            return
        for kept in self._kept(topic_filter):
            if self.access.may_receive(session.identity, kept.topic):
                message = Outgoing(kept.topic, kept.payload, retain=True)
                session.deliver(message, min(kept.qos, granted))

    def _kept(self, topic_filter: str) -> list[Retained]:
        if "+" not in topic_filter and "#" not in topic_filter:
            kept = self.retained.get(topic_filter)
            return [] if kept is None else [kept]
        return [kept for kept in self.retained.values() if matches(topic_filter, kept.topic)]

    def unsubscribe(self, session: Session, topic_filters: list[str]) -> None:
        """Stop subscriptions; unknown ones are ignored."""
        for topic_filter in topic_filters:
            if session.subscriptions.pop(topic_filter, None) is not None:
                self._trie.remove(topic_filter, session)

    def drop_identity(self, name: str) -> int:
        """End every session of an identity at once; how many there were."""
        doomed = [s for s in self.sessions.values() if s.identity.name == name]
        for session in doomed:
            peer = session.peer
            session.will = None
            session.is_clean = True
            self.disconnect(session, is_clean=True)
            if peer is not None:
                peer.close("revoked")
        return len(doomed)

    def stats(self) -> dict[str, int | float]:
        """Counters by name, reasons after a colon."""
        counters = self.counters
        flat: dict[str, int | float] = {
            "connected": sum(s.peer is not None for s in self.sessions.values()),
            "sessions": len(self.sessions),
            "retained_messages": len(self.retained),
            "retained_bytes": self._retained_bytes,
            "connections_total": counters.connections_total,
            "messages_in": counters.messages_in,
            "messages_out": counters.messages_out,
            "bytes_in": counters.bytes_in,
            "bytes_out": counters.bytes_out,
            "wills_sent": counters.wills_sent,
        }
        for name in ("refused", "dropped", "closed"):
            table: dict[str, int] = getattr(counters, name)
            flat.update({f"{name}: {reason}": count for reason, count in sorted(table.items())})
        return flat

    def check_invariants(self) -> None:
        """What must hold after every packet.

        Raises:
            AssertionError: it does not.
        """
        assert self._retained_bytes == sum(len(r.payload) for r in self.retained.values())
        for client_id, session in self.sessions.items():
            assert session.client_id == client_id
            assert len(session.inflight) <= self.limits.inflight
            assert len(session.queue) <= self.limits.queue_messages
            assert session.queued_bytes == sum(len(m.payload) + len(m.topic) for m in session.queue)
            assert session.peer is not None or not session.is_clean
            assert session.peer is None or client_id not in self._away
