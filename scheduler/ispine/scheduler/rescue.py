"""Hung is not dead: what happens when an answer does not come.

Four clocks run for each attempt and one for each device that holds work:

* *accept*: no `accepted` in time: the same attempt is sent once more; again in vain: requeue.
* *hedge*: the answer is late: a second device is asked, once, within the budget.
* *lease*: the answer is very late: the device loses the task if another can still make it.
* *watch*: a device that holds work and says nothing is asked for a heartbeat; when that does not
  come either, it is suspect and its tasks wait for others. This finds a stopped process or a cut
  link within a fraction of a second, whatever the task takes.

A doubtful attempt can still win. A device that comes back before its tasks were given away keeps
them.
"""

from ispine.scheduler.actions import ProbeDevice, ReportDevice
from ispine.scheduler.candidate import Candidate
from ispine.scheduler.config import MS, SECOND
from ispine.scheduler.device import Device
from ispine.scheduler.ending import fail, note_miss
from ispine.scheduler.placement import cheapest, fitting_rung, scan
from ispine.scheduler.placing import assign, order_for
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import Attempt, AttemptState, TaskRecord
from ispine.scheduler.timers import Due

_SOON_NS = 10 * MS
_RELAPSE_NS = 10 * SECOND


def wait_again(state: CoreState, task: TaskRecord) -> None:
    """Let a task wait, and look after it when there is nobody to wait for."""
    if task.is_decided or task.is_waiting:
        return
    state.waiting.add(task)
    state.needs_dispatch = True
    if not state.fleet.has_usable(task.lane):
        state.timers.add(state.now_ns + state.config.grace_ns, Due.GRACE, task)


def requeue(state: CoreState, attempt: Attempt, why: str, *, is_lost: bool = False) -> None:
    """Stop counting on an attempt.

    `is_lost` means that it can no longer be running, so even work that must not run twice may
    move; `why` is for the trace.
    """
    task = attempt.task
    if task.is_decided or attempt.state is not AttemptState.ACTIVE:
        return
    if attempt.accepted_ns and not task.is_idempotent and not is_lost:
        return
    others = [a for a in task.active() if a is not attempt]
    exhausted = task.runs >= _most_runs(state, task)
    if len(task.attempts) >= state.config.assignments:
        exhausted = True
    if exhausted and not others and not is_lost:
        return
    attempt.state = AttemptState.DOUBTFUL
    state.traces.of(task).note(state.now_ns, "lost", attempt.device_id, attempt.number, why)
    if others:
        return
    if exhausted:
        fail(
            state,
            task,
            "failed",
            "execution_failed",
            f"expected one of {len(task.attempts)} attempts to answer; the last device was lost:"
            f" {why}; submit it again if it may run again",
        )
        return
    task.avoid.add(attempt.device_id)
    task.line_ns = task.submitted_ns
    state.waiting.charge(task.client_id, -attempt.service_ns)
    wait_again(state, task)


def _most_runs(state: CoreState, task: TaskRecord) -> int:
    config = state.config
    return config.durable_attempts if task.is_durable else config.realtime_attempts


def accept_due(state: CoreState, attempt: Attempt) -> None:
    """No `accepted` in time."""
    if attempt.task.is_decided or attempt.accepted_ns or attempt.state is not AttemptState.ACTIVE:
        return
    device = state.fleet.devices[attempt.device_id]
    if attempt.is_resent:
        if not device.pinged_ns:
            requeue(state, attempt, "it did not accept the assignment, sent twice")
        return
    attempt.is_resent = True
    state.counters.resent += 1
    state.out.append(order_for(state, attempt, is_resent=True))
    again = state.now_ns + (attempt.accept_by_ns - attempt.assigned_ns)
    state.timers.add(again, Due.ACCEPT, attempt)
    if device.heard_ns < attempt.assigned_ns and not device.pinged_ns:
        ping(state, device)


def ping(state: CoreState, device: Device) -> None:
    """Ask a device for a heartbeat now; its answer also tells the time on the link."""
    device.pinged_ns = device.probed_ns = state.now_ns
    state.out.append(ProbeDevice(state.event_id, device.device_id))


def watch_due(state: CoreState, device: Device) -> None:
    """Look whether a device that holds work gave a sign of life."""
    if not device.held or not device.is_online or device.is_silent:
        device.is_watched = False
        return
    now = state.now_ns
    if device.pinged_ns:
        by = device.pinged_ns + _answer_ns(state, device)
        if now >= by:
            device.is_watched = False
            suspect(state, device, "it holds work, is silent and does not answer", is_silent=True)
            return
    else:
        by = _silent_since(device) + _silence_ns(state, device)
        if now >= by:
            ping(state, device)
            by = now + _answer_ns(state, device)
    state.timers.add(by, Due.WATCH, device)


