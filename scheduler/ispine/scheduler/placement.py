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
from typing import NamedTuple

from ispine.protocol.ids import DeviceId
from ispine.scheduler.device import Device, Rung, Skill
from ispine.scheduler.state import CoreState, is_admitted
from ispine.scheduler.task import Lane, TaskRecord
from ispine.scheduler.trace import CandidateView


class Candidate(NamedTuple):
    """One device as it looks for one task. Times are nanoseconds from now.

    Sorts by cost; `order` makes that unique.
    """

    cost_ns: float
    order: int
    finish_ns: float
    wait_ns: float
    link_ns: float
    service_ns: float
    pace_ns: float
    deviation_ns: float
    has_place: bool
    device: Device
    skill: Skill
    rung: Rung


def scan(
    state: CoreState,
    lane: Lane,
    size_bytes: int,
    level: int = 0,
    avoid: Collection[DeviceId] = (),
) -> list[Candidate]:
    """Every device that may run such a task, scored; a sample above `config.sample`.

    `level` is rungs below the best variant, `avoid` are devices that must not get it.
    """
    now_ns = state.now_ns
    floor_ns = state.config.deviation_floor_ns
    found: list[Candidate] = []
    for device, skill in _to_look_at(state, lane):
        if device.block or size_bytes > skill.max_input_bytes:
            continue
        rung = skill.rung(level, lane.variant)
        if rung is None or not is_admitted(lane, device, skill) or device.device_id in avoid:
            continue
        estimate = rung.estimate
        service = estimate.mean_ns
        wait = device.wait_ns(now_ns, skill.parallel)
        link = device.link.at(size_bytes)
        finish = wait + service + link + rung.load_ns
        found.append(
            Candidate(
                finish * device.price,
                len(found),
                finish,
                wait,
                link,
                service,
                service / (device.slots * skill.parallel),
                max(estimate.deviation_ns + device.link.base.deviation_ns, floor_ns),
                len(device.held) < device.limit(skill),
                device,
                skill,
                rung,
            )
        )
    return found


def _to_look_at(state: CoreState, lane: Lane) -> Iterable[tuple[Device, Skill]]:
    members = state.fleet.members(lane.capability)
    limit = state.config.sample
    if len(members) <= limit:
        return members.items()
    opened = state.fleet.open(lane.capability)
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
    ordered = sorted((c.finish_ns, max(c.pace_ns, 1.0)) for c in candidates)
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
        count += 1 + int(span / max(other.pace_ns, 1.0))
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


def view(candidates: Iterable[Candidate]) -> tuple[CandidateView, ...]:
    """The cheapest candidates, for the trace."""
    return tuple(
        CandidateView(
            c.device.device_id,
            c.rung.name,
            c.wait_ns / 1e6,
            c.link_ns / 1e6,
            (c.service_ns + c.rung.load_ns) / 1e6,
            c.cost_ns / 1e6,
            c.has_place,
        )
        for c in sorted(candidates)[:16]
    )
