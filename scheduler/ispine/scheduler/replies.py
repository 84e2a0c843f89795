"""What devices say about their attempts."""

from typing import assert_never

from ispine.scheduler.actions import AcknowledgeReply, PublishEvent
from ispine.scheduler.config import MS
from ispine.scheduler.device import Device
from ispine.scheduler.ending import fail, succeed
from ispine.scheduler.events import (
    Reply,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    ReplyProgressed,
)
from ispine.scheduler.learning import blame, learn, strike
from ispine.scheduler.rescue import end_suspicion, refresh, requeue, take_back, wait_again
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import Attempt, AttemptState, TaskRecord

_NOT_RUN = frozenset({"cancelled", "expired", "too_busy", "no_capable_device", "model_unavailable"})
_TASKS_FAULT = frozenset({"rejected", "bad_message", "bad_id", "too_large"})
_REFUSED_NS = 500 * MS


def reply(state: CoreState, device: Device, event: Reply) -> None:
    """Handle one reply; the device was heard already."""
    task = state.open.get((event.client_id, event.task_id))
    attempt = _find(task, device, event)
    match event:
        case ReplyAccepted():
            if attempt is not None:
                _accept(state, device, attempt)
        case ReplyProgressed():
            if attempt is not None:
                _accept(state, device, attempt)
                _progress(state, attempt, event)
        case ReplyDone():
            _acknowledge(state, event)
            _done(state, device, task, attempt, event)
        case ReplyFailed():
            _acknowledge(state, event)
            _failed(state, device, task, attempt, event)
        case _:
            assert_never(event)


def _find(task: TaskRecord | None, device: Device, event: Reply) -> Attempt | None:
    """The attempt that is meant, also when its task is already decided."""
    if task is not None:
        attempt = task.attempts.get(event.attempt)
        if attempt is not None and attempt.device_id == device.device_id:
            return attempt
        return None
    wanted = (event.client_id, event.task_id)
    for attempt in device.held:
        if attempt.task.key == wanted and attempt.number == event.attempt:
            return attempt
    return None


def _acknowledge(state: CoreState, event: ReplyDone | ReplyFailed) -> None:
    action = AcknowledgeReply(
        state.event_id, event.task_id, event.client_id, event.device_id, event.attempt
    )
    state.out.append(action)


def _accept(state: CoreState, device: Device, attempt: Attempt) -> None:
    if attempt.accepted_ns:
        return
    now = state.now_ns
    attempt.accepted_ns = now
    attempt.task.runs += 1
    if not attempt.is_resent:
        device.accept.add(now - attempt.assigned_ns, now)
    if not attempt.task.is_decided:
        take_back(state, device, attempt)
        state.traces.of(attempt.task).note(now, "accepted", device.device_id, attempt.number)


def _progress(state: CoreState, attempt: Attempt, event: ReplyProgressed) -> None:
    task = attempt.task
    if not task.is_decided:
        state.out.append(
            PublishEvent(state.event_id, task.task_id, task.client_id, "progress", event.progress)
        )


def _free(state: CoreState, device: Device, attempt: Attempt) -> None:
    device.release(attempt, state.now_ns)
    state.fleet.update(device)
    state.needs_dispatch = True


def _done(
    state: CoreState,
    device: Device,
    task: TaskRecord | None,
    attempt: Attempt | None,
    event: ReplyDone,
) -> None:
    if device.suspect_until_ns:
        end_suspicion(state, device)
    if attempt is not None:
        learn(state, device, attempt, event)
        _free(state, device, attempt)
    if task is None:
        state.counters.late_answers += 1
        return
    if attempt is None and not task.is_recovered:
        state.counters.stray_answers += 1
        return
    if task.failed_on:
        blame(state, task)
    succeed(state, task, attempt, event)


def _failed(
    state: CoreState,
    device: Device,
    task: TaskRecord | None,
    attempt: Attempt | None,
    event: ReplyFailed,
) -> None:
    if attempt is None:
        state.counters.stray_answers += 1
        return
    _free(state, device, attempt)
    if task is None:
        return
    task.last_message = event.message
    trace = state.traces.of(task)
    trace.note(state.now_ns, "gave back", device.device_id, attempt.number, event.code)
    if event.code in _TASKS_FAULT:
        fail(state, task, "rejected", event.code, event.message or "the device rejected the task")
    elif event.code in _NOT_RUN:
        _given_back(state, device, task, attempt, event)
    else:
        _raised(state, device, task, attempt, event)


def _given_back(
    state: CoreState, device: Device, task: TaskRecord, attempt: Attempt, event: ReplyFailed
) -> None:
    """The device did not run it; another may."""
    if event.code == "model_unavailable":
        before = list(device.skills)
        device.lose_skill(task.lane.capability)
        state.fleet.rejoin(device, before)
    elif event.code in ("too_busy", "no_capable_device"):
        device.refused_until_ns = state.now_ns + _REFUSED_NS
        refresh(state, device)
    if event.code == "expired" and state.now_ns >= task.deadline_ns - 5 * MS:
        fail(
            state, task, "expired", "expired", event.message or "its deadline passed on the device"
        )
        return
    requeue(state, attempt, f"given back: {event.code}", is_lost=True)


def _raised(
    state: CoreState, device: Device, task: TaskRecord, attempt: Attempt, event: ReplyFailed
) -> None:
    """The capability ran and raised: one other device may try, where that is allowed."""
    device.failed += 1
    task.failed_on.add(device.device_id)
    attempt.state = AttemptState.UNWANTED
    if device.probes_left:
        strike(state, device, "it still fails tasks")
    if task.active():
        return
    task.avoid.add(device.device_id)
    others = [d for d, _ in state.fleet.usable(task.lane) if d.device_id not in task.avoid]
    limit = state.config.durable_attempts if task.is_durable else state.config.realtime_attempts
    if others and task.is_idempotent and max(task.runs, len(task.failed_on)) < limit:
        wait_again(state, task)
    else:
        code = event.code if event.code == "execution_failed" else "execution_failed"
        fail(state, task, "failed", code, event.message or "the capability failed")
