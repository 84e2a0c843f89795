"""Giving waiting tasks to devices: the dispatch loop.

Theory of operation: tasks wait here, not on the devices (late binding; a device holds at most
slots + 1). Whenever a task comes or a place becomes free, `dispatch` takes the wearable that is
next and looks for the cheapest device with a place. If faster devices, busy now, would end *all*
waiting tasks before that device ended one, it is left idle. If they would end k of them, the device
gets the (k+1)-th by deadline: the k before it do better with the fast ones. A device that does
nothing at all takes one a little before that: what it takes is out of the way of what is still to
come.
"""

from enum import Enum

from ispine.scheduler.actions import AssignTask
from ispine.scheduler.candidate import Candidate
from ispine.scheduler.config import MS
from ispine.scheduler.device import Rung
from ispine.scheduler.ending import cancel_attempt, fail
from ispine.scheduler.order import Entry, Pick
from ispine.scheduler.placement import (
    cheapest,
    finished_before,
    fitting_rung,
    scan,
    scan_for_place,
)
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import Attempt, AttemptState, Lane, TaskRecord
from ispine.scheduler.timers import Due

_MAX_LEVELS = 16
_LOOK_BEHIND = 8
_MOST_PASSED = 16
"""Wearables in a row for which nothing can be done; then the others are not tried either."""


def dispatch(state: CoreState) -> None:
    """Give out what can be given out now."""
    state.needs_dispatch = False
    fleet, lanes = state.fleet, state.waiting.lanes
    blocked: set[Lane] = {lane for lane in lanes if not fleet.open(lane.capability)}
    passed: set[tuple[str, Lane]] = set()
    while len(blocked) < len(lanes):
        pick = state.waiting.pick(blocked, passed)
        if pick is None:
            break
        served = _serve(state, pick)
        if served is _Served.YES and not fleet.open(pick.lane.capability):
            served = _Served.LANE_STUCK
        if served is _Served.LANE_STUCK or len(passed) >= _MOST_PASSED:
            blocked.add(pick.lane)
        elif served is _Served.WEARABLE_STUCK:
            passed.add((pick.client_id, pick.lane))


class _Served(Enum):
    """What came of the wearable that was next."""

    YES = 1
    WEARABLE_STUCK = 2
    LANE_STUCK = 3


def _serve(state: CoreState, pick: Pick) -> _Served:
    """Place, or end, one task of the wearable that is next."""
    head = pick.entries[0][2]
    candidates = _scan_for(state, head)
    if not candidates:
        return _serve_other(state, pick)
    if _is_hopeless(state, head, candidates):
        predicted_ms = min(c.finish_ns for c in candidates) / 1e6
        fail(
            state,
            head,
            "expired",
            "expired",
            f"expected an answer within {(head.deadline_ns - head.submitted_ns) / 1e6:.0f} ms;"
            f" the line moved slower than predicted and the best device needs {predicted_ms:.0f} ms"
            f" more; lower the rate or allow more time",
            {"predicted_ms": round(predicted_ms, 1)},
        )
        return _Served.YES
    free = [candidate for candidate in candidates if candidate.has_place]
    if not free:
        return _serve_other(state, pick)
    chosen = cheapest(state, free)
    position = finished_before(candidates, chosen)
    if chosen.wait_ns == 0:
        position = int(position * state.config.eagerness)
    if position and state.waiting.count(pick.lane, pick.priority) <= position:
        _hold_back(state, candidates)
        return _Served.LANE_STUCK
    index = position // max(state.waiting.sharers(pick.lane, pick.priority), 1)
    placed = _place_from(state, pick.entries, index, chosen, candidates)
    return _Served.YES if placed else _Served.WEARABLE_STUCK


def _scan_for(state: CoreState, task: TaskRecord) -> list[Candidate]:
    """Candidates at the best level of the ladder that makes the deadline anywhere."""
    if task.avoid:
        usable = {device.device_id for device, _ in state.fleet.usable(task.lane)}
        if usable and usable <= task.avoid:
            task.avoid &= task.failed_on
    slack = task.deadline_ns - state.now_ns
    candidates: list[Candidate] = []
    for level in range(task.level, _MAX_LEVELS):
        if level or task.avoid:
            candidates = scan(state, task.lane, task.size_bytes, level, task.avoid)
        else:
            waiting = state.waiting.count(task.lane, 0)
            candidates = scan_for_place(state, task.lane, task.size_bytes, waiting)
        if not candidates:
            return candidates
        best = min([c.finish_ns + c.deviation_ns for c in candidates])
        if best <= slack or level + 1 >= max([len(c.skill.ladder) for c in candidates]):
            break
    return candidates


