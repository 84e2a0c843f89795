"""Durable tasks: the desk between the service, which may not wait, and the journal, which does.

Operations are collected while the journal's thread is busy and then done in one transaction. A
journal that cannot be used (corrupt, disk full) refuses new durable tasks with the reason; all else
goes on.
"""

import asyncio
import json
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ispine.protocol.clock import boot_ns
from ispine.protocol.ids import ClientId, TaskId, is_id
from ispine.protocol.messages import Result
from ispine.protocol.plain import result_json
from ispine.protocol.state import AdminAnswer, AdminRequest
from ispine.scheduler.admin import accept, refuse
from ispine.scheduler.config import SchedulerConfig
from ispine.scheduler.intake import Arrival
from ispine.scheduler.journal import (
    Add,
    Answer,
    Decide,
    Failed,
    Find,
    Journal,
    Known,
    MarkPublished,
    Operation,
)
from ispine.scheduler.outbox import Outbox
from ispine.scheduler.payloads import StoredTask
from ispine.scheduler.report import Json
from ispine.scheduler.task import TaskKey

log = logging.getLogger(__name__)

_MAX_PENDING = 1024
_BATCH = 64

Then = Callable[[Answer], None]
Admit = Callable[[StoredTask, Arrival], None]
Refuse = Callable[[StoredTask, str, str], None]
Publish = Callable[[Result, bool], None]


