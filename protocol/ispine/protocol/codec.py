"""Frames: 0xC1, the version, one msgpack map.

0xC1 is the one byte that msgpack never begins with, so a frame cannot be mistaken for JSON (which
begins with a brace) or for a raw photograph (known by its signature). Lengths, depth, types and
ranges are checked before anything is built from them; extension types are refused.

The checks are read from the dataclasses in `messages.py` once, at import.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgpack

from ispine.protocol.errors import LocalProtocolError, RemoteProtocolError, TooLarge
from ispine.protocol.ids import check_id
from ispine.protocol.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Assignment,
    Cancel,
    Chunk,
    Control,
    Head,
    Heartbeat,
    Limit,
    Options,
    Reply,
    Result,
    Task,
    TaskEvent,
)

MAGIC = 0xC1
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_MAP_ENTRIES = 128
MAX_LIST_ENTRIES = 256
MAX_OPTIONS = 64

_PREFIX = bytes((MAGIC, PROTOCOL_VERSION))
_OVERHEAD_BYTES = 64 * 1024

Check = Callable[[str, object], object]


def _fail(name: str, expected: str, value: object) -> RemoteProtocolError:
    shown = type(value).__name__ if isinstance(value, bytes | dict | list) else repr(value)[:40]
    return RemoteProtocolError(f"expected {name} to be {expected}; got {shown}")


def _check_number(kind: type, limit: Limit) -> Check:
    wanted = f"{'an integer' if kind is int else 'a number'} from {limit.low:g} to {limit.high:g}"

    def check(name: str, value: object) -> object:
        if type(value) is int or (kind is float and type(value) is float):
            number = kind(value)
            if math.isfinite(number) and limit.low <= number <= limit.high:
                return number
        raise _fail(name, wanted, value)

    return check


def _check_text(limit: Limit) -> Check:
    most = int(limit.high)

    def check(name: str, value: object) -> object:
        if type(value) is not str or len(value) > most:
            raise _fail(name, f"text of at most {most} characters", value)
        return value

    return check


def _check_id(name: str, value: object) -> object:
    if type(value) is not str:
        raise _fail(name, "an id", value)
    return check_id(value, name)


def _check_bytes(name: str, value: object) -> object:
    if type(value) is not bytes:
        raise _fail(name, "bytes", value)
    return value


def _check_bool(name: str, value: object) -> object:
    if type(value) is not bool:
        raise _fail(name, "true or false", value)
    return value


def _check_choice(choices: tuple[object, ...]) -> Check:
    wanted = "one of " + ", ".join(map(str, choices))

    def check(name: str, value: object) -> object:
        if type(value) is not str or value not in choices:
            raise _fail(name, wanted, value)
        return value

    return check


def _check_list(item: Check) -> Check:
    def check(name: str, value: object) -> object:
        if type(value) is not list or len(value) > MAX_LIST_ENTRIES:
            raise _fail(name, f"a list of at most {MAX_LIST_ENTRIES} entries", value)
        return tuple(item(name, entry) for entry in value)

    return check


def check_options(name: str, value: object) -> Options:
    """Check a map of short text to scalars.

    Raises:
        RemoteProtocolError: not a map, more than 64 entries, or an entry that is not a scalar.
    """
    if type(value) is not dict or len(value) > MAX_OPTIONS:
        raise _fail(name, f"a map of at most {MAX_OPTIONS} entries", value)
    for key, entry in value.items():
        if type(key) is not str or len(key) > 64:
            raise _fail(f"a key of {name}", "text of at most 64 characters", key)
        if entry is not None and type(entry) not in (str, int, float, bool):
            raise _fail(f"{name}[{key!r}]", "text, a number, true, false or null", entry)
    return value


def _check_for(hint: Any) -> Check:
    if hint is bytes:
        return _check_bytes
    if hint is bool:
        return _check_bool
    if hint == Options:
        return check_options
    if get_origin(hint) is Literal:
        return _check_choice(get_args(hint))
    if get_origin(hint) is tuple:
        return _check_list(_check_for(get_args(hint)[0]))
    return _check_annotated(hint)


def _check_annotated(hint: Any) -> Check:
    base, mark = get_args(hint) if get_origin(hint) is Annotated else (hint, Limit())
    if mark == "id":
        return _check_id
    if base is str:
        return _check_text(mark if mark.high <= 2**31 else Limit(high=128))
    return _check_number(base, mark)


@dataclass(frozen=True, slots=True)
class Schema:
    """How one message type stands on the wire.

    Attributes:
        name: value of `type` in the map.
        checks: field name to its check.
        defaults: optional fields and the value that is left out on the wire.
    """

    name: str
    cls: type
    checks: dict[str, Check]
    defaults: dict[str, object]


def _schema(name: str, cls: type) -> Schema:
    hints = get_type_hints(cls, include_extras=True)
    defaults: dict[str, object] = {}
    for entry in fields(cls):
        if entry.default is not MISSING:
            defaults[entry.name] = entry.default
        elif entry.default_factory is not MISSING:
            defaults[entry.name] = entry.default_factory()
    return Schema(name, cls, {e.name: _check_for(hints[e.name]) for e in fields(cls)}, defaults)


SCHEMAS: dict[str, Schema] = {
    name: _schema(name, cls)
    for name, cls in (
        ("task", Task),
        ("assignment", Assignment),
        ("reply", Reply),
        ("result", Result),
        ("event", TaskEvent),
        ("cancel", Cancel),
        ("heartbeat", Heartbeat),
        ("control", Control),
        ("chunk", Chunk),
    )
}
HEAD_SCHEMA = _schema("head", Head)
_BY_CLASS = {schema.cls: schema for schema in SCHEMAS.values()}


def _put(into: dict[str, object], schema: Schema, message: object) -> None:
    defaults = schema.defaults
    for name in schema.checks:
        value = getattr(message, name)
        if name not in defaults or value != defaults[name]:
            into[name] = value


def encode(message: AnyMessage, head: Head) -> bytes:
    """One frame.

    Raises:
        LocalProtocolError: the message holds something that msgpack cannot carry.
    """
    schema = _BY_CLASS[type(message)]
    body: dict[str, object] = {"type": schema.name}
    _put(body, HEAD_SCHEMA, head)
    _put(body, schema, message)
    try:
        packed: bytes = msgpack.packb(body, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(
            f"expected a {schema.name} of plain values; {error}; convert them first"
        ) from error
    return _PREFIX + packed


def is_frame(payload: bytes) -> bool:
    """Whether `payload` begins like a frame of any version."""
    return len(payload) > 1 and payload[0] == MAGIC


def _refuse_extension(code: int, _data: bytes) -> object:
    raise RemoteProtocolError(f"expected no msgpack extension types; got type {code}")


def _unpack(payload: bytes) -> dict[str, object]:
    if len(payload) > MAX_MESSAGE_BYTES + _OVERHEAD_BYTES:
        raise TooLarge(what="a message", limit=MAX_MESSAGE_BYTES, seen=len(payload))
    if len(payload) < 3 or payload[0] != MAGIC:
        raise RemoteProtocolError(
            f"expected a frame beginning with 0xC1; got {payload[:4].hex() or 'nothing'}"
        )
    if payload[1] != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"expected protocol version {PROTOCOL_VERSION}; got {payload[1]};"
            f" upgrade the {'receiver' if payload[1] > PROTOCOL_VERSION else 'sender'}"
        )
    try:
        body = msgpack.unpackb(
            memoryview(payload)[2:],
            raw=False,
            strict_map_key=True,
            max_array_len=MAX_LIST_ENTRIES,
            max_map_len=MAX_MAP_ENTRIES,
            ext_hook=_refuse_extension,
        )
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise RemoteProtocolError(f"expected one msgpack map; {error or type(error)}") from error
    if type(body) is not dict:
        raise RemoteProtocolError(f"expected a msgpack map; got {type(body).__name__}")
    return body


def _take(schema: Schema, body: dict[str, object]) -> Any:
    values = {}
    for name, check in schema.checks.items():
        if name in body:
            values[name] = check(name, body[name])
        elif name not in schema.defaults:
            raise RemoteProtocolError(f"expected a {schema.name} with {name}; it is missing")
    return schema.cls(**values)


def decode(payload: bytes) -> tuple[Head, AnyMessage]:
    """Read one frame from an untrusted peer.

    Raises:
        RemoteProtocolError: not a frame of this version, or a field that is missing, of the wrong
            type or out of range; `TooLarge` above the limits.
    """
    body = _unpack(payload)
    schema = SCHEMAS.get(str(body.get("type")))
    if schema is None:
        raise RemoteProtocolError(
            f"expected a type out of {', '.join(SCHEMAS)}; got {str(body.get('type'))[:40]!r}"
        )
    return _take(HEAD_SCHEMA, body), _take(schema, body)