def _silent_since(device: Device) -> int:
    latest = next(reversed(device.held)).assigned_ns
    return max(device.heard_ns, latest)


def _answer_ns(state: CoreState, device: Device) -> int:
    """Time to answer a ping; less than usual when what the device holds is in a hurry."""
    config, known = state.config, device.accept
    slack = min(attempt.task.deadline_ns for attempt in device.held) - state.now_ns
    floor = min(max(slack // 6, config.answer_least_ns), config.answer_floor_ns)
    return int(max(floor, known.mean_ns + 4 * known.deviation_ns))


def _silence_ns(state: CoreState, device: Device) -> int:
    """Silence that is normal for what the device does.

    Until its next answer is due, and for long tasks a quarter of their time so far, within bounds.
    """
    config = state.config
    oldest = next(iter(device.held))
    ran = (state.now_ns - oldest.assigned_ns) // 4
    due = device.epoch_ns + int(device.work_ns / len(device.held) + 4 * oldest.deviation_ns)
    until_due = min(due - _silent_since(device), 80 * MS)
    return min(max(ran, until_due, config.silence_floor_ns), config.silence_cap_ns)


def suspect(state: CoreState, device: Device, reason: str, *, is_silent: bool) -> None:
    """Give a device nothing until it gives a sign of life.

    One that is only late keeps its tasks until it turns out to be silent too (`watch_due`); those
    of a silent one wait for others.
    """
    if not device.is_online:
        return
    if not device.suspect_until_ns:
        _begin_suspicion(state, device, reason)
    if is_silent and not device.is_silent:
        device.is_silent = True
        for attempt in list(device.held):
            requeue(state, attempt, f"device suspect: {reason}")


def _begin_suspicion(state: CoreState, device: Device, reason: str) -> None:
    config, now = state.config, state.now_ns
    relapse = device.suspect_for_ns and now - device.suspected_ns < _RELAPSE_NS
    length = 2 * device.suspect_for_ns if relapse else config.suspect_ns
    device.suspect_for_ns = min(length, config.suspect_cap_ns)
    device.suspected_ns = now
    device.suspect_until_ns = now + device.suspect_for_ns
    state.counters.suspected += 1
    state.timers.add(device.suspect_until_ns, Due.SUSPICION, device)
    _stand(state, device, "suspect", reason)
    if not device.pinged_ns:
        ping(state, device)


def suspicion_due(state: CoreState, device: Device) -> None:
    """A suspicion ends, or doubles when there was no sign of life."""
    now = state.now_ns
    if not device.suspect_until_ns or now < device.suspect_until_ns:
        return
    if device.heard_ns > device.suspected_ns:
        end_suspicion(state, device)
        return
    device.suspect_for_ns = min(2 * device.suspect_for_ns, state.config.suspect_cap_ns)
    device.suspect_until_ns = now + device.suspect_for_ns
    state.timers.add(device.suspect_until_ns, Due.SUSPICION, device)


def end_suspicion(state: CoreState, device: Device) -> None:
    """Trust a device again."""
    device.suspect_until_ns = 0
    device.is_silent = False
    device.pinged_ns = 0
    # How long it was frozen says nothing about the link: the old question is void.
    device.probed_ns = 0
    _stand(state, device, "trusted", "it gave a sign of life")
    state.needs_dispatch = True
    for attempt in device.held:
        take_back(state, device, attempt)
    if device.held and not device.is_watched:
        device.is_watched = True
        state.timers.add(state.now_ns + state.config.silence_floor_ns, Due.WATCH, device)


def take_back(state: CoreState, device: Device, attempt: Attempt) -> None:
    """A device still has a task that nobody else was given: it keeps it."""
    task = attempt.task
    is_over = state.now_ns >= attempt.lease_ends_ns
    if attempt.state is not AttemptState.DOUBTFUL or not task.is_waiting or is_over:
        return
    attempt.state = AttemptState.ACTIVE
    state.waiting.remove(task)
    state.waiting.charge(task.client_id, attempt.service_ns)
    task.avoid.discard(device.device_id)
    late = attempt.lease_ends_ns - attempt.expected_ns
    attempt.lease_ends_ns = state.now_ns + int(attempt.service_ns) + late
    state.timers.add(attempt.lease_ends_ns, Due.LEASE, attempt)
    state.traces.of(task).note(state.now_ns, "kept", device.device_id, attempt.number)


def silence_due(state: CoreState, device: Device) -> None:
    """Look whether a device is still there at all."""
    if not device.is_online:
        device.is_listened = False
        return
    gone_ns = device.heard_ns + state.config.offline_ns
    if state.now_ns >= gone_ns:
        device.is_listened = False
        lose(state, device, f"no sign of life for {state.config.offline_ns / SECOND:g} s")
    else:
        state.timers.add(gone_ns, Due.SILENCE, device)


def lose(state: CoreState, device: Device, reason: str) -> None:
    """A device is gone: free all that it holds, and let its tasks wait for others."""
    device.is_online = device.is_silent = False
    device.suspect_until_ns = 0
    device.pinged_ns = 0
    _stand(state, device, "offline", reason)
    forsake(state, device, reason)


def forsake(state: CoreState, device: Device, reason: str) -> None:
    """A device no longer has anything of what it held."""
    for attempt in list(device.held):
        device.release(attempt, state.now_ns)
        requeue(state, attempt, reason, is_lost=True)
    state.fleet.update(device)


def _stand(state: CoreState, device: Device, standing: str, reason: str) -> None:
    """Apply a change of standing."""
    refresh(state, device)
    state.out.append(ReportDevice(state.event_id, device.device_id, standing, reason))


def refresh(state: CoreState, device: Device) -> None:
    """Work out again whether a device may get work, and tell the tasks that wait for it."""
    was_usable = not device.block
    device.refresh(state.now_ns, state.config)
    state.fleet.update(device)
    if was_usable == bool(device.block):
        state.looks.clear()
    if was_usable and device.block:
        _lose_hope(state, device)
    elif not was_usable and not device.block:
        state.needs_dispatch = True


def _lose_hope(state: CoreState, device: Device) -> None:
    """Tasks whose last device this was wait for another one only for the grace."""
    for capability in device.skills:
        state.fleet.last_capable_ns[capability] = state.now_ns
    lonely = [
        lane
        for lane in state.waiting.lanes
        if lane.capability in device.skills and not state.fleet.has_usable(lane)
    ]
    if lonely:
        when = state.now_ns + state.config.grace_ns
        for task in state.waiting:
            if task.lane in lonely:
                state.timers.add(when, Due.GRACE, task)


def hedge_due(state: CoreState, attempt: Attempt) -> None:
    """Ask a second device for a late answer, if the budget and the deadline allow."""
    task = attempt.task
    if task.is_decided or task.is_hedged or attempt.state is not AttemptState.ACTIVE:
        return
    if not task.is_idempotent or len(task.active()) != 1:
        return
    chosen = _hedge_on(state, attempt) if state.budget.can_hedge else None
    if chosen is None:
        again = state.now_ns + max(_SOON_NS, (state.now_ns - attempt.assigned_ns) // 4)
        if again < task.deadline_ns:
            state.timers.add(again, Due.HEDGE, attempt)
        return
    candidate, candidates = chosen
    fit = fitting_rung(state, task, candidate)
    rung, finish = fit if fit is not None else (candidate.rung, candidate.finish_ns)
    assign(state, task, candidate, rung, finish, candidates, is_hedge=True)
    if state.now_ns > attempt.expected_ns + 2 * attempt.deviation_ns:
        device = state.fleet.devices[attempt.device_id]
        suspect(state, device, "its answer is late", is_silent=False)


def _hedge_on(state: CoreState, attempt: Attempt) -> tuple[Candidate, list[Candidate]] | None:
    task = attempt.task
    slack = task.deadline_ns - state.now_ns
    avoid = task.avoid | {attempt.device_id}
    candidates = scan(state, task.lane, task.size_bytes, task.level, avoid)
    free = [
        c for c in candidates if c.has_place and c.finish_ns <= slack and not c.device.probes_left
    ]
    return (cheapest(state, free), candidates) if free else None


def lease_due(state: CoreState, attempt: Attempt) -> None:
    """The device had its time; it loses the task when another one can still make it."""
    task = attempt.task
    if task.is_decided or attempt.state is not AttemptState.ACTIVE:
        return
    if state.now_ns < attempt.lease_ends_ns:
        return
    slack = task.deadline_ns - state.now_ns
    avoid = task.avoid | {attempt.device_id}
    others = scan(state, task.lane, task.size_bytes, task.level, avoid)
    if any(c.finish_ns <= slack for c in others):
        note_miss(state, attempt)
        requeue(state, attempt, "its lease ended")
    if attempt.state is AttemptState.ACTIVE:
        length = attempt.lease_ends_ns - attempt.assigned_ns
        attempt.lease_ends_ns = state.now_ns + length
        if attempt.lease_ends_ns < task.deadline_ns:
            state.timers.add(attempt.lease_ends_ns, Due.LEASE, attempt)