class DurableDesk:
    """Keeps durable tasks.

    Args:
        config: `journal` and `outcome_days`.
        publish: publishes a result, given whether its wearable speaks JSON.

    Attributes:
        secret: for leases; the same for every run with this journal.
    """

    def __init__(self, config: SchedulerConfig, publish: Publish) -> None:
        self._config = config
        self._publish = publish
        self.secret = secrets.token_bytes(32)
        self._journal: Journal | None = None
        self._trouble = "this hub keeps no journal; start it with a data folder"
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._pending: list[tuple[Operation, Then | None]] = []
        self._worker: asyncio.Task[None] | None = None
        self._arriving: set[TaskKey] = set()
        self._deciding: dict[TaskKey, list[Callable[[], None]]] = {}
        self._failures = 0

    async def open(self) -> list[tuple[StoredTask, Arrival]]:
        """Open the journal; returns the tasks that an earlier run accepted and did not decide."""
        path = self._config.journal
        if path is None:
            return []
        loop = asyncio.get_running_loop()
        try:
            self._journal = await loop.run_in_executor(
                self._pool, Journal, path, self._config.outcome_days
            )
            tasks, results = await loop.run_in_executor(self._pool, self._journal.recover)
        except (sqlite3.Error, OSError) as error:
            self._journal = None
            self._fail(f"its journal cannot be used: {error}; move {path.name} away or repair it")
            return []
        self.secret = self._journal.secret
        for result, is_plain in results:
            loop.call_soon(self._hand_out, result, is_plain)
        found = []
        for entry in tasks:
            deadline_ns = boot_ns() + int(entry.left_s * 1e9)
            stored = StoredTask(entry.task, entry.is_plain, entry.digest)
            found.append((stored, Arrival(entry.task, entry.is_plain, deadline_ns)))
        return found

    def _fail(self, reason: str) -> None:
        self._failures += 1
        if self._trouble != reason:
            log.error("durable tasks refused", extra={"reason": reason})
        self._trouble = reason

    async def close(self) -> None:
        """Finish what was begun and close the journal."""
        while self._worker is not None:
            await self._worker
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._journal.close)
            self._journal = None
        self._pool.shutdown(wait=False)

    def _do(self, operation: Operation, then: Then | None = None) -> None:
        self._pending.append((operation, then))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="journal")

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending and self._journal is not None:
                batch = self._pending[:_BATCH]
                del self._pending[:_BATCH]
                operations = [operation for operation, _ in batch]
                answers = await loop.run_in_executor(self._pool, self._journal.apply, operations)
                for (_, then), answer in zip(batch, answers, strict=True):
                    if isinstance(answer, Failed):
                        self._fail(f"its journal cannot be written: {answer.reason}")
                    if then is not None:
                        then(answer)
        finally:
            self._worker = None

    def take(self, stored: StoredTask, arrival: Arrival, admit: Admit, refuse_: Refuse) -> None:
        """Write a new task, then admit it; publish its outcome when it was decided before."""
        key = (ClientId(stored.task.client_id), TaskId(stored.task.task_id))
        if key in self._arriving:
            return
        if self._journal is None:
            refuse_(
                stored, "rejected", f"expected a hub that can keep durable tasks; {self._trouble}"
            )
            return
        if len(self._pending) >= _MAX_PENDING:
            refuse_(
                stored,
                "too_busy",
                f"expected fewer than {_MAX_PENDING} tasks waiting for the disk; wait for answers",
            )
            return
        left_s = (arrival.deadline_ns - boot_ns()) / 1e9
        self._arriving.add(key)

        def then(answer: Answer) -> None:
            self._arriving.discard(key)
            if answer is None:
                admit(stored, arrival)
            elif isinstance(answer, Known):
                self._take_again(stored, answer, refuse_)
            else:
                refuse_(
                    stored,
                    "rejected",
                    f"expected room on the hub's disk; {self._trouble}; free some and try again",
                )

        self._do(Add(stored.task, stored.is_plain, time.time() + left_s), then)

    def _take_again(self, stored: StoredTask, known: Known, refuse_: Refuse) -> None:
        if known.digest != stored.compute_digest():
            refuse_(
                stored,
                "rejected",
                "expected a new task id for new data; this id already stands for other data",
            )
        elif known.result is not None:
            self._publish(known.result, stored.is_plain)

    def decide(self, result: Result, *, is_plain: bool) -> None:
        """Write an outcome, then publish it.

        When it cannot be written it is published all the same: an answer is worth more than the
        certainty that a restarted hub does not work it out again.
        """
        if self._journal is None:
            self._publish(result, is_plain)
            return
        key = (ClientId(result.client_id), TaskId(result.task_id))
        self._deciding.setdefault(key, [])

        def then(_: Answer) -> None:
            self._hand_out(result, is_plain)
            for call in self._deciding.pop(key, []):
                call()

        self._do(Decide(result, is_plain), then)

    def _hand_out(self, result: Result, is_plain: bool) -> None:
        self._publish(result, is_plain)
        self._do(MarkPublished(result.client_id, result.task_id))

    def after_decision(self, key: TaskKey, call: Callable[[], None]) -> None:
        """Call it once the outcome of that task is safe; at once when none is being written."""
        waiting = self._deciding.get(key)
        if waiting is None:
            call()
        else:
            waiting.append(call)

    def repeat_or(self, key: TaskKey, outbox: Outbox) -> None:
        """Publish a kept result again; from the journal when memory no longer has it."""
        if key in self._deciding or outbox.repeat(key) or self._journal is None:
            return

        def then(answer: Answer) -> None:
            if isinstance(answer, Known) and answer.result is not None:
                self._publish(answer.result, answer.is_plain)

        self._do(Find(*key), then)

    def look_up(self, request: AdminRequest, answer: Callable[[AdminAnswer], None]) -> None:
        """Answer an `outcome` request: `task`, and `client` where the id alone is not enough."""
        task, client = request.args.get("task"), request.args.get("client") or ""
        if not (isinstance(task, str) and is_id(task) and isinstance(client, str)):
            answer(refuse("rejected", f"expected the id of a task; got {task!r}"))
        elif self._journal is None:
            answer(refuse("rejected", f"expected a journal; {self._trouble}"))
        else:
            self._do(Find(client, task), lambda found: answer(_outcome(task, found)))

    def stats(self) -> dict[str, Json]:
        """For `stats`."""
        return {
            "journal": "open" if self._journal is not None else self._trouble,
            "journal_failures": self._failures,
            "journal_pending": len(self._pending),
        }


def _outcome(task_id: str, found: Answer) -> AdminAnswer:
    if isinstance(found, Known):
        if found.result is None:
            return accept({"task_id": task_id, "client": found.client_id, "status": "open"})
        body = json.loads(result_json(found.result))
        return accept({**body, "client": found.client_id})
    reason = found.reason if isinstance(found, Failed) else "it is not in the journal"
    return refuse("rejected", f"expected a durable task; {task_id}: {reason}")
