"""Plain MQTT clients: raw media or JSON in, JSON out."""

import base64
import json

import pytest

from ispine.protocol.errors import RemoteProtocolError, TooLarge
from ispine.protocol.ids import Capability, ClientId
from ispine.protocol.messages import Result
from ispine.protocol.plain import read_plain_task, result_json, sniff
from ispine.protocol.topics import TaskAddress

ADDRESS = TaskAddress(Capability("detect"), ClientId("glasses-1"), None)
JPEG = b"\xff\xd8\xff\xe0rest"


def test_media_is_known_by_its_full_signature() -> None:
    assert sniff(JPEG) == "image/jpeg"
    assert sniff(b"\x89PNG\r\n\x1a\nrest") == "image/png"
    assert sniff(b"RIFF1234WEBPrest") == "image/webp"
    assert sniff(b"RIFF1234WAVErest") == "audio/wav"
    assert sniff(b"\x89PNGnearly") is None
    assert sniff(b"") is None


def test_a_raw_photograph_is_a_task() -> None:
    task = read_plain_task(JPEG, ADDRESS, "t1")
    assert (task.capability, task.client_id, task.task_id) == ("detect", "glasses-1", "t1")
    assert task.data == JPEG
    assert task.content_type == "image/jpeg"


def test_a_json_object_is_a_task() -> None:
    body = {
        "data": base64.b64encode(JPEG).decode(),
        "ttl_ms": 300,
        "options": {"min_score": 0.4},
        "priority": 2,
    }
    task = read_plain_task(json.dumps(body).encode(), ADDRESS, "t1")
    assert (task.data, task.ttl_ms, task.priority) == (JPEG, 300, 2)
    assert task.content_type == "image/jpeg"
    assert task.options == {"min_score": 0.4}


def test_text_is_a_task_too() -> None:
    assert read_plain_task(b'{"text": "hello"}', ADDRESS, "t1").data == b"hello"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"hello",
        b"\0\0\0",
        b"{",
        b"{}",
        b"[1]",
        b'{"data": 1}',
        b'{"data": "***"}',
        b'{"data": "aGk=", "text": "x"}',
        b'{"text": "x", "ttl_ms": 0}',
        b'{"text": "x", "ttl_ms": -1}',
        b'{"text": "x", "ttl_ms": NaN}',
        b'{"text": "x", "ttl_ms": 1e300}',
        b'{"text": "x", "mode": "someday"}',
        b'{"text": "x", "priority": 9}',
        b'{"text": "x", "options": {"a": []}}',
        b'{"text": "x", "surprise": 1}',
        b'{"a":' * 100_000,
    ],
    ids=lambda payload: repr(payload[:24]),
)
def test_anything_else_is_refused_with_a_sentence(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected"):
        read_plain_task(payload, ADDRESS, "t1")


def test_a_photograph_above_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge):
        read_plain_task(JPEG + bytes(9_000_000), ADDRESS, "t1")


def test_a_json_answer_stands_in_the_result_as_it_is() -> None:
    result = Result(
        "t1", "c", "done", data=b'{"detections": []}', content_type="application/json", device="pi"
    )
    body = json.loads(result_json(result))
    assert body["result"] == {"detections": []}
    assert (body["status"], body["device"]) == ("done", "pi")


def test_bytes_are_base64_and_text_is_text() -> None:
    raw = Result("t1", "c", "done", data=b"\0\xff")
    assert base64.b64decode(json.loads(result_json(raw))["data"]) == b"\0\xff"
    text = Result("t1", "c", "done", data=b"hi", content_type="text/plain")
    assert json.loads(result_json(text))["text"] == "hi"


def test_an_error_says_what_happened() -> None:
    refused = Result(
        "t1", "c", "rejected", code="too_busy", message="expected", fields={"predicted_ms": 9}
    )
    error = json.loads(result_json(refused))["error"]
    assert error == {"code": "too_busy", "message": "expected", "predicted_ms": 9}
