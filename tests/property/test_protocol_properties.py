"""The codec: every message survives a round trip, and no bytes do harm."""

from hypothesis import given
from hypothesis import strategies as st

from ispine.protocol.codec import SCHEMAS, decode, encode
from ispine.protocol.errors import RemoteProtocolError
from ispine.protocol.ids import Capability, ClientId
from ispine.protocol.messages import Chunk, Head, Reply, Scalar, Task
from ispine.protocol.plain import read_plain_task
from ispine.protocol.topics import TaskAddress

ids = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
scalars: st.SearchStrategy[Scalar] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=20),
    st.floats(allow_nan=False, allow_infinity=False),
)
options = st.dictionaries(st.text(max_size=8), scalars, max_size=5)
heads = st.builds(Head, ids, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
tasks = st.builds(
    Task, ids, ids, ids, st.binary(max_size=200), st.integers(1, 86_400_000), options=options
)
replies = st.builds(
    Reply,
    st.sampled_from(["accepted", "progress", "done", "failed", "missing"]),
    ids,
    ids,
    st.integers(1, 1000),
    ids,
    missing=st.tuples(st.integers(0, 63)),
    compute_ms=st.floats(0, 1e9),
)


@given(heads, tasks | replies)
def test_every_message_survives_the_round_trip(head: Head, message: Task | Reply) -> None:
    assert decode(encode(message, head)) == (head, message)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_or_read(payload: bytes) -> None:
    for candidate in (payload, b"\xc1\x01" + payload):
        try:
            decode(candidate)
        except RemoteProtocolError:
            continue


@given(heads, tasks, st.data())
def test_a_damaged_frame_is_refused_or_read(head: Head, task: Task, data: st.DataObject) -> None:
    frame = bytearray(encode(task, head))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, message = decode(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    except RemoteProtocolError:
        return
    assert type(message) in {schema.cls for schema in SCHEMAS.values()}


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda t: ("{" + t).encode()))
def test_arbitrary_plain_payloads_are_refused_or_read(payload: bytes) -> None:
    address = TaskAddress(Capability("detect"), ClientId("c"), None)
    try:
        read_plain_task(payload, address, "t")
    except RemoteProtocolError:
        return


def test_a_chunk_is_a_message() -> None:
    chunk = Chunk("t", 0, 0, 1, 3, b"abc")
    assert decode(encode(chunk, Head("s")))[1] == chunk
