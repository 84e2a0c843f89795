"""Plain MQTT, without an SDK: raw media or a JSON object as a task, JSON as the result.

A JPEG, PNG, WebP or WAV is known by its full signature, a JSON object by its brace. A JSON task is
`{"data": <base64>, "ttl_ms": 5000, "content_type": "image/jpeg", "options": {…}}`, all but `data`
or `text` optional; the task id stands in the topic or is made by the hub.
"""

import base64
import binascii
import json
import math

from ispine.protocol.codec import MAX_MESSAGE_BYTES, check_options
from ispine.protocol.errors import RemoteProtocolError, TooLarge
from ispine.protocol.messages import MAX_TTL_MS, Priority, Result, Task, TaskMode
from ispine.protocol.topics import TaskAddress

DEFAULT_TTL_MS = 5_000
MAX_JSON_BYTES = 12 * 1024 * 1024
JSON_TYPE = "application/json"
BYTES_TYPE = "application/octet-stream"

_KEYS = {"data", "text", "ttl_ms", "content_type", "mode", "priority", "stream", "options"}


def sniff(data: bytes) -> str | None:
    """Content type of raw media by its full signature, None when it is none of them."""
    if data[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    return None


def read_plain_task(payload: bytes, address: TaskAddress, task_id: str) -> Task:
    """The task in a payload that is not a frame.

    Args:
        payload: raw media or a JSON object.
        address: what the topic said.
        task_id: the id from the topic, or a fresh one.

    Raises:
        RemoteProtocolError: neither media nor a JSON task.
    """
    if len(payload) > MAX_JSON_BYTES:
        raise TooLarge(what="a task", limit=MAX_MESSAGE_BYTES, seen=len(payload))
    media = sniff(payload)
    if media is not None:
        _check_size(payload)
        return Task(task_id, address.client_id, address.capability, payload, DEFAULT_TTL_MS, media)
    if payload[:1].isspace() or payload[:1] == b"{":
        return _from_json(_read_object(payload), address, task_id)
    raise RemoteProtocolError(
        "expected a JPEG, PNG, WebP or WAV, a JSON object or an iSpine frame;"
        f" got {len(payload)} bytes beginning with {payload[:8].hex() or 'nothing'};"
        " send the file itself, for example with mosquitto_pub -f photo.jpg"
    )


def _check_size(data: bytes) -> None:
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLarge(what="a task", limit=MAX_MESSAGE_BYTES, seen=len(data))


def _read_object(payload: bytes) -> dict[str, object]:
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"expected a JSON object; {type(error).__name__}: {str(error)[:80]}"
        ) from error
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"expected a JSON object; got {type(body).__name__}")
    unknown = sorted(set(body) - _KEYS)
    if unknown:
        raise RemoteProtocolError(
            f"expected keys out of {', '.join(sorted(_KEYS))}; got {unknown[0][:40]!r}"
        )
    return body


def _from_json(body: dict[str, object], address: TaskAddress, task_id: str) -> Task:
    data, content_type = _data_of(body)
    _check_size(data)
    return Task(
        task_id,
        address.client_id,
        address.capability,
        data,
        _whole(body, "ttl_ms", 1, MAX_TTL_MS, DEFAULT_TTL_MS),
        content_type,
        _mode_of(body),
        _priority_of(body),
        _short(body, "stream", ""),
        False,
        check_options("options", body.get("options", {})),
    )


def _data_of(body: dict[str, object]) -> tuple[bytes, str]:
    text, data = body.get("text"), body.get("data")
    if isinstance(text, str) and data is None:
        return text.encode(), _short(body, "content_type", "text/plain")
    if not isinstance(data, str) or text is not None:
        raise RemoteProtocolError("expected a JSON task with one of data (base64) and text")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError(f"expected data to be base64; {error}") from error
    return raw, _short(body, "content_type", sniff(raw) or BYTES_TYPE)


def _whole(body: dict[str, object], name: str, low: int, high: int, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        raise RemoteProtocolError(f"expected {name} from {low} to {high}; got {str(value)[:40]}")
    return value


def _short(body: dict[str, object], name: str, default: str) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or len(value) > 128:
        raise RemoteProtocolError(f"expected {name} to be text of at most 128 characters")
    return value


def _mode_of(body: dict[str, object]) -> TaskMode:
    value = body.get("mode", "realtime")
    if value == "realtime":
        return "realtime"
    if value == "durable":
        return "durable"
    raise RemoteProtocolError(f"expected mode realtime or durable; got {str(value)[:40]!r}")


def _priority_of(body: dict[str, object]) -> Priority:
    return _whole(body, "priority", 0, 2, 1)


def result_json(result: Result) -> bytes:
    """A result for a client that speaks JSON.

    A JSON answer of the capability stands in `result` as it is, text in `text`, any other bytes as
    base64 in `data`.
    """
    head: dict[str, object] = {
        "task_id": result.task_id,
        "status": result.status,
        "device": result.device,
        "variant": result.variant,
        "total_ms": round(result.total_ms, 2),
        "compute_ms": round(result.compute_ms, 2),
    }
    if result.status != "done":
        head["error"] = {
            "code": result.code,
            "message": result.message,
            **dict(result.fields),
        }
    elif result.content_type == JSON_TYPE:
        return json.dumps(head).encode()[:-1] + b', "result": ' + result.data + b"}"
    elif result.content_type.startswith("text/"):
        head["text"] = result.data.decode(errors="replace")
    else:
        head["content_type"] = result.content_type
        head["data"] = base64.b64encode(result.data).decode()
    return json.dumps(head).encode()
