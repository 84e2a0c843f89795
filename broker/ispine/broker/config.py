"""Settings of a broker, with limits that suit a home."""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ispine.broker.credentials import FORMAT
from ispine.protocol.link import MAX_PACKET_BYTES

EngineName = Literal["auto", "embedded", "mosquitto", "external"]
Action = Literal["publish", "subscribe"]
Anonymous = Literal["nobody", "loopback", "everybody"]
MiB = 1024 * 1024

_LEVEL = r"[^+#/\x00]*"
_FILTER = re.compile(rf"(?:(?:\+|{_LEVEL})/)*(?:#|\+|{_LEVEL})")
_NAME = r"^[A-Za-z0-9_-]{1,64}$"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Frozen):
    """What one client, one address and all together may use.

    Attributes:
        packet_bytes: largest MQTT packet; a larger one closes the connection.
        queue_bytes: what may wait for one client: two assembled tasks and some.
        queue_messages: how many messages may wait for one client.
        inflight: QoS 1 messages sent and not yet acknowledged, per client.
        queues_bytes: what may wait in all queues together.
        backlog_bytes: what all slow clients together may leave unread before the slowest lose
            messages earlier than at `queue_bytes`.
        connections: clients connected, all together.
        connections_per_address: open connections of one address; loopback is exempt, because all
            local programs share it.
        waiting_connects: connections without a CONNECT yet; beyond it the oldest is closed.
        connects_per_s: new connections per second of one address, after a burst of 3 s' worth;
            ten times as many from loopback.
        connect_s: seconds until CONNECT must have arrived.
        unfinished_bytes: memory of all packets that have not arrived whole; beyond it the largest
            is given up.
        subscriptions: per client.
        retained_messages: all together.
        retained_bytes: all together.
        sessions: sessions kept for clients that are away.
    """

    packet_bytes: Annotated[int, Field(ge=1024)] = MAX_PACKET_BYTES
    queue_bytes: Annotated[int, Field(ge=1024)] = 17 * MiB
    queue_messages: Annotated[int, Field(ge=1)] = 1000
    inflight: Annotated[int, Field(ge=1, le=65000)] = 64
    queues_bytes: Annotated[int, Field(ge=1024)] = 64 * MiB
    backlog_bytes: Annotated[int, Field(ge=1024)] = 96 * MiB
    connections: Annotated[int, Field(ge=1)] = 1000
    connections_per_address: Annotated[int, Field(ge=1)] = 250
    waiting_connects: Annotated[int, Field(ge=1)] = 600
    connects_per_s: Annotated[float, Field(gt=0)] = 200.0
    connect_s: Annotated[float, Field(gt=0)] = 5.0
    unfinished_bytes: Annotated[int, Field(ge=1024)] = 32 * MiB
    subscriptions: Annotated[int, Field(ge=1)] = 1000
    retained_messages: Annotated[int, Field(ge=1)] = 10_000
    retained_bytes: Annotated[int, Field(ge=1024)] = 32 * MiB
    sessions: Annotated[int, Field(ge=1)] = 1000


class User(_Frozen):
    """Somebody who may connect.

    Attributes:
        name: the identity that topics name.
        role: which rules apply.
        secret_hash: see `ispine.broker.credentials.hash_secret`.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    role: str
    secret_hash: Annotated[str, Field(pattern=FORMAT, repr=False)]


class Rule(_Frozen):
    """What somebody may do. What no rule allows is forbidden.

    Attributes:
        action: `publish`, or `subscribe`, which includes being delivered to.
        topic_filter: an MQTT filter; `{id}` stands for the client's own identity.
        role: only for identities of this role; None for every role.
        identity: only for this identity; None for every one.
    """

    action: Action
    topic_filter: str
    role: str | None = None
    identity: Annotated[str, Field(pattern=_NAME)] | None = None

    @field_validator("topic_filter")
    @classmethod
    def _is_filter(cls, value: str) -> str:
        if not value or _FILTER.fullmatch(value) is None:
            raise ValueError(f"expected an MQTT topic filter; got {value[:80]!r}")
        return value


class BrokerConfig(_Frozen):
    """How the broker runs.

    Attributes:
        engine: `auto` takes `mosquitto` where that program is installed and new enough, else
            `embedded`; `external` is somebody else's, at `url`.
        host: address to listen on; loopback unless told otherwise.
        port: TCP port, 0 takes a free one.
        ws_port: port for MQTT over WebSocket, None for no such listener.
        ws_origins: web pages, beside those of this machine's own addresses, that may connect
            (`https://panel.example`).
        url: of the broker, for the engine `external`.
        anonymous: who may connect without a name: nobody, loopback addresses, or everybody.
        anonymous_role: which rules apply to them.
        users: who may connect with a name and a secret.
        rules: what each may do; without any rule everybody may do everything.
        limits: what clients may use.
    """

    engine: EngineName = "auto"
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 1883
    ws_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    ws_origins: tuple[str, ...] = ()
    url: Annotated[str, Field(repr=False)] = ""
    anonymous: Anonymous = "loopback"
    anonymous_role: str = "wearable"
    users: tuple[User, ...] = ()
    rules: tuple[Rule, ...] = ()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [user.name for user in self.users]
        if len(set(names)) != len(names):
            raise ValueError("expected each user once; a name is there twice")
        return self
