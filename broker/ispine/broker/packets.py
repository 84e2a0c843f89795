"""MQTT 3.1.1 packets: amqtt's codec for the rare ones, bytes for the hot path.

PUBLISH and its acknowledgements are read and written here, without a stream and without a copy
that is not needed. CONNECT, SUBSCRIBE and UNSUBSCRIBE are read with amqtt's packet classes.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from amqtt.adapters import BufferReader
from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket

from ispine.protocol.link import Will

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 10, 11, 12, 13, 14

ACCEPTED, BAD_VERSION, BAD_CLIENT_ID, UNAVAILABLE, BAD_CREDENTIALS, NOT_AUTHORISED = range(6)
PINGRESP_BYTES = b"\xd0\x00"
PLAIN_PUBLISH = PUBLISH << 4
MAX_HEADER_BYTES = 5
CONTROL_BYTES = 64 * 1024
_READ_ERRORS = (
    AMQTTError,
    CodecError,
    MQTTError,
    NoDataError,
    ValueError,
    IndexError,
    TypeError,
)


class Malformed(Exception):
    """A packet that MQTT 3.1.1 does not allow; the connection is closed.

    Attributes:
        reason: a short name for the counter.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Connect:
    """A client introduces itself."""

    client_id: str
    is_clean: bool
    keepalive_s: int
    username: str | None
    password: str | None
    will: Will | None
    will_qos: int
    will_retain: bool
    version: int


class Publish(NamedTuple):
    """A message as a client sent it.

    Attributes:
        payload: a view of the packet.
        is_plain: the packet can be sent on as it is: QoS 0, no flag, nothing wasted in its header.
    """

    topic: str
    payload: memoryview
    qos: int
    retain: bool
    mid: int
    is_plain: bool


def _drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Run amqtt's coroutine on a buffer: it never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise Malformed("short packet")


def _text(value: object) -> str:
    # amqtt turns what is not UTF-8 into the text of a Python bytes literal.
    if not isinstance(value, str) or value.startswith(("b'", 'b"')) or "\0" in value:
        raise Malformed("bad utf-8")
    return value


def _check_fields(body: bytes, count: int) -> None:
    """`count` strings with their lengths fill the body; amqtt makes up those that are missing."""
    start = 0
    for _ in range(count):
        start += 2 + int.from_bytes(body[start : start + 2], "big")
    if start != len(body):
        raise Malformed("bad CONNECT")


def read_connect(packet: bytes) -> Connect:
    """Read a whole CONNECT packet.

    Raises:
        Malformed: it breaks MQTT 3.1.1.
    """
    try:
        read = _drive(ConnectPacket.from_stream(BufferReader(packet)))
        header, payload = read.variable_header, read.payload
    except _READ_ERRORS as error:
        raise Malformed("bad CONNECT") from error
    if header.proto_name not in ("MQTT", "MQIsdp") or header.reserved_flag or header.will_qos > 2:
        raise Malformed("bad CONNECT")
    if header.password_flag and not header.username_flag:
        raise Malformed("bad CONNECT")
    fields = 1 + 2 * header.will_flag + header.username_flag + header.password_flag
    start = packet.index(header.proto_name.encode()) + len(header.proto_name) + 4
    _check_fields(packet[start:], fields)
    will = None
    if header.will_flag:
        if payload.will_topic is None or payload.will_message is None:
            raise Malformed("bad CONNECT")
        will = Will(_text(payload.will_topic), bytes(payload.will_message))
    is_nameless = bool(payload.client_id_is_random)
    return Connect(
        "" if is_nameless else _text(payload.client_id),
        bool(header.clean_session_flag),
        int(header.keep_alive),
        _text(payload.username) if header.username_flag else None,
        _text(payload.password) if header.password_flag else None,
        will,
        int(header.will_qos),
        bool(header.will_retain_flag),
        int(header.proto_level),
    )


def read_subscribe(packet: bytes) -> tuple[int, list[tuple[str, int]]]:
    """Packet id and filters with their QoS.

    Raises:
        Malformed: it breaks MQTT 3.1.1.
    """
    try:
        read = _drive(SubscribePacket.from_stream(BufferReader(packet)))
        mid, topics = int(read.variable_header.packet_id), list(read.payload.topics)
    except _READ_ERRORS as error:
        raise Malformed("bad SUBSCRIBE") from error
    if packet[0] & 0x0F != 2 or not topics or not mid or any(qos > 2 for _, qos in topics):
        raise Malformed("bad SUBSCRIBE")
    if not packet.endswith(topics[-1][0].encode() + bytes((topics[-1][1],))):
        raise Malformed("bad SUBSCRIBE")
    return mid, [(check_filter(_text(topic)), qos) for topic, qos in topics]


