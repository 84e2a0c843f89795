"""A link over MQTT 3.1.1 with paho, driven by the asyncio event loop.

paho runs without its own thread: the loop watches its socket, so a handler runs on the loop and a
publish writes to the socket at once. TCP_NODELAY is set on every socket; paho does not do it, and
Nagle's algorithm then holds small packets back for 40 ms and more.
"""

import asyncio
import logging
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from ispine.protocol.errors import ConfigError, ConnectionLost, LocalProtocolError
from ispine.protocol.link import (
    Handler,
    Message,
    StateListener,
    Will,
    check_size,
    check_topic,
)
from ispine.protocol.topics import matches

log = logging.getLogger(__name__)

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
MAX_UNSENT_BYTES = 24 * 1024 * 1024
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
_REFUSED_FOR_GOOD = (
    "Bad user name or password",
    "Not authorized",
    "Client identifier not valid",
    "Unsupported protocol version",
)


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A parsed broker address: `mqtt|mqtts|ws|wss://[user:password@]host[:port][/path]`."""

    scheme: str
    host: str
    port: int
    path: str
    username: str | None
    password: str | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def is_tls(self) -> bool:
        """Whether the transport is encrypted."""
        return self.scheme in ("mqtts", "wss")


def parse_url(url: str) -> BrokerUrl:
    """Read a broker address.

    Raises:
        ConfigError: not of the form `mqtt://host[:port]`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"expected a URL like mqtt://host:1883; {error}") from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        shown = url.rsplit("@", 1)[-1][:80]
        raise ConfigError(
            f"expected a URL like mqtt://host:1883 (or mqtts, ws, wss); got {shown!r}"
        )
    return BrokerUrl(
        parts.scheme,
        parts.hostname,
        port or DEFAULT_PORTS[parts.scheme],
        parts.path,
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
    )