def _is_hopeless(state: CoreState, task: TaskRecord, candidates: list[Candidate]) -> bool:
    """Whether no device can make the deadline, even if all goes well, and none is at it."""
    if any(a.is_held or a.state is not AttemptState.UNWANTED for a in task.attempts.values()):
        return False
    slack = task.deadline_ns - state.now_ns
    return all(c.finish_ns - c.deviation_ns > slack for c in candidates) and not any(
        c.rung.estimate.is_doubtful(state.now_ns, 2_000 * MS) for c in candidates
    )


def _serve_other(state: CoreState, pick: Pick) -> _Served:
    """The first task has no device now, because of its size or its past; try those behind it."""
    for _, _, task in pick.entries[1 : 1 + _LOOK_BEHIND]:
        free = [c for c in _scan_for(state, task) if c.has_place]
        if free and _try(state, task, cheapest(state, free), free):
            return _Served.YES
    return _Served.WEARABLE_STUCK


def _place_from(
    state: CoreState,
    entries: list[Entry],
    index: int,
    chosen: Candidate,
    candidates: list[Candidate],
) -> bool:
    """Give `chosen` the task at `index`, or one behind it, or the first one as a last resort."""
    start = min(index, len(entries) - 1)
    for _, _, task in entries[start : start + _LOOK_BEHIND]:
        if _try(state, task, chosen, candidates):
            return True
    if len(entries) > _LOOK_BEHIND and _try(state, entries[-1][2], chosen, candidates):
        return True
    head = entries[0][2]
    others = [c for c in candidates if c.has_place and c is not chosen]
    for candidate in sorted(others)[:_LOOK_BEHIND]:
        if _try(state, head, candidate, candidates):
            return True
    return _gamble(state, head, candidates)


def _try(
    state: CoreState, task: TaskRecord, chosen: Candidate, candidates: list[Candidate]
) -> bool:
    device = chosen.device
    if device.device_id in task.avoid or task.size_bytes > chosen.skill.max_input_bytes:
        return False
    if device.probes_left and not _may_probe(state, task, chosen):
        return False
    fit = fitting_rung(state, task, chosen)
    if fit is None:
        return False
    assign(state, task, chosen, fit[0], fit[1], candidates)
    return True


def _may_probe(state: CoreState, task: TaskRecord, chosen: Candidate) -> bool:
    """A device on probation gets only what can still be given to another afterwards."""
    slack = task.deadline_ns - state.now_ns
    return task.is_idempotent and slack >= 3 * chosen.finish_ns and not task.attempts


def _gamble(state: CoreState, head: TaskRecord, candidates: list[Candidate]) -> bool:
    """Nothing is sure to make it; the first task still goes to a device that may."""
    slack = head.deadline_ns - state.now_ns
    hopeful = [
        c
        for c in candidates
        if c.has_place
        and not c.device.probes_left
        and (
            c.finish_ns - c.deviation_ns <= slack
            or c.rung.estimate.is_doubtful(state.now_ns, 2_000 * MS)
        )
    ]
    if not hopeful:
        return False
    chosen = min(hopeful, key=lambda c: c.finish_ns)
    assign(state, head, chosen, chosen.rung, chosen.finish_ns, candidates)
    return True


def _hold_back(state: CoreState, candidates: list[Candidate]) -> None:
    """Look again when the faster devices should have got a place."""
    soonest = min(max(c.wait_ns, 0.0) for c in candidates if not c.has_place)
    when = state.now_ns + max(int(soonest), 1 * MS)
    if not state.now_ns < state.dispatch_at_ns <= when:
        state.dispatch_at_ns = when
        state.timers.add(when, Due.DISPATCH, None)


def assign(
    state: CoreState,
    task: TaskRecord,
    chosen: Candidate,
    rung: Rung,
    finish_ns: float,
    candidates: list[Candidate],
    *,
    is_hedge: bool = False,
) -> Attempt:
    """Give a task to a device.

    `finish_ns` is the expected time until the answer, from now; `candidates` is what was compared,
    for the trace; `is_hedge` means a second device for a task that the first one still has.
    """
    if task.is_waiting:
        state.waiting.remove(task)
    if not is_hedge:
        _withdraw_others(state, task)
    attempt = _make_attempt(state, task, chosen, rung, finish_ns, is_hedge)
    device = chosen.device
    device.hold(attempt, state.now_ns)
    state.fleet.update(device)
    _account(state, task, attempt)
    _arm(state, attempt)
    state.out.append(order_for(state, attempt))
    state.traces.of(task).note(
        state.now_ns,
        "hedged" if is_hedge else "assigned",
        device.device_id,
        attempt.number,
        f"expected after {finish_ns / 1e6:.1f} ms",
        candidates,
    )
    return attempt


