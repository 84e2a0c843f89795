"""Whether a task comes in, and with which words it is refused."""

from ispine.protocol.messages import Options
from ispine.scheduler.actions import PublishEvent, RefuseDuplicate, RepeatResult
from ispine.scheduler.candidate import Candidate
from ispine.scheduler.config import MS
from ispine.scheduler.ending import fail, watch_ledger
from ispine.scheduler.events import TaskCancelled, TaskSubmitted
from ispine.scheduler.ledger import Outcome
from ispine.scheduler.placement import fluid_finish_ns, glance, scan
from ispine.scheduler.rescue import wait_again
from ispine.scheduler.state import CoreState, is_admitted
from ispine.scheduler.task import TaskRecord
from ispine.scheduler.timers import Due

_MAX_LEVELS = 16
_STALE_NS = 2_000 * MS
_PASSING = ("offline", "has not described itself", "suspect", "refused work")


def submit(state: CoreState, event: TaskSubmitted) -> None:
    """Take a task in, or decide it at once."""
    key = (event.client_id, event.task_id)
    state.counters.submitted += 1
    known = state.open.get(key)
    outcome = state.ledger.get(key)
    if known is not None:
        _repeat_open(state, event, known)
    elif outcome is not None:
        _repeat_decided(state, event, outcome)
    else:
        state.seq += 1
        task = TaskRecord.of(event, state.seq)
        task.born_event_id = state.event_id
        _take_in(state, task)


def _repeat_open(state: CoreState, event: TaskSubmitted, known: TaskRecord) -> None:
    if known.digest and event.digest and known.digest != event.digest:
        _refuse_duplicate(state, event)
        return
    state.counters.duplicates += 1
    state.out.append(PublishEvent(state.event_id, event.task_id, event.client_id, "accepted"))


def _repeat_decided(state: CoreState, event: TaskSubmitted, outcome: Outcome) -> None:
    if outcome.digest and event.digest and outcome.digest != event.digest:
        _refuse_duplicate(state, event)
        return
    state.counters.duplicates += 1
    state.out.append(RepeatResult(state.event_id, event.task_id, event.client_id))


def _refuse_duplicate(state: CoreState, event: TaskSubmitted) -> None:
    state.counters.conflicts += 1
    state.out.append(
        RefuseDuplicate(
            state.event_id,
            event.task_id,
            event.client_id,
            "expected a new task id for new data; this id already stands for other data;"
            " make a fresh id for each task",
        )
    )


def _take_in(state: CoreState, task: TaskRecord) -> None:
    state.traces.begin(task)
    if state.fleet.members(task.lane.capability):
        _count_arrival(state, task)
    reason = state.ledger.take_cancel(task.key)
    if reason is not None:
        fail(state, task, "cancelled", "cancelled", reason or "cancelled before it arrived")
        return
    if not _has_sound_deadline(state, task) or not _is_within_quota(state, task):
        return
    if not _has_device(state, task) or not _is_in_time(state, task):
        return
    state.open[task.key] = task
    state.quotas.open(task)
    state.counters.accepted += 1
    state.timers.add(task.deadline_ns, Due.DEADLINE, task)
    wait_again(state, task)


def _count_arrival(state: CoreState, task: TaskRecord) -> None:
    """Fading arrival rate per capability: half of it is the last second's."""
    capability, now = task.lane.capability, state.now_ns
    last, rate = state.arrivals.get(capability, (now, 0.0))
    fade = 0.5 ** min((now - last) / 1e9, 60.0)
    state.arrivals[capability] = (now, rate * fade + 0.6931)


def _has_sound_deadline(state: CoreState, task: TaskRecord) -> bool:
    span = task.deadline_ns - task.submitted_ns
    if span <= 0:
        fail(
            state,
            task,
            "expired",
            "expired",
            f"expected a deadline in the future; this one passed {-span / 1e6:.0f} ms ago;"
            " allow more time",
        )
        return False
    if span > state.config.max_ttl_ns:
        fail(
            state,
            task,
            "rejected",
            "rejected",
            f"expected a deadline within {state.config.max_ttl_ns / 3.6e12:.0f} h;"
            f" got {span / 3.6e12:.3g} h; ask for less time",
        )
        return False
    return True


def _is_within_quota(state: CoreState, task: TaskRecord) -> bool:
    excess = state.quotas.excess(task, len(state.open), state.now_ns)
    if excess is None or task.is_recovered:
        return True
    fields: Options = {
        "quota": excess.quota,
        "limit": excess.limit,
        "seen": excess.seen,
        "suggestion": "wait for answers before sending more",
    }
    message = (
        f"expected less than {excess.limit:g} {excess.quota}; there are {excess.seen:g};"
        " wait for answers before sending more"
    )
    fail(state, task, "rejected", "too_busy", message, fields)
    return False


def _has_device(state: CoreState, task: TaskRecord) -> bool:
    """Whether somebody can run it, or soon may; refuses it where not."""
    terms = state.fleet.terms(task.lane.capability)
    if 0 < terms.largest_input < task.size_bytes:
        fail(
            state,
            task,
            "rejected",
            "rejected",
            f"expected at most {terms.largest_input:,} bytes, the most that a device takes for"
            f" {task.lane.capability}; got {task.size_bytes:,}; send a smaller input",
            {"limit": terms.largest_input, "seen": task.size_bytes},
        )
        return False
    task.is_idempotent = terms.is_idempotent
    return may_wait(state, task)