def read_unsubscribe(packet: bytes) -> tuple[int, list[str]]:
    """Packet id and filters.

    Raises:
        Malformed: it breaks MQTT 3.1.1.
    """
    try:
        read = _drive(UnsubscribePacket.from_stream(BufferReader(packet)))
        mid, topics = int(read.variable_header.packet_id), list(read.payload.topics)
    except _READ_ERRORS as error:
        raise Malformed("bad UNSUBSCRIBE") from error
    if packet[0] & 0x0F != 2 or not topics or not mid:
        raise Malformed("bad UNSUBSCRIBE")
    if not packet.endswith(topics[-1].encode()):
        raise Malformed("bad UNSUBSCRIBE")
    return mid, [_text(topic) for topic in topics]


def check_filter(topic_filter: str) -> str:
    """Return a legal filter unchanged.

    Raises:
        Malformed: empty, or a wildcard where none may stand.
    """
    levels = topic_filter.split("/")
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            raise Malformed("bad filter")
        if "+" in level and level != "+":
            raise Malformed("bad filter")
    if not topic_filter or len(topic_filter.encode()) > 1024:
        raise Malformed("bad filter")
    return topic_filter


def read_publish(packet: bytes | bytearray, body: int) -> Publish:
    """Read a whole PUBLISH packet; the payload is not copied.

    Args:
        packet: all of it.
        body: where the fixed header ends.

    Raises:
        Malformed: it breaks MQTT 3.1.1.
    """
    first = packet[0]
    qos = (first >> 1) & 3
    end = body + 2 + int.from_bytes(packet[body : body + 2], "big")
    start = end + 2 if qos else end
    if qos == 3 or start > len(packet) or len(packet) < body + 2:
        raise Malformed("bad PUBLISH")
    try:
        topic = packet[body + 2 : end].decode()
    except UnicodeDecodeError as error:
        raise Malformed("bad utf-8") from error
    mid = int.from_bytes(packet[end:start], "big")
    if qos and not mid:
        raise Malformed("bad PUBLISH")
    is_plain = first == PLAIN_PUBLISH and body == 1 + _length_size(len(packet) - body)
    return Publish(topic, memoryview(packet)[start:], qos, bool(first & 1), mid, is_plain)


def read_mid(packet: memoryview) -> int:
    """The packet id of an acknowledgement.

    Raises:
        Malformed: it is not four bytes.
    """
    if len(packet) != 4:
        raise Malformed("bad acknowledgement")
    return int.from_bytes(packet[2:], "big")


def _length_size(size: int) -> int:
    if size < 128:
        return 1
    if size < 16_384:
        return 2
    return 3 if size < 2_097_152 else 4


def _length(size: int) -> bytes:
    out = bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        out.append(low | 0x80 if size else low)
        if not size:
            return bytes(out)


def publish_bytes(
    topic: str,
    payload: bytes | memoryview,
    qos: int = 0,
    *,
    mid: int = 0,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """A PUBLISH packet; the payload is copied once."""
    name = topic.encode()
    size = 2 + len(name) + (2 if qos else 0) + len(payload)
    first = 0x30 | (dup << 3) | (qos << 1) | retain
    parts: list[bytes | memoryview] = [
        bytes((first,)),
        _length(size),
        len(name).to_bytes(2, "big"),
        name,
    ]
    if qos:
        parts.append(mid.to_bytes(2, "big"))
    parts.append(payload)
    return b"".join(parts)


def ack_bytes(kind: int, mid: int) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK."""
    flags = 2 if kind == PUBREL else 0
    return bytes((kind << 4 | flags, 2)) + mid.to_bytes(2, "big")


def connack_bytes(code: int, *, is_present: bool = False) -> bytes:
    """CONNACK."""
    return bytes((CONNACK << 4, 2, int(is_present), code))


def suback_bytes(mid: int, codes: list[int]) -> bytes:
    """SUBACK: granted QoS per filter, 0x80 for a refused one."""
    return bytes((SUBACK << 4,)) + _length(2 + len(codes)) + mid.to_bytes(2, "big") + bytes(codes)


def split(
    view: memoryview, start: int, limit_of: Callable[[int], int]
) -> tuple[int, int, int] | None:
    """Find the packet that begins at `start`.

    Args:
        view: what has arrived.
        start: offset of its first byte.
        limit_of: the largest packet with this first byte, asked before the packet has arrived; may
            raise Malformed.

    Returns:
        First byte, size of the fixed header and size of the whole packet (which may lie beyond the
        view), or None while the fixed header is not whole.

    Raises:
        Malformed: the length is not one, or above the limit.
    """
    size = shift = 0
    for index in range(1, MAX_HEADER_BYTES):
        if start + index >= len(view):
            return None
        byte = view[start + index]
        size |= (byte & 0x7F) << shift
        if not byte & 0x80:
            first = view[start]
            if size + index + 1 > limit_of(first):
                raise Malformed("packet too large")
            return first, index + 1, size + index + 1
        shift += 7
    raise Malformed("bad length")