class MqttLink:
    """See `ispine.protocol.link.Link`.

    Args:
        url: see `parse_url`.
        client_id: MQTT client id; "" lets the broker choose.
        will: published by the broker when this client vanishes.
        username: overrides the one in the URL.
        password: overrides the one in the URL.
        tls: context for `mqtts` and `wss`; None uses the system's certificates.
        keepalive_s: longest silence before the broker drops the client.
        timeout_s: for connecting and for each subscription.
    """

    def __init__(
        self,
        url: str,
        *,
        client_id: str = "",
        will: Will | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        keepalive_s: int = 10,
        timeout_s: float = 5.0,
    ) -> None:
        self._url = parse_url(url)
        self._keepalive_s = keepalive_s
        self._timeout_s = timeout_s
        self._handlers: dict[str, tuple[Handler, int]] = {}
        self._listeners: list[StateListener] = []
        self._grants: dict[int, asyncio.Future[bool]] = {}
        self._unsent: dict[int, deque[int]] = {}
        self._unsent_bytes = 0
        self.dropped = 0
        self._connected = False
        self._closing = False
        self._arrived: deque[Message] = deque()
        self._is_flush_due = False
        self._is_watching_write = False
        self._reads_per_event = 1 if self._url.scheme == "mqtt" else 16
        self._answer: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = self._make_client(client_id, will, tls)
        name = username if username is not None else self._url.username
        if name is not None:
            secret = password if password is not None else self._url.password
            self._client.username_pw_set(name, secret)

    def _make_client(
        self, client_id: str, will: Will | None, tls: ssl.SSLContext | None
    ) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=True,
            protocol=MQTTProtocolVersion.MQTTv311,
            transport="websockets" if self._url.scheme in ("ws", "wss") else "tcp",
            reconnect_on_failure=False,
        )
        if self._url.scheme in ("ws", "wss"):
            client.ws_set_options(path=self._url.path or "/mqtt")
        if self._url.is_tls:
            client.tls_set_context(tls or ssl.create_default_context())
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        client.max_inflight_messages_set(1000)
        client.max_queued_messages_set(4000)
        client.connect_timeout = self._timeout_s
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_socket_open = self._on_socket_open
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_register_write
        client.on_socket_unregister_write = self._on_unregister_write
        return client

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now."""
        return self._connected

    @property
    def endpoint(self) -> str:
        """The URL without credentials."""
        return str(self._url)

    @property
    def raw_socket(self) -> socket.socket | None:
        """The TCP socket below any TLS or WebSocket wrapper, for tests of its options."""
        return _inner_socket(self._client.socket())

    async def connect(self) -> None:
        """See `ispine.protocol.link.Link.connect`."""
        self._loop = asyncio.get_running_loop()
        self._start(self._misc(), "mqtt-misc")
        try:
            await self._connect_once()
        except BaseException:
            await self.close()
            raise

    async def _connect_once(self) -> None:
        self._answer = self._loop.create_future()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._loop.run_in_executor(None, self._open_socket)
                await self._answer
        except (OSError, TimeoutError, paho.WebsocketConnectionError) as error:
            self._drop_socket()
            raise self._unreachable(error) from error
        finally:
            self._answer = None

    def _unreachable(self, error: Exception) -> Exception:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConfigError(
                f"expected a trusted certificate at {self._url}; {error.verify_message};"
                " pair this device again or install the hub's certificate"
            )
        reason = str(error) or f"no answer within {self._timeout_s:g} s"
        return ConnectionLost(
            f"expected an MQTT broker at {self._url}; {reason};"
            " start one with 'ispine hub' or set ISPINE_URL"
        )

    def _open_socket(self) -> None:
        self._client.connect(self._url.host, self._url.port, self._keepalive_s)

    def _drop_socket(self) -> None:
        sock = self._client.socket()
        if sock is not None:
            self._on_socket_close(self._client, None, sock)
            sock.close()

    async def close(self) -> None:
        """See `ispine.protocol.link.Link.close`."""
        self._closing = True
        if self._connected:
            self._client.disconnect()
            for _ in range(50):
                if self._client.socket() is None or not self._client.want_write():
                    break
                self._flush()
                await asyncio.sleep(0.01)
        self._drop_socket()
        self._lost()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Cut the connection without a goodbye, as a crash would; for tests and self-tests."""
        self._closing = True
        sock = self.raw_socket
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """See `ispine.protocol.link.Link.publish`."""
        check_topic(topic)
        check_size(payload)
        if not self._connected:
            raise ConnectionLost(f"expected a connection to {self._url}; it is down; try again")
        if qos == 0 and self._unsent_bytes > MAX_UNSENT_BYTES:
            self.dropped += 1
            return
        sent = self._client.publish(topic, payload, qos, retain)
        if sent.rc == MQTTErrorCode.MQTT_ERR_NO_CONN:
            # paho knows it before its callback has told this link.
            raise ConnectionLost(f"expected a connection to {self._url}; it is down; try again")
        if sent.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            self.dropped += 1
        elif sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise LocalProtocolError(f"publish failed: {paho.error_string(sent.rc)}")
        elif qos == 0 and not sent.is_published():
            self._unsent.setdefault(sent.mid, deque()).append(len(payload))
            self._unsent_bytes += len(payload)
        self._flush()

    async def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 0) -> None:
        """See `ispine.protocol.link.Link.subscribe`."""
        self._handlers[topic_filter] = (handler, qos)
        if not self._connected:
            raise ConnectionLost(f"expected a connection to {self._url}; it is down; try again")
        await self._grant(topic_filter, qos)

    async def _grant(self, topic_filter: str, qos: int) -> None:
        result, mid = self._client.subscribe(topic_filter, qos)
        if result != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise ConnectionLost(f"subscribe to {topic_filter}: {paho.error_string(result)}")
        future: asyncio.Future[bool] = self._loop.create_future()
        self._grants[mid] = future
        self._flush()
        try:
            async with asyncio.timeout(self._timeout_s):
                is_granted = await future
        except TimeoutError as error:
            raise ConnectionLost(
                f"expected {self._url} to grant {topic_filter} within {self._timeout_s:g} s"
            ) from error
        finally:
            self._grants.pop(mid, None)
        if not is_granted:
            raise ConnectionLost(
                f"{self._url} refuses the subscription to {topic_filter};"
                " this identity may not read it"
            )

    async def unsubscribe(self, topic_filter: str) -> None:
        """See `ispine.protocol.link.Link.unsubscribe`."""
        if self._handlers.pop(topic_filter, None) is not None and self._connected:
            self._client.unsubscribe(topic_filter)
            self._flush()

    def add_state_listener(self, listener: StateListener) -> None:
        """See `ispine.protocol.link.Link.add_state_listener`."""
        self._listeners.append(listener)

    # -- connection life -------------------------------------------------------------------------

    def _start(self, work: Any, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _misc(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self._client.socket() is not None:
                self._client.loop_misc()

    async def _reconnect(self) -> None:
        delay_s = FIRST_RETRY_S
        while not self._closing:
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(LONGEST_RETRY_S, delay_s * 1.7)
            try:
                await self._connect_once()
                for topic_filter, (_, qos) in list(self._handlers.items()):
                    await self._grant(topic_filter, qos)
            except (ConnectionLost, ConfigError) as error:
                log.debug("reconnect failed", extra={"endpoint": str(self._url), "why": str(error)})
                self._drop_socket()
                self._connected = False
                continue
            log.info("reconnected", extra={"endpoint": str(self._url)})
            self._tell(True)
            return

    def _tell(self, is_connected: bool) -> None:
        for listener in list(self._listeners):
            listener(is_connected)

    def _lost(self) -> None:
        if not self._connected:
            return
        self._connected = False
        self._unsent.clear()
        self._unsent_bytes = 0
        for future in self._grants.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection to {self._url} was lost"))
        self._tell(False)
        if not self._closing:
            log.info("connection lost", extra={"endpoint": str(self._url)})
            self._start(self._reconnect(), "mqtt-reconnect")

    # -- paho's callbacks: all on the loop, but for the socket ones ------------------------------

    def _on_connect(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        answer = self._answer
        if answer is None or answer.done():
            return
        if reason.is_failure:
            text = str(reason)
            kind = ConfigError if text in _REFUSED_FOR_GOOD else ConnectionLost
            answer.set_exception(kind(f"{self._url} refuses the connection: {text}"))
        else:
            self._connected = True
            answer.set_result(None)

    def _on_disconnect(self, *_args: object) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLost(f"{self._url} closed the connection"))
        self._loop.call_soon_threadsafe(self._lost)

    def _on_subscribe(
        self, _client: object, _data: object, mid: int, codes: list[ReasonCode], _props: object
    ) -> None:
        future = self._grants.get(mid)
        if future is not None and not future.done():
            future.set_result(not codes[0].is_failure)

    def _on_publish(
        self, _client: object, _data: object, mid: int, _code: object, _props: object
    ) -> None:
        sizes = self._unsent.get(mid)
        if sizes:
            self._unsent_bytes -= sizes.popleft()
            if not sizes:
                del self._unsent[mid]

    def _on_message(self, _client: object, _data: object, received: paho.MQTTMessage) -> None:
        self._arrived.append(
            Message(received.topic, bytes(received.payload), received.qos, bool(received.retain))
        )

    def _dispatch(self) -> None:
        # After paho's callback, whose lock a publish from inside a handler would wait for forever.
        while self._arrived:
            self._dispatch_one(self._arrived.popleft())

    def _dispatch_one(self, message: Message) -> None:
        for topic_filter, (handler, _) in list(self._handlers.items()):
            if matches(topic_filter, message.topic):
                self._hand_over(handler, message)

    def _hand_over(self, handler: Handler, message: Message) -> None:
        try:
            handler(message)
        except Exception:  # the boundary: one bad message must not end the connection
            log.exception("handler failed", extra={"topic": message.topic})

    def _on_socket_open(self, _client: object, _data: object, sock: Any) -> None:
        inner = _inner_socket(sock)
        if inner is not None:
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.call_soon_threadsafe(self._watch, sock)

    def _watch(self, sock: Any) -> None:
        current: Any = self._client.socket()
        if current is sock and sock.fileno() >= 0:
            self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        # TLS and WebSocket wrappers hold bytes that the loop cannot see: read them out.
        for _ in range(self._reads_per_event):
            self._client.loop_read()
            self._dispatch()

    def _flush(self) -> None:
        self._is_flush_due = False
        self._client.loop_write()
        sock: Any = self._client.socket()
        if sock is None or sock.fileno() < 0:
            return
        if self._client.want_write() and not self._is_watching_write:
            self._is_watching_write = True
            self._loop.add_writer(sock.fileno(), self._flush)
        elif self._is_watching_write and not self._client.want_write():
            self._is_watching_write = False
            self._loop.remove_writer(sock.fileno())

    def _on_register_write(self, *_args: object) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_on_loop(self._loop.call_soon, self._flush)

    def _on_unregister_write(self, *_args: object) -> None:
        """Nothing: `_flush` stops watching."""

    def _on_socket_close(self, _client: object, _data: object, sock: Any) -> None:
        self._is_watching_write = False
        if sock.fileno() >= 0:
            self._call_on_loop(self._loop.remove_reader, sock.fileno())
            self._call_on_loop(self._loop.remove_writer, sock.fileno())

    def _call_on_loop(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            function(*args)
        else:
            self._loop.call_soon_threadsafe(function, *args)


def _inner_socket(sock: Any) -> socket.socket | None:
    for _ in range(4):
        if sock is None or isinstance(sock, socket.socket):
            return sock
        sock = getattr(sock, "_socket", None) or getattr(sock, "socket", None)
    return None


__all__ = ["BrokerUrl", "MqttLink", "parse_url"]
