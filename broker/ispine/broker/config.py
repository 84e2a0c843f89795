"""Settings of a broker, with limits that suit a home."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ispine.protocol.link import MAX_PACKET_BYTES

EngineName = Literal["embedded", "external"]
Action = Literal["publish", "subscribe"]
MiB = 1024 * 1024


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Frozen):
    """What one client, one address and all together may use.

    Attributes:
        packet_bytes: largest MQTT packet; a larger one closes the connection.
        queue_bytes: what may wait for one client: two assembled tasks and some.
        queue_messages: how many QoS 1 messages may wait for one client.
        inflight: QoS 1 messages sent and not yet acknowledged, per client.
        connections: open connections, all together.
        connects_per_s: new connections per second of one address, after a burst of 3 s' worth.
        connect_s: seconds until CONNECT must have arrived.
        unfinished_bytes: memory of all packets that have not arrived whole.
        subscriptions: per client.
        retained_messages: all together.
        retained_bytes: all together.
        sessions: sessions kept for clients that are away.
    """

    packet_bytes: Annotated[int, Field(ge=1024)] = MAX_PACKET_BYTES
    queue_bytes: Annotated[int, Field(ge=1024)] = 17 * MiB
    queue_messages: Annotated[int, Field(ge=1)] = 1000
    inflight: Annotated[int, Field(ge=1, le=65000)] = 64
    connections: Annotated[int, Field(ge=1)] = 1000
    connects_per_s: Annotated[float, Field(gt=0)] = 200.0
    connect_s: Annotated[float, Field(gt=0)] = 5.0
    unfinished_bytes: Annotated[int, Field(ge=1024)] = 48 * MiB
    subscriptions: Annotated[int, Field(ge=1)] = 1000
    retained_messages: Annotated[int, Field(ge=1)] = 10_000
    retained_bytes: Annotated[int, Field(ge=1024)] = 32 * MiB
    sessions: Annotated[int, Field(ge=1)] = 1000


class User(_Frozen):
    """Somebody who may connect.

    Attributes:
        name: the identity that topics name.
        role: which rules apply.
        secret_sha256: hex SHA-256 of a random secret of at least 128 bits.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    role: str
    secret_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Rule(_Frozen):
    """What a role may do; `{id}` in the filter stands for the client's own identity."""

    role: str
    action: Action
    topic_filter: str


class BrokerConfig(_Frozen):
    """How the broker runs.

    Attributes:
        engine: `embedded` runs here; `external` is somebody else's, at `url`.
        host: address to listen on; loopback unless told otherwise.
        port: TCP port, 0 takes a free one.
        ws_port: port for MQTT over WebSocket, None for no such listener.
        url: of the broker, for the engine `external`.
        anonymous: who may connect without a name: nobody, loopback addresses, or everybody.
        anonymous_role: which rules apply to them.
        users: who may connect with a name and a secret.
        rules: what each role may do; without any rule everybody may do everything.
    """

    engine: EngineName = "embedded"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 1883
    ws_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    url: str = ""
    anonymous: Literal["nobody", "loopback", "everybody"] = "loopback"
    anonymous_role: str = "wearable"
    users: tuple[User, ...] = ()
    rules: tuple[Rule, ...] = ()
    limits: Limits = Limits()
