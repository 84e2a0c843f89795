"""Terminal decisions: the only place where a task ends."""

from ispine.protocol.messages import Options, ResultStatus
from ispine.scheduler.actions import (
    CancelAttempt,
    ForgetPayload,
    ForgetResult,
    ProbeDevice,
    PublishResult,
)
from ispine.scheduler.events import ReplyDone
from ispine.scheduler.ledger import Outcome
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import Attempt, AttemptState, TaskKey, TaskRecord
from ispine.scheduler.timers import Due

_NO_FIELDS: Options = {}


def succeed(state: CoreState, task: TaskRecord, attempt: Attempt | None, reply: ReplyDone) -> None:
    """End a task with the answer of `reply`.

    `attempt` is the one that answered; None for one that an earlier hub made.
    """
    now = state.now_ns
    assigned = task.submitted_ns if attempt is None else attempt.assigned_ns
    total_ms = (now - task.submitted_ns) / 1e6
    before_ms = (assigned - task.submitted_ns) / 1e6
    action = PublishResult(
        state.event_id,
        task.task_id,
        task.client_id,
        "done",
        device_id=reply.device_id,
        variant=reply.variant,
        attempts=len(task.attempts),
        queue_ms=before_ms + reply.queue_ms,
        compute_ms=reply.compute_ms,
        total_ms=total_ms,
        predicted_ms=task.predicted_ns / 1e6,
        is_durable=task.is_durable,
    )
    trace = state.traces.of(task)
    trace.device_id, trace.variant = reply.device_id, reply.variant
    trace.parts_ms = {
        "waiting_in_scheduler": before_ms,
        "waiting_on_device": reply.queue_ms,
        "computing": reply.compute_ms,
        "link_and_agent": total_ms - before_ms - reply.queue_ms - reply.compute_ms,
    }
    state.counters.done += 1
    _close(state, task, action, reply.size_bytes)


def fail(
    state: CoreState,
    task: TaskRecord,
    status: ResultStatus,
    code: str,
    message: str,
    fields: Options = _NO_FIELDS,
) -> None:
    """End a task without an answer."""
    total_ms = (state.now_ns - task.submitted_ns) / 1e6
    action = PublishResult(
        state.event_id,
        task.task_id,
        task.client_id,
        status,
        code,
        message[:2000],
        fields,
        attempts=len(task.attempts),
        queue_ms=total_ms,
        total_ms=total_ms,
        predicted_ms=task.predicted_ns / 1e6,
        is_durable=task.is_durable,
    )
    trace = state.traces.of(task)
    trace.parts_ms = {"without_an_answer": total_ms}
    counters = state.counters
    setattr(counters, status, getattr(counters, status) + 1)
    _close(state, task, action, len(message))


def _close(state: CoreState, task: TaskRecord, action: PublishResult, size_bytes: int) -> None:
    trace = state.traces.of(task)
    trace.status, trace.code, trace.message = action.status, action.code, action.message
    trace.predicted_ms, trace.total_ms = action.predicted_ms, action.total_ms
    trace.note(state.now_ns, action.status, action.device_id, 0, action.code)
    task.is_decided = True
    if task.is_waiting:
        state.waiting.remove(task)
    if state.open.pop(task.key, None) is not None:
        state.quotas.close(task)
    outcome = Outcome(action.status, action.code, state.now_ns, task.digest, size_bytes + 512)
    gone = state.ledger.record(task.key, outcome)
    state.out.append(action)
    for attempt in task.attempts.values():
        if attempt.is_held and attempt.state is not AttemptState.UNWANTED:
            note_miss(state, attempt)
            cancel_attempt(state, attempt)
    state.out.append(ForgetPayload(state.event_id, task.task_id, task.client_id))
    forget_results(state, gone)
    watch_ledger(state)
    state.needs_dispatch = True


def note_miss(state: CoreState, attempt: Attempt) -> None:
    """Remember that a device let an attempt become late and gave no answer (see `learning`)."""
    late = attempt.accepted_ns and state.now_ns > attempt.expected_ns + attempt.deviation_ns
    if late and attempt.state is AttemptState.ACTIVE:
        state.missed.append(attempt)


def cancel_attempt(state: CoreState, attempt: Attempt) -> None:
    """Tell the device to stop; its place stays taken until it says that it is free.

    It is asked at once: a reply or a heartbeat without the task frees the place.
    """
    attempt.state = AttemptState.UNWANTED
    client_id, task_id = attempt.task.key
    state.out.append(
        CancelAttempt(state.event_id, task_id, client_id, attempt.device_id, attempt.number)
    )
    state.out.append(ProbeDevice(state.event_id, attempt.device_id))


def forget_results(state: CoreState, keys: list[TaskKey]) -> None:
    """Let the service drop the results of these tasks."""
    for client_id, task_id in keys:
        state.out.append(ForgetResult(state.event_id, task_id, client_id))


def watch_ledger(state: CoreState) -> None:
    """Make sure that the ledger is looked at when its oldest entry is too old.

    At most every five seconds, so that a steady stream does not cause a timer for each task.
    """
    expiry = state.ledger.next_expiry_ns
    if expiry is not None and not state.ledger_at_ns:
        state.ledger_at_ns = max(expiry, state.now_ns + 5_000_000_000)
        state.timers.add(state.ledger_at_ns, Due.LEDGER, None)
