"""Where a task would end soonest: expected completion time, its cost, and the line's prediction.

For a device d the expected completion time from now is

    ECT_d = wait_d + s + n + bytes / B + load(model)        (DESIGN, section 6.1)

with `wait_d` the time until one of its places runs free. The cost is `ECT_d * (1 + λ·θ + battery)`;
a device that may get nothing has no cost at all, it is not a candidate.

`fluid_finish_ns` predicts when the (k+1)-th waiting task will end if every device takes tasks as it
gets free, and `finished_before` is its inverse. Both are used for admission and for the decision to
leave a slow device idle: at the end of a batch it is better to wait for a fast one.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from ispine.protocol.ids import DeviceId
from ispine.scheduler.candidate import Candidate, make_candidate
from ispine.scheduler.config import MS
from ispine.scheduler.device import Device, Rung, Skill
from ispine.scheduler.state import CoreState, is_admitted
from ispine.scheduler.task import Lane, TaskRecord


def scan(
    state: CoreState,
    lane: Lane,
    size_bytes: int,
    level: int = 0,
    avoid: Collection[DeviceId] = (),
    *,
    only_open: bool = False,
) -> list[Candidate]:
    """Every device that may run such a task, scored; a sample above `config.sample`.

    `level` is rungs below the best variant, `avoid` are devices that must not get it; `only_open`
    leaves out devices without a place.
    """
    found: list[Candidate] = []
    chosen = _to_look_at(state, lane, only_open=only_open)
    if not lane.is_plain:
        chosen = [(d, s) for d, s in chosen if is_admitted(lane, d, s)]
    for device, skill in chosen:
        if device.block or size_bytes > skill.max_input_bytes or device.device_id in avoid:
            continue
        rung = skill.rung(level, lane.variant)
        if rung is not None:
            found.append(_score(state, device, skill, rung, size_bytes, len(found)))
    return found


def _score(
    state: CoreState, device: Device, skill: Skill, rung: Rung, size_bytes: int, order: int
) -> Candidate:
    held, link = len(device.held), device.link
    service, steady, pace, deviation = rung.numbers or device.numbers_of(rung, skill)
    wait = 0.0 if held < device.slots else device.wait_ns(state.now_ns, skill.parallel)
    way = link.base.mean_ns if link.slope == 0.0 else link.at(size_bytes)
    finish = wait + steady + way
    candidate: Candidate = make_candidate(
        (
            finish * device.price,
            order,
            finish,
            wait,
            way,
            service,
            pace,
            deviation,
            held < device.limit(skill),
            device,
            skill,
            rung,
        )
    )
    return candidate


def glance(state: CoreState, lane: Lane, size_bytes: int, ahead: float) -> list[Candidate]:
    """As `scan`, but in a large fleet, behind a long line, an old score will do for 5 ms.

    `ahead` is the number of tasks in the line before the one that is meant.
    """
    known = state.looks.get(lane)
    if known is not None and state.now_ns - known[0] < _FRESH_NS and ahead >= len(known[1]):
        return known[1]
    candidates = scan(state, lane, size_bytes)
    if len(candidates) >= _MANY and ahead >= len(candidates):
        state.looks[lane] = (state.now_ns, candidates)
    return candidates


def scan_for_place(state: CoreState, lane: Lane, size_bytes: int, waiting: int) -> list[Candidate]:
    """As `glance`, with the devices that have a place scored afresh."""
    known = state.looks.get(lane)
    if known is None or state.now_ns - known[0] >= _FRESH_NS or waiting < len(known[1]):
        return glance(state, lane, size_bytes, waiting)
    found = scan(state, lane, size_bytes, only_open=True)
    opened = {candidate.device for candidate in found}
    return found + [c for c in known[1] if not c.has_place and c.device not in opened]


_FRESH_NS = 5 * MS
_MANY = 16


def _to_look_at(state: CoreState, lane: Lane, *, only_open: bool) -> Iterable[tuple[Device, Skill]]:
    opened = state.fleet.open(lane.capability)
    members = opened if only_open else state.fleet.members(lane.capability)
    limit = state.config.sample
    if len(members) <= limit:
        return members.items()
    chosen = dict(_spread(state, opened, limit // 2))
    chosen.update(_spread(state, members, limit - len(chosen)))
    return chosen.items()


def _spread(
    state: CoreState, devices: dict[Device, Skill], count: int
) -> Iterable[tuple[Device, Skill]]:
    if len(devices) <= count:
        return devices.items()
    step = -(-len(devices) // count)
    return islice(devices.items(), state.dice.below(step), None, step)


def cheapest(state: CoreState, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate with the least cost; a random one of those within the tie of it."""
    least = min(candidates)
    limit = least.cost_ns * (1 + state.config.tie)
    equal = [candidate for candidate in candidates if candidate.cost_ns <= limit]
    return equal[state.dice.below(len(equal))] if len(equal) > 1 else least


def fluid_finish_ns(candidates: Sequence[Candidate], ahead: float) -> float:
    """When a task ends that has `ahead` others before it, nanoseconds from now.

    Device d has ended `1 + (T - finish_d) / pace_d` of them at time T.
    """
    ordered = sorted([(c.finish_ns, c.pace_ns) for c in candidates])
    rate = 0.0
    offset = 0.0
    ends = 0.0
    for index, (finish, pace) in enumerate(ordered):
        rate += 1 / pace
        offset += finish / pace - 1
        ends = (ahead + 1 + offset) / rate
        if index + 1 < len(ordered) and ends <= ordered[index + 1][0]:
            break
    return max(ends, ordered[0][0])


def finished_before(candidates: Sequence[Candidate], chosen: Candidate) -> int:
    """How many tasks the cheaper devices, all busy now, would end before `chosen` ends one."""
    count = 0
    for other in candidates:
        if other.device is chosen.device or other.cost_ns >= chosen.cost_ns or other.has_place:
            continue
        span = chosen.cost_ns / other.device.price - other.finish_ns
        count += 1 + int(span / other.pace_ns)
    return count


def fitting_rung(
    state: CoreState, task: TaskRecord, candidate: Candidate
) -> tuple[Rung, float] | None:
    """The best variant on that device with which the task meets its deadline, and when it ends.

    While others wait it is no better than what admission counted on.

    Returns:
        The variant and its end in nanoseconds from now; None when none is fast enough.
    """
    slack = task.deadline_ns - state.now_ns
    skill = candidate.skill
    pinned = skill.rung(0, task.lane.variant) if task.lane.variant else None
    highest = min(task.level, len(skill.ladder) - 1) if len(state.waiting) > 1 else 0
    for rung in skill.ladder[highest:] if pinned is None else (pinned,):
        finish = candidate.wait_ns + candidate.link_ns + rung.estimate.mean_ns + rung.load_ns
        if finish + candidate.deviation_ns <= slack:
            return rung, finish
    return None
