"""The journal of durable tasks: SQLite in WAL mode, used by one thread.

A task stands here before it is accepted, and its outcome stands here before it is published, so a
hub that is killed at any moment loses no accepted task and decides none twice. The input of a task
is erased when it is decided. Times are seconds of the day's clock, since a reboot resets others.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ispine.protocol.codec import decode, encode
from ispine.protocol.errors import RemoteProtocolError
from ispine.protocol.messages import Head, Options, Result, Task
from ispine.scheduler.payloads import digest_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (
    client TEXT NOT NULL,
    task TEXT NOT NULL,
    capability TEXT NOT NULL,
    content_type TEXT NOT NULL,
    options TEXT NOT NULL,
    priority INTEGER NOT NULL,
    stream TEXT NOT NULL,
    private INTEGER NOT NULL,
    plain INTEGER NOT NULL,
    digest TEXT NOT NULL,
    deadline_s REAL NOT NULL,
    data BLOB,
    status TEXT,
    result BLOB,
    decided_s REAL,
    published INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (client, task)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS undecided ON tasks (client, task) WHERE status IS NULL;
"""
_SCHEMA_VERSION = b"1"
_HEAD = Head("journal")


@dataclass(frozen=True, slots=True)
class Add:
    """Write a new task; answered with `Known` when its id is there already, else None."""

    task: Task
    is_plain: bool
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Decide:
    """Write an outcome."""

    result: Result
    is_plain: bool


@dataclass(frozen=True, slots=True)
class MarkPublished:
    """The outcome was handed to the link."""

    client_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Find:
    """Read a task; answered with `Known` or None. `client_id` "" finds it for any wearable."""

    client_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Known:
    """A task in the journal; `result` is None while it is open."""

    client_id: str
    digest: str
    is_plain: bool
    result: Result | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The journal could not do it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """An accepted task without an outcome; `left_s` may be negative."""

    task: Task
    is_plain: bool
    digest: str
    left_s: float


Operation = Add | Decide | MarkPublished | Find
Answer = Known | Failed | None


class Journal:
    """One SQLite file. All methods block; all are called from one thread.

    Raises:
        sqlite3.Error, OSError: the file cannot be used.
    """

    def __init__(self, path: Path, keep_days: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        self._keep_days = keep_days
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except sqlite3.Error:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA secure_delete = ON")
        found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        self._db.executescript(_SCHEMA)
        version = self._meta("schema", _SCHEMA_VERSION)
        if version != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"schema {version!r}, expected {_SCHEMA_VERSION!r}")
        self.secret = self._meta("secret", secrets.token_bytes(32))

    def _meta(self, name: str, default: bytes) -> bytes:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, default))
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return bytes(row[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def recover(self) -> tuple[list[Recovered], list[tuple[Result, bool]]]:
        """Open tasks, and outcomes that may not have been published; forgets what is too old."""
        oldest = time.time() - self._keep_days * 86400
        self._db.execute("DELETE FROM tasks WHERE decided_s < ?", (oldest,))
        now_s = time.time()
        rows = self._db.execute(
            "SELECT task, client, capability, data, content_type, priority, stream, private,"
            " options, plain, digest, deadline_s FROM tasks WHERE status IS NULL"
        )
        tasks = [
            Recovered(_task(row, row[11] - now_s), bool(row[9]), row[10], row[11] - now_s)
            for row in rows
        ]
        rows = self._db.execute(
            "SELECT result, plain FROM tasks WHERE status IS NOT NULL AND published = 0"
        )
        return tasks, [(_result(row[0]), bool(row[1])) for row in rows]

    def apply(self, operations: Sequence[Operation]) -> list[Answer]:
        """Do all in one transaction, or none."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            answers = [self._do(operation) for operation in operations]
            self._db.execute("COMMIT")
        except (sqlite3.Error, RemoteProtocolError) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            return [Failed(str(error)) for _ in operations]
        return answers

    def _do(self, operation: Operation) -> Answer:
        match operation:
            case Add():
                return self._add(operation)
            case Decide():
                self._decide(operation)
            case MarkPublished():
                self._db.execute(
                    "UPDATE tasks SET published = 1 WHERE client = ? AND task = ?",
                    (operation.client_id, operation.task_id),
                )
            case Find():
                return self._find(operation.client_id, operation.task_id)
        return None

    def _add(self, add: Add) -> Known | None:
        task = add.task
        known = self._find(task.client_id, task.task_id)
        if known is not None:
            return known
        self._db.execute(
            "INSERT INTO tasks (client, task, capability, content_type, options, priority,"
            " stream, private, plain, digest, deadline_s, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                task.client_id,
                task.task_id,
                task.capability,
                task.content_type,
                json.dumps(dict(task.options)),
                task.priority,
                task.stream,
                task.private,
                add.is_plain,
                digest_of(task),
                add.deadline_s,
                task.data,
            ),
        )
        return None

    def _decide(self, decide: Decide) -> None:
        result = decide.result
        self._db.execute(
            "UPDATE tasks SET status = ?, result = ?, decided_s = ?, data = NULL"
            " WHERE client = ? AND task = ? AND status IS NULL",
            (
                result.status,
                encode(result, _HEAD),
                time.time(),
                result.client_id,
                result.task_id,
            ),
        )

    def _find(self, client_id: str, task_id: str) -> Known | None:
        row = self._db.execute(
            "SELECT client, digest, plain, result FROM tasks"
            " WHERE task = ? AND (client = ? OR ? = '') LIMIT 1",
            (task_id, client_id, client_id),
        ).fetchone()
        if row is None:
            return None
        return Known(row[0], row[1], bool(row[2]), None if row[3] is None else _result(row[3]))


def _result(blob: bytes) -> Result:
    result = decode(bytes(blob))[1]
    if not isinstance(result, Result):
        raise RemoteProtocolError(f"expected a result in the journal; got {type(result).__name__}")
    return result


def _task(row: Sequence[object], left_s: float) -> Task:
    task_id, client, capability, data, content_type, priority, stream, private, options = row[:9]
    loaded: Options = json.loads(str(options))
    return Task(
        str(task_id),
        str(client),
        str(capability),
        data if isinstance(data, bytes) else b"",
        max(int(left_s * 1000), 1),
        str(content_type),
        "durable",
        priority if isinstance(priority, int) else 1,
        str(stream),
        bool(private),
        loaded,
    )
