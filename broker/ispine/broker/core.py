"""Sessions and routing: the broker without a socket or a clock.

Theory of operation. A transport authenticates nobody and decides nothing: it hands packets to this
core and gives it a `Peer` to send through. Nothing is touched before a client is admitted: no
session, no takeover, no will. A session belongs to the identity that made it. Whatever is
published is checked against the rules of the publisher, and again, per receiver, against the rules
of the reader; wills and retained messages take the same way.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ispine.broker.access import HUB_ROLE, Access, Identity
from ispine.broker.config import BrokerConfig, Limits, Rule, User
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
IN_PROCESS = "\0"
IN_PROCESS_MESSAGES = 20_000


def is_topic(topic: str) -> bool:
    """Whether a topic may be published to."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        return False
    size = len(topic)
    return size <= MAX_TOPIC_BYTES and (topic.isascii() or len(topic.encode()) <= MAX_TOPIC_BYTES)


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

    def replace_access(self, users: Iterable[User], rules: Iterable[Rule]) -> None:
        """From now on other users and rules; who is no user any more is disconnected."""
        self.access.replace(users, rules)
        for session in list(self.sessions.values()):
            name = session.identity.name
            if not name or session.client_id.startswith(IN_PROCESS):
                continue
            identity = self.access.identity_of(name)
            if identity is None:
                self.revoke(session)
            else:
                session.identity = identity

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
        client_id = f"{IN_PROCESS}{name}"
        if client_id in self.sessions:
            raise ConfigError(
                f"expected one part of the hub named {name!r}; there is one already;"
                " choose another name"
            )
        limits = self.limits.model_copy(
            update={"inflight": IN_PROCESS_MESSAGES, "queue_messages": IN_PROCESS_MESSAGES}
        )
        request = Connect(client_id, True, 0, None, None, will, 1, True, 4)
        session = self._fresh(client_id, Identity(name, HUB_ROLE), is_clean=True, limits=limits)
        self._begin(session, request, peer)
        return session

    def _refusal(self, request: Connect) -> Refusal | None:
        if request.version not in (3, 4):
            return Refusal(BAD_VERSION, "protocol version")
        if not request.client_id and not request.is_clean:
            return Refusal(BAD_CLIENT_ID, "client id")
        if len(request.client_id) > 256:
            return Refusal(BAD_CLIENT_ID, "client id")
        if request.will is not None and not is_topic(request.will.topic):
            return Refusal(NOT_AUTHORISED, "illegal will")
        return None

    def _open(
        self, request: Connect, identity: Identity, peer: Peer
    ) -> tuple[Session, bool] | Refusal:
        client_id = request.client_id or f"auto-{new_task_id()}"
        old = self.sessions.get(client_id)
        refusal = self._refusal_of(client_id, identity, old)
        if refusal is not None:
            self.counters.count(self.counters.refused, refusal.reason)
            return refusal
        if old is not None and old.peer is not None:
            self._take_over(old)
        kept = self.sessions.get(client_id)
        if kept is not None and (request.is_clean or kept.is_clean):
            self._forget(kept)
            kept = None
        session = kept or self._fresh(client_id, identity, request.is_clean, self.limits)
        session.identity = identity
        self._begin(session, request, peer)
        return session, kept is not None

    def _refusal_of(
        self, client_id: str, identity: Identity, old: Session | None
    ) -> Refusal | None:
        if old is not None and old.identity.name != identity.name:
            return Refusal(BAD_CLIENT_ID, "client id of another")
        if not self.access.owns(identity, client_id):
            return Refusal(BAD_CLIENT_ID, "client id of another")
        connected = len(self.sessions) - len(self._away)
        if (old is None or old.peer is None) and connected >= self.limits.connections:
            return Refusal(UNAVAILABLE, "too many connections")
        return None

    def _begin(self, session: Session, request: Connect, peer: Peer) -> None:
        self._away.pop(session.client_id, None)
        session.is_clean = request.is_clean
        session.will, session.will_qos = request.will, request.will_qos
        session.will_retain = request.will_retain
        session.peer = peer
        self.counters.connections_total += 1

    def _fresh(self, client_id: str, identity: Identity, is_clean: bool, limits: Limits) -> Session:
        session = self.sessions[client_id] = Session(
            client_id, identity, is_clean=is_clean, limits=limits, counters=self.counters
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
        session.part()
        will, session.will = session.will, None
        if session.is_clean:
            self._forget(session)
        else:
            self._keep_away(session)
        if will is not None and not is_clean:
            self._publish_will(session, will.topic, will.payload)

    def _publish_will(self, session: Session, topic: str, payload: bytes) -> None:
        self.counters.wills_sent += 1
        message = Outgoing(topic, payload)
        self.publish(session, message, session.will_qos, retain=session.will_retain)

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
        session.clear()
        self._away.pop(session.client_id, None)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]

    def publish(self, session: Session, message: Outgoing, qos: int, *, retain: bool) -> None:
        """Route one message of a client.

        A message that the rules forbid is dropped and counted (MQTT 3.1.1 has no way to say so).

        Args:
            session: whose.
            message: with the retain flag down.
            qos: as published.
            retain: keep it for later subscribers.

        Raises:
            Malformed: a topic that may not be published to.
        """
        topic = message.topic
        if not is_topic(topic):
            raise Malformed("illegal topic")
        counters = self.counters
        counters.messages_in += 1
        counters.bytes_in += message.size
        if topic[0] == "$" or not self.access.may_publish(session.identity, topic):
            counters.count(counters.dropped, "not authorised")
            return
        if retain:
            self._retain(topic, message.payload, qos)
        self._route(message, qos)

    def _route(self, message: Outgoing, qos: int) -> None:
        access = self.access
        for reader, granted in self._trie.match(message.topic).items():
            if not access.may_receive(reader.identity, message.topic):
                self.counters.count(self.counters.dropped, "reader not authorised")
                continue
            reader.deliver(message, min(qos, granted))

    def _retain(self, topic: str, payload: bytes, qos: int) -> None:
        old = self.retained.pop(topic, None)
        if old is not None:
            self._retained_bytes -= len(topic) + len(old.payload)
        if not payload:
            return
        size = len(topic) + len(payload)
        is_full = len(self.retained) >= self.limits.retained_messages
        if is_full or self._retained_bytes + size > self.limits.retained_bytes:
            self.counters.count(self.counters.dropped, "retained store full")
            return
        self.retained[topic] = Retained(topic, payload, qos)
        self._retained_bytes += size

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
                session.subscriptions[topic_filter] = qos
                self._trie.add(topic_filter, session, qos)
                codes.append(qos)
        return codes

    def send_retained(self, session: Session, topic_filter: str) -> int:
        """Send the retained messages of a filter that was just granted; how many it looked at."""
        granted = session.subscriptions.get(topic_filter)
        if granted is None:
            return 0
        kept = self._kept(topic_filter)
        for each in kept:
            if self.access.may_receive(session.identity, each.topic):
                message = Outgoing(each.topic, each.payload, retain=True)
                session.deliver(message, min(each.qos, granted))
        return len(kept) + len(self.retained) // 16

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

    def revoke(self, session: Session) -> None:
        """End a session at once, without its will."""
        peer = session.peer
        session.will = None
        session.is_clean = True
        self.disconnect(session, is_clean=True)
        self.counters.count(self.counters.closed, "revoked")
        if peer is not None:
            peer.close("revoked")

    def stats(self) -> dict[str, int | float]:
        """Counters by name, reasons after a colon."""
        counters = self.counters
        flat: dict[str, int | float] = {
            "connected": sum(s.peer is not None for s in self.sessions.values()),
            "slow_clients": sum(
                s.peer is not None and s.peer.is_slow for s in self.sessions.values()
            ),
            "queued_bytes": counters.queued_bytes,
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
        sizes = (len(kept.topic) + len(kept.payload) for kept in self.retained.values())
        assert self._retained_bytes == sum(sizes) <= self.limits.retained_bytes
        assert self.counters.queued_bytes == sum(s.held_bytes for s in self.sessions.values())
        for client_id, session in self.sessions.items():
            assert session.client_id == client_id
            assert (session.peer is None) == (client_id in self._away)
            session.check_invariants()