def may_wait(state: CoreState, task: TaskRecord) -> bool:
    """Whether the task has a device or may wait for one; refuses it where not."""
    if state.fleet.has_usable(task.lane):
        return True
    members = state.fleet.members(task.lane.capability)
    blocks = [d.block for d, s in members.items() if is_admitted(task.lane, d, s)]
    passing = not blocks or any(block in _PASSING for block in blocks)
    last = state.fleet.last_capable_ns.get(task.lane.capability, 0)
    grace_ends = max(state.started_ns, last) + state.config.grace_ns
    if "suspect" in blocks or (passing and state.now_ns < grace_ends):
        return True
    if task.is_recovered or (task.is_durable and blocks):
        return True
    refuse_no_device(state, task)
    return False


def refuse_no_device(state: CoreState, task: TaskRecord) -> None:
    """End a task that nobody can run, and say why."""
    capability = task.lane.capability
    members = state.fleet.members(capability)
    reasons = [f"{d.device_id}: {d.block}" for d in members if d.block][:5]
    seen = "; ".join(reasons) if reasons else "none does"
    wanted = f"{capability}" + (f" as {task.lane.variant}" if task.lane.variant else "")
    wanted += " of the same owner" if task.lane.owner is not None else ""
    fail(
        state,
        task,
        "rejected",
        "no_capable_device",
        f"expected a device that offers {wanted}; {seen};"
        " start an agent that has it, or see `ispine devices`",
        {"capability": capability, "devices": len(members)},
    )


def grace_due(state: CoreState, task: TaskRecord) -> None:
    """Look whether a waiting task still has somebody to wait for.

    A durable task was promised to be kept: it waits until its deadline.
    """
    if task.is_decided or not task.is_waiting or task.is_durable:
        return
    if state.fleet.has_usable(task.lane):
        return
    if may_wait(state, task):
        state.timers.add(state.now_ns + state.config.grace_ns, Due.GRACE, task)


def _is_in_time(state: CoreState, task: TaskRecord) -> bool:
    """Predict when it would end; refuse it where that is too late.

    The next smaller variant is tried where the deadline asks for it. A prediction that is old and
    was never steady refuses nothing, or nothing would ever correct it.
    """
    ahead = _ahead(state, task)
    candidates = glance(state, task.lane, task.size_bytes, ahead)
    if not candidates:
        return True
    slack = task.deadline_ns - state.now_ns
    finish = 0.0
    deepest = max([len(c.skill.ladder) for c in candidates])
    for level in range(min(deepest, _MAX_LEVELS)):
        if level:
            candidates = scan(state, task.lane, task.size_bytes, level)
        finish = fluid_finish_ns(candidates, ahead)
        fits = finish + min([c.deviation_ns for c in candidates]) <= slack
        if fits or level + 1 == deepest:
            task.level = level
            break
    task.predicted_ns = finish
    if fits or task.is_recovered or _is_unsure(state, candidates, ahead, slack):
        state.counters.degraded += task.level > 0
        return True
    _refuse_too_busy(state, task, candidates, ahead)
    return False


def _ahead(state: CoreState, task: TaskRecord) -> float:
    """Tasks before this one, those of other lanes counted by the time they take."""
    ahead = float(state.waiting.ahead(task))
    lanes = state.waiting.lanes
    if len(lanes) > 1 or (lanes and task.lane not in lanes):
        own = state.mean_service_ns.get(task.lane)
        for lane in lanes:
            other = state.mean_service_ns.get(lane)
            if lane != task.lane and own and other:
                ahead += state.waiting.count(lane, task.priority) * min(other / own, 1e3)
    return ahead


def _is_unsure(state: CoreState, candidates: list[Candidate], ahead: float, slack: float) -> bool:
    return ahead == 0 and any(
        not c.device.held
        and c.finish_ns < 4 * slack
        and c.rung.estimate.is_doubtful(state.now_ns, _STALE_NS)
        for c in candidates
    )


def _refuse_too_busy(
    state: CoreState, task: TaskRecord, candidates: list[Candidate], ahead: float
) -> None:
    predicted_ms = task.predicted_ns / 1e6
    within_ms = (task.deadline_ns - task.submitted_ns) / 1e6
    alone_ms = min(c.service_ns + c.link_ns + c.rung.load_ns for c in candidates) / 1e6
    suggestion = (
        f"allow at least {alone_ms:.0f} ms: the fastest device needs as much alone"
        if alone_ms > within_ms
        else f"lower the rate, or allow at least {predicted_ms:.0f} ms"
    )
    state.traces.of(task).note(state.now_ns, "refused", "", 0, suggestion, candidates)
    fail(
        state,
        task,
        "rejected",
        "too_busy",
        f"expected an answer within {within_ms:.0f} ms; predicted {predicted_ms:.0f} ms with"
        f" {ahead:.0f} tasks ahead; {suggestion}",
        {"predicted_ms": round(predicted_ms, 1), "suggestion": suggestion},
    )


def cancel(state: CoreState, event: TaskCancelled) -> None:
    """Take a task back; remember it when the task is not there yet."""
    key = (event.client_id, event.task_id)
    task = state.open.get(key)
    if task is not None:
        fail(state, task, "cancelled", "cancelled", event.reason or "cancelled by the wearable")
    elif state.ledger.get(key) is None:
        state.ledger.remember_cancel(key, state.now_ns, event.reason)
        watch_ledger(state)
