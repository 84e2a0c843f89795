"""Frames: what goes in comes out, and nothing illegal gets through."""

import math

import msgpack
import pytest

from ispine.protocol.codec import MAX_MESSAGE_BYTES, decode, encode, is_frame
from ispine.protocol.errors import (
    BadId,
    LocalProtocolError,
    RemoteProtocolError,
    TooLarge,
    task_error,
)
from ispine.protocol.messages import Control, Head, Heartbeat, Reply, Task

HEAD = Head("glasses-1", 7, 8, 9, 1, "trace")
TASK = Task("t1", "glasses-1", "detect", b"jpeg", 150, options={"min_score": 0.5})


def frame_of(**changes: object) -> bytes:
    body = msgpack.unpackb(encode(TASK, HEAD)[2:]) | changes
    return b"\xc1\x01" + bytes(msgpack.packb(body))


def test_a_task_comes_back_as_it_was() -> None:
    assert decode(encode(TASK, HEAD)) == (HEAD, TASK)


def test_defaults_are_left_out_on_the_wire() -> None:
    body = msgpack.unpackb(encode(TASK, HEAD)[2:])
    assert "mode" not in body
    assert body["type"] == "task"


def test_unknown_fields_are_ignored() -> None:
    assert decode(frame_of(invented_later=1))[1] == TASK


@pytest.mark.parametrize(
    "changes",
    [
        {"ttl_ms": 0},
        {"ttl_ms": -5},
        {"ttl_ms": 1.5},
        {"ttl_ms": True},
        {"ttl_ms": 10**12},
        {"data": "text"},
        {"mode": "someday"},
        {"private": 1},
        {"priority": 3},
        {"options": {"a": [1]}},
        {"options": {1: 2}},
        {"options": {str(n): n for n in range(65)}},
        {"content_type": "x" * 129},
        {"type": "invented"},
        {"type": None},
        {"boot": -1},
    ],
)
def test_a_field_out_of_its_range_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="expected"):
        decode(frame_of(**changes))


@pytest.mark.parametrize("bad", ["", "a/b", "a+", "#", "a\0b", "x" * 65, "ü"])
def test_an_id_that_may_not_stand_in_a_topic_is_refused(bad: str) -> None:
    with pytest.raises(BadId):
        decode(frame_of(task_id=bad))


def test_a_missing_field_is_named() -> None:
    body = msgpack.unpackb(encode(TASK, HEAD)[2:])
    del body["capability"]
    with pytest.raises(RemoteProtocolError, match="capability"):
        decode(b"\xc1\x01" + msgpack.packb(body))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    reply = encode(Reply("done", "t", "c", 1, "lease"), HEAD)
    body = msgpack.unpackb(reply[2:]) | {"compute_ms": value}
    with pytest.raises(RemoteProtocolError, match="compute_ms"):
        decode(b"\xc1\x01" + msgpack.packb(body))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xc1\x01",
        b"{}",
        b"\xc1\x01\xc0",
        b"\xc1\x01" + b"\x91" * 10_000 + b"\xc0",
        b"\xc1\x01" + b"\x81\xa1a" * 10_000 + b"\xc0",
        b"\xc1\x01\xdd\xff\xff\xff\xff",
        b"\xc1\x01\xdf\xff\xff\xff\xff",
        b"\xc1\x01\xc6\xff\xff\xff\xff",
        b"\xc1\x01\x81\xa4type\xc7\x01\x05\x00",
        b"\xc1\x01\x81\xa4type\xd7\xff\x00\x00\x00\x00\x00\x00\x00\x01",
    ],
    ids=lambda payload: payload[:8].hex(),
)
def test_what_is_no_frame_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(payload)


def test_another_version_says_who_must_upgrade() -> None:
    newer = b"\xc1\x02" + encode(TASK, HEAD)[2:]
    with pytest.raises(RemoteProtocolError, match="upgrade the receiver"):
        decode(newer)


def test_a_message_above_the_limit_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(TooLarge):
        decode(b"\xc1\x01" + bytes(MAX_MESSAGE_BYTES + 1_000_000))


def test_our_own_mistake_is_a_local_error() -> None:
    strange = Task("t", "c", "detect", b"", 1, options={"a": object()})  # type: ignore[dict-item]
    with pytest.raises(LocalProtocolError):
        encode(strange, HEAD)


def test_lists_become_tuples() -> None:
    beat = Heartbeat("pi", 2, 0, ("a", "b"))
    assert decode(encode(beat, HEAD))[1] == beat
    control = Control("missing", "t", 1, missing=(1, 2))
    assert decode(encode(control, HEAD))[1] == control


def test_a_frame_is_told_from_media_and_json() -> None:
    assert is_frame(encode(TASK, HEAD))
    assert not is_frame(b"\xff\xd8\xff")
    assert not is_frame(b"{}")


def test_an_unknown_error_code_is_still_a_task_error() -> None:
    error = task_error("invented", "expected x", task_id="t")
    assert error.code == "rejected"
    assert error.fields["code"] == "invented"