def _withdraw_others(state: CoreState, task: TaskRecord) -> None:
    for attempt in task.attempts.values():
        if attempt.state is not AttemptState.UNWANTED:
            if attempt.is_held:
                cancel_attempt(state, attempt)
            else:
                attempt.state = AttemptState.UNWANTED


def _make_attempt(
    state: CoreState,
    task: TaskRecord,
    chosen: Candidate,
    rung: Rung,
    finish_ns: float,
    is_hedge: bool,
) -> Attempt:
    now, config = state.now_ns, state.config
    task.is_idempotent = task.is_idempotent and chosen.skill.is_idempotent
    expected = now + int(finish_ns)
    late = max(4 * chosen.deviation_ns, config.hedge_floor_ns)
    span = task.deadline_ns - task.submitted_ns
    attempt = Attempt(
        task,
        len(task.attempts) + 1,
        chosen.device.device_id,
        rung.name,
        now,
        expected,
        rung.estimate.mean_ns + chosen.device.overhead_ns,
        chosen.deviation_ns,
        lease_ends_ns=expected + int(max(8 * chosen.deviation_ns, config.lease_floor_ns)),
        accept_by_ns=now + int(_accept_within_ns(state, chosen, task.size_bytes)),
        is_hedge=is_hedge,
    )
    if task.is_idempotent and not task.is_hedged:
        latest = task.submitted_ns + int(config.hedge_at * span)
        attempt.hedge_at_ns = max(min(latest, expected + int(late)), now + config.hedge_floor_ns)
    task.attempts[attempt.number] = attempt
    return attempt


def _accept_within_ns(state: CoreState, chosen: Candidate, size_bytes: int) -> float:
    """max(50 ms, n + 4·v), and the time that the bytes take."""
    known = chosen.device.accept
    usual = known.mean_ns + 4 * known.deviation_ns
    return max(state.config.accept_floor_ns, usual) + size_bytes * _SLOWEST_LINK_NS_PER_BYTE


_SLOWEST_LINK_NS_PER_BYTE = 100
"""10 MB/s: a slower link is only asked too early whether it has the assignment."""


def _account(state: CoreState, task: TaskRecord, attempt: Attempt) -> None:
    state.counters.assigned += 1
    if attempt.is_hedge:
        state.budget.spend()
        state.counters.hedged += 1
        task.is_hedged = True
    else:
        state.budget.earn()
    if not task.first_assigned_ns:
        task.first_assigned_ns = state.now_ns
    else:
        state.counters.reassigned += not attempt.is_hedge
    state.waiting.charge(task.client_id, attempt.service_ns)
    state.quotas.spend(task.client_id, state.now_ns, attempt.service_ns)
    known = state.mean_service_ns.get(task.lane, attempt.service_ns)
    state.mean_service_ns[task.lane] = known + 0.1 * (attempt.service_ns - known)


def _arm(state: CoreState, attempt: Attempt) -> None:
    """Start the clocks of an attempt; the first that is due arms the next (see `rescue`)."""
    timers = state.timers
    timers.add(attempt.accept_by_ns, Due.ACCEPT, attempt)
    if attempt.hedge_at_ns and attempt.hedge_at_ns < attempt.task.deadline_ns:
        timers.add(attempt.hedge_at_ns, Due.HEDGE, attempt)
    if attempt.lease_ends_ns < attempt.task.deadline_ns:
        timers.add(attempt.lease_ends_ns, Due.LEASE, attempt)
    device = state.fleet.devices[attempt.device_id]
    if not device.is_watched:
        device.is_watched = True
        timers.add(state.now_ns + state.config.silence_floor_ns, Due.WATCH, device)


def order_for(state: CoreState, attempt: Attempt, *, is_resent: bool = False) -> AssignTask:
    """The action that sends an attempt to its device."""
    task = attempt.task
    return AssignTask(
        state.event_id,
        task.task_id,
        task.client_id,
        attempt.device_id,
        task.lane.capability,
        attempt.number,
        attempt.variant,
        max((task.deadline_ns - state.now_ns) // MS, 1),
        task.priority,
        attempt.is_hedge,
        is_resent,
    )
