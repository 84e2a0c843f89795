"""Messages that are too big for one packet travel in chunks of 256 KiB.

A frame above `CHUNK_BYTES` is cut; each piece is a `Chunk` message of its own. The receiver
joins the pieces in a `Reassembler` whose memory is bounded; a piece that stays away is asked for
once, then the whole is forgotten.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ispine.protocol.codec import MAX_MESSAGE_BYTES, encode
from ispine.protocol.errors import RemoteProtocolError, TooLarge
from ispine.protocol.ids import TaskId
from ispine.protocol.messages import AnyMessage, Chunk, Head

CHUNK_BYTES = 256 * 1024
FRAME_OVERHEAD_BYTES = 16 * 1024
MAX_CHUNKS = (MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES) // CHUNK_BYTES + 1

Key = tuple[str, int, TaskId, int]
"""(sender, boot, task, attempt)."""


class Stamper:
    """Numbers the messages of one sender and cuts the big ones.

    Args:
        sender: device, client or hub id.
        boot: from `ispine.protocol.ids.new_boot_id`.
        clock: returns `boot_ns`; a parameter so that tests and simulations can set it.
    """

    def __init__(self, sender: str, boot: int, clock: Callable[[], int]) -> None:
        self._head = Head(sender, boot)
        self._seq = 0
        self._clock = clock
        self.term = 0

    def head(self, trace: str = "") -> Head:
        """The head of the next message."""
        self._seq += 1
        first = self._head
        return Head(first.sender, first.boot, self._seq, self._clock(), self.term, trace)

    def frames(
        self, message: AnyMessage, *, trace: str = "", only: Iterable[int] | None = None
    ) -> list[bytes]:
        """The packets that carry `message`: one frame, or its chunks.

        Args:
            message: what to send.
            trace: joins the messages of one request.
            only: of a message that needs chunks, just these (asked for again).

        Raises:
            TooLarge: the message is above 8 MiB.
        """
        head = self.head(trace)
        frame = encode(message, head)
        if len(frame) <= CHUNK_BYTES:
            return [frame]
        if len(frame) > MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES:
            raise TooLarge(what="a message", limit=MAX_MESSAGE_BYTES, seen=len(frame))
        wanted = None if only is None else set(only)
        return [
            encode(chunk, head)
            for chunk in _cut(frame, message)
            if wanted is None or chunk.index in wanted
        ]


def _cut(frame: bytes, message: AnyMessage) -> Iterable[Chunk]:
    total = -(-len(frame) // CHUNK_BYTES)
    task_id = getattr(message, "task_id", "")
    attempt = getattr(message, "attempt", 0)
    for index in range(total):
        piece = frame[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        yield Chunk(task_id, attempt, index, total, len(frame), piece)


@dataclass(slots=True)
class _Partial:
    total: int
    size: int
    pieces: dict[int, bytes] = field(default_factory=dict)
    touched_ns: int = 0
    has_asked: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """Pieces to ask for, once."""

    sender: str
    task_id: TaskId
    attempt: int
    indices: tuple[int, ...]


class Reassembler:
    """Joins chunks from untrusted peers within a bound.

    Args:
        max_bytes: memory for all unfinished messages together.
        max_open_per_sender: unfinished messages of one sender.
        patience_ns: silence after which missing pieces are asked for, and after which again the
            message is forgotten.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 4 * MAX_MESSAGE_BYTES,
        max_open_per_sender: int = 4,
        patience_ns: int = 250_000_000,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_open = max_open_per_sender
        self._patience_ns = patience_ns
        self._open: dict[Key, _Partial] = {}
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Memory of the unfinished messages."""
        return self._held_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no message is unfinished, so that `expire` need not be called."""
        return not self._open

    def add(self, head: Head, chunk: Chunk, now_ns: int) -> bytes | None:
        """Take one piece; the whole frame when it was the last one, else None.

        Raises:
            RemoteProtocolError: the piece contradicts its own numbers or the earlier pieces;
                `TooLarge` where it would break a bound.
        """
        _check_shape(chunk)
        key = (head.sender, head.boot, TaskId(chunk.task_id), chunk.attempt)
        partial = self._open.get(key) or self._begin(key, chunk)
        if (partial.total, partial.size) != (chunk.total, chunk.size):
            self._forget(key)
            raise RemoteProtocolError(
                f"expected a chunk of {partial.total} pieces and {partial.size} bytes;"
                f" got {chunk.total} and {chunk.size}; send the message again"
            )
        partial.touched_ns = now_ns
        if chunk.index not in partial.pieces:
            self._reserve(key, len(chunk.data))
            partial.pieces[chunk.index] = chunk.data
        if len(partial.pieces) < partial.total:
            return None
        self._forget(key)
        return b"".join(partial.pieces[index] for index in range(partial.total))

    def _begin(self, key: Key, chunk: Chunk) -> _Partial:
        opened = sum(1 for other in self._open if other[0] == key[0])
        if opened >= self._max_open:
            raise RemoteProtocolError(
                f"expected at most {self._max_open} unfinished messages of one sender;"
                f" got one more; finish them first"
            )
        partial = self._open[key] = _Partial(chunk.total, chunk.size)
        return partial

    def _reserve(self, key: Key, size: int) -> None:
        if self._held_bytes + size > self._max_bytes:
            seen = self._held_bytes + size
            self._forget(key)
            raise TooLarge(what="all unfinished messages", limit=self._max_bytes, seen=seen)
        self._held_bytes += size

    def _forget(self, key: Key) -> None:
        partial = self._open.pop(key)
        self._held_bytes -= sum(map(len, partial.pieces.values()))

    def expire(self, now_ns: int) -> list[Missing]:
        """What to ask for now; messages that were asked for in vain are forgotten."""
        wanted: list[Missing] = []
        for key, partial in list(self._open.items()):
            if now_ns - partial.touched_ns < self._patience_ns:
                continue
            if partial.has_asked:
                self._forget(key)
                continue
            partial.has_asked = True
            partial.touched_ns = now_ns
            absent = tuple(i for i in range(partial.total) if i not in partial.pieces)
            wanted.append(Missing(key[0], key[2], key[3], absent))
        return wanted


def _check_shape(chunk: Chunk) -> None:
    if chunk.size > MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES:
        raise TooLarge(what="a message", limit=MAX_MESSAGE_BYTES, seen=chunk.size)
    total = -(-chunk.size // CHUNK_BYTES)
    if chunk.total != total or chunk.index >= total:
        raise RemoteProtocolError(
            f"expected {total} chunks for {chunk.size} bytes; got chunk {chunk.index}"
            f" of {chunk.total}"
        )
    rest = chunk.size - chunk.index * CHUNK_BYTES
    expected = min(rest, CHUNK_BYTES)
    if len(chunk.data) != expected:
        raise RemoteProtocolError(
            f"expected chunk {chunk.index} to hold {expected} bytes; got {len(chunk.data)}"
        )
