"""Runs capabilities: a bounded pool of threads, and every way a run can end turned into a reply."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

from ispine.models.capability import CapabilityImpl, Output, batch_of
from ispine.protocol.codec import MAX_MESSAGE_BYTES
from ispine.protocol.errors import ExecutionFailed, TaskError
from ispine.protocol.messages import Assignment, Reply, ReplyKind

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 500

Outcome = Output | TaskError


@dataclass(slots=True)
class Work:
    """One assignment and what is known of it.

    Attributes:
        link_ms: delay of the assignment on its way above the smallest seen.
        waited_ms: on this device before it ran.
        reply: the final one, None before the end.
    """

    assignment: Assignment
    trace: str
    link_ms: float
    waited_ms: float = 0.0
    reply: Reply | None = None

    def renew(self, assignment: Assignment) -> None:
        """The same attempt, issued again under another lease."""
        if self.reply is None:
            self.assignment = assignment
            return
        self.assignment = replace(assignment, data=b"")
        self.reply = replace(self.reply, lease=assignment.lease)

    def answer(self, reply: Reply) -> None:
        """The run is over: the answer goes under the latest lease, the input is let go."""
        assert reply.kind in ("done", "failed")
        if reply.lease != self.assignment.lease:
            reply = replace(reply, lease=self.assignment.lease)
        self.reply = reply
        self.assignment = replace(self.assignment, data=b"")


class RunPool:
    """So many threads, which do not keep the process from ending.

    `concurrent.futures` waits at exit for its threads, so one run that hangs would make SIGTERM
    hang too. The core never starts more runs than there are threads, so nothing queues here.

    Args:
        slots: threads.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        for number in range(slots):
            threading.Thread(target=self._serve, name=f"ispine-run-{number}", daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; it must not raise."""
        self._works.put(work)

    def close(self) -> None:
        """Let the threads end once they are idle; waits for none."""
        for _ in range(self._slots):
            self._works.put(None)

    def _serve(self) -> None:
        while True:
            work = self._works.get()
            if work is None:
                return
            work()


class Runner:
    """Runs tasks and turns every outcome into a reply; for any number of threads at once.

    Args:
        slowdown: a test aid: a run takes this many times as long, by sleeping.
    """

    def __init__(self, slowdown: float = 1.0) -> None:
        self._slowdown = slowdown
        self._complained: set[str] = set()

    def run(self, capability: CapabilityImpl, works: Sequence[Work]) -> list[Reply]:
        """The replies to the tasks of one run, in order. Blocks; never raises.

        Args:
            capability: loaded.
            works: one, or several of the same variant and options.
        """
        started = time.perf_counter()
        if len(works) == 1:
            outcomes = [_run_one(capability, works[0].assignment)]
        else:
            outcomes = self._run_together(capability, [work.assignment for work in works])
        if self._slowdown > 1:
            time.sleep((time.perf_counter() - started) * (self._slowdown - 1))
        compute_ms = (time.perf_counter() - started) * 1e3
        return [
            _reply(work, outcome, compute_ms) for work, outcome in zip(works, outcomes, strict=True)
        ]

    def _run_together(
        self, capability: CapabilityImpl, assignments: Sequence[Assignment]
    ) -> list[Outcome]:
        """One run for all; where that fails, one for each, so that a bad input fails alone."""
        first = assignments[0]
        batch = batch_of(capability)
        assert batch is not None, "only capabilities with run_batch are given several tasks"
        try:
            outcomes = batch.run_batch(
                [assignment.data for assignment in assignments],
                variant=first.variant,
                options=first.options,
            )
            if len(outcomes) == len(assignments):
                return [_checked(outcome, first.capability) for outcome in outcomes]
            why = f"expected {len(assignments)} outcomes, got {len(outcomes)}"
        except BaseException as error:  # noqa: BLE001 - the task boundary: even sys.exit ends here
            why = type(error).__name__
        if first.capability not in self._complained:
            self._complained.add(first.capability)
            log.warning(
                "batch failed, run one by one", extra={"capability": first.capability, "why": why}
            )
        return [_run_one(capability, assignment) for assignment in assignments]


def _run_one(capability: CapabilityImpl, assignment: Assignment) -> Outcome:
    try:
        return _checked(
            capability.run(assignment.data, variant=assignment.variant, options=assignment.options),
            assignment.capability,
        )
    except TaskError as error:
        return error
    except BaseException as error:  # noqa: BLE001 - the task boundary: even sys.exit ends here
        return ExecutionFailed(
            f"expected {assignment.capability} to answer; it raised"
            f" {type(error).__name__}: {str(error)[:200]}"
        )


def _checked(outcome: object, capability: str) -> Outcome:
    if isinstance(outcome, TaskError):
        return outcome
    if isinstance(outcome, Output) and isinstance(outcome.data, bytes):
        if len(outcome.data) <= MAX_MESSAGE_BYTES:
            return outcome
        return ExecutionFailed(
            f"expected {capability} to answer with at most {MAX_MESSAGE_BYTES:,} bytes;"
            f" it answered {len(outcome.data):,}"
        )
    return ExecutionFailed(
        f"expected {capability} to answer with an Output that holds bytes;"
        f" it answered {type(outcome).__name__}"
    )


def _reply(work: Work, outcome: Outcome, compute_ms: float) -> Reply:
    if isinstance(outcome, TaskError):
        failed = reply_to(work.assignment, "failed", outcome.code, str(outcome))
        return replace(failed, compute_ms=compute_ms, queue_ms=work.waited_ms)
    assignment = work.assignment
    return Reply(
        "done",
        assignment.task_id,
        assignment.client_id,
        assignment.attempt,
        assignment.lease,
        data=outcome.data,
        content_type=outcome.content_type,
        variant=outcome.variant or assignment.variant,
        queue_ms=work.waited_ms,
        compute_ms=compute_ms,
        link_ms=work.link_ms,
    )


def reply_to(assignment: Assignment, kind: ReplyKind, code: str = "", message: str = "") -> Reply:
    """A reply without data to one attempt."""
    return Reply(
        kind,
        assignment.task_id,
        assignment.client_id,
        assignment.attempt,
        assignment.lease,
        code,
        message[:MAX_MESSAGE_CHARS],
    )
