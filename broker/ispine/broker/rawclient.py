"""A small MQTT 3.1.1 client on a blocking socket, for self-tests, contract tests and benchmarks.

It shares no code with the broker, waits where it is told to, and can send what no proper client
would: so it shows what a broker really does.
"""

import socket
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Received:
    """One PUBLISH as it arrived."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    mid: int = 0


@dataclass(frozen=True, slots=True)
class LastWill:
    """A will as CONNECT carries it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Closed(Exception):
    """The broker closed the connection."""


class Silence(Exception):
    """Nothing came in time."""


def text(value: str | bytes) -> bytes:
    """A string with its length before it."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, body: bytes) -> bytes:
    """A packet: first byte, remaining length, body."""
    size, length = len(body), bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        length.append(low | 0x80 if size else low)
        if not size:
            return bytes((first,)) + bytes(length) + body


def connect_packet(
    client_id: str = "",
    *,
    clean: bool = True,
    keepalive_s: int = 0,
    username: str | None = None,
    password: str | None = None,
    will: LastWill | None = None,
) -> bytes:
    """CONNECT."""
    flags, tail = 2 * clean, text(client_id)
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        tail += text(will.topic) + text(will.payload)
    if username is not None:
        flags |= 0x80
        tail += text(username)
    if password is not None:
        flags |= 0x40
        tail += text(password)
    return packet(0x10, text("MQTT") + bytes((4, flags)) + keepalive_s.to_bytes(2, "big") + tail)


def publish_packet(
    topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, mid: int = 1
) -> bytes:
    """PUBLISH."""
    number = mid.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic) + number + payload)


class RawClient:
    """One connection.

    Args:
        port: TCP port.
        host: address.
        timeout_s: for every wait that does not say otherwise.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 5.0) -> None:
        self.sock = socket.create_connection((host, port), timeout=timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout_s = timeout_s
        self._data = bytearray()
        self._messages: deque[Received] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket without a goodbye."""
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises:
            Closed: the broker has closed the connection.
        """
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def connect(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        keepalive_s: int = 0,
        username: str | None = None,
        password: str | None = None,
        will: LastWill | None = None,
    ) -> tuple[int, bool]:
        """Introduce; the code of the answer and whether a session was there."""
        self.send(
            connect_packet(
                client_id,
                clean=clean,
                keepalive_s=keepalive_s,
                username=username,
                password=password,
                will=will,
            )
        )
        body = self._expect(2)
        return body[1], bool(body[0])

    def disconnect(self) -> None:
        """Say goodbye and close."""
        self.send(b"\xe0\x00")
        self.close()

    def subscribe(self, *topic_filters: str, qos: int = 0, mid: int = 1) -> list[int]:
        """Subscribe; the granted QoS of each filter, 128 for a refusal."""
        body = mid.to_bytes(2, "big")
        for topic_filter in topic_filters:
            body += text(topic_filter) + bytes((qos,))
        self.send(packet(0x82, body))
        return list(self._expect(9)[2:])

    def unsubscribe(self, topic_filter: str, *, mid: int = 1) -> None:
        """Unsubscribe and wait for the answer."""
        self.send(packet(0xA2, mid.to_bytes(2, "big") + text(topic_filter)))
        self._expect(11)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, mid: int = 1
    ) -> None:
        """Publish; at QoS 1 and 2 wait until the broker has taken it."""
        self.send(publish_packet(topic, payload, qos, retain=retain, mid=mid))
        if qos == 1:
            self._expect(4)
        elif qos == 2:
            self._expect(5)
            self.send(packet(0x62, mid.to_bytes(2, "big")))
            self._expect(7)

    def ping(self) -> float:
        """Seconds until the answer to a PINGREQ: all that was sent before has been handled."""
        started = time.monotonic()
        self.send(b"\xc0\x00")
        self._expect(13)
        return time.monotonic() - started

    def acknowledge(self, message: Received) -> None:
        """PUBACK."""
        self.send(packet(0x40, message.mid.to_bytes(2, "big")))

    def message(self, timeout_s: float | None = None, *, ack: bool = True) -> Received:
        """The next message.

        Raises:
            Silence: none came in time.
            Closed: the broker closed the connection.
        """
        while not self._messages:
            first, body = self.read(timeout_s)
            self._keep(first, body)
        found = self._messages.popleft()
        if found.qos == 1 and ack:
            self.acknowledge(found)
        return found

    def messages(self, *, ack: bool = True) -> list[Received]:
        """All that has been sent to this client until now."""
        self.ping()
        found = list(self._messages)
        self._messages.clear()
        for each in found:
            if each.qos == 1 and ack:
                self.acknowledge(each)
        return found

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the broker closes the connection within a time."""
        ends = time.monotonic() + seconds
        try:
            while True:
                first, body = self.read(max(0.01, ends - time.monotonic()))
                self._keep(first, body)
        except Closed:
            return True
        except Silence:
            return False

    def read(self, timeout_s: float | None = None) -> tuple[int, bytes]:
        """The next packet: first byte and body.

        Raises:
            Silence: none came in time.
            Closed: the broker closed the connection.
        """
        ends = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while (found := self._cut()) is None:
            left = ends - time.monotonic()
            if left <= 0:
                raise Silence
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError as error:
                raise Silence from error
            except ConnectionResetError as error:
                raise Closed from error
            if not data:
                raise Closed
            self._data += data
        return found

    def _cut(self) -> tuple[int, bytes] | None:
        size = shift = 0
        for index in range(1, min(5, len(self._data))):
            size |= (self._data[index] & 0x7F) << shift
            shift += 7
            if not self._data[index] & 0x80:
                end = index + 1 + size
                if len(self._data) < end:
                    return None
                first, body = self._data[0], bytes(self._data[index + 1 : end])
                del self._data[:end]
                return first, body
        return None

    def _expect(self, kind: int) -> bytes:
        while True:
            first, body = self.read()
            if first >> 4 == kind:
                return body
            self._keep(first, body)

    def _keep(self, first: int, body: bytes) -> None:
        if first >> 4 != 3:
            return
        qos = first >> 1 & 3
        end = 2 + int.from_bytes(body[:2], "big")
        start = end + (2 if qos else 0)
        self._messages.append(
            Received(
                body[2:end].decode(),
                body[start:],
                qos,
                bool(first & 1),
                bool(first & 8),
                int.from_bytes(body[end:start], "big"),
            )
        )
