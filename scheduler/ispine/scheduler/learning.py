"""What an answer teaches: times, calibration, and whether a device deserves work at all.

A device's own numbers are believed only as far as the hub's clock agrees: computing and waiting
cannot have taken longer than the attempt. A device whose predictions are badly off, or that failed
tasks which others then solved, is quarantined; after a pause it is on probation, gets one task at a
time that could still be given to another, and is trusted again after a few good answers.
"""

from ispine.scheduler.actions import ReportDevice
from ispine.scheduler.config import MS
from ispine.scheduler.device import Device, Skill
from ispine.scheduler.events import ReplyDone
from ispine.scheduler.rescue import refresh
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import Attempt, TaskRecord
from ispine.scheduler.timers import Due

_BAD_RATIO = 3.0
_JUDGED = 16
_STRIKES = 3.0
_FORGIVEN = 0.25
_MISSES = 8
_WAITED_NS = 0.5 * MS
"""A task that waited longer than this on the device began when the one before it ended."""


def learn(state: CoreState, device: Device, attempt: Attempt, reply: ReplyDone) -> None:
    """Take the times of a good answer."""
    now = state.now_ns
    wall = float(now - attempt.assigned_ns)
    waited = min(max(reply.queue_ms, 0.0) * MS, wall)
    computed = min(max(reply.compute_ms, 0.0) * MS, wall - waited)
    skill = device.skills.get(attempt.task.lane.capability)
    if skill is None:
        return
    if computed <= 0:
        computed = max(now - max(attempt.assigned_ns, device.epoch_ns), 0)
        waited = wall - computed
    skill.named(reply.variant or attempt.variant).estimate.add(computed, now)
    device.link.add(attempt.task.size_bytes, wall - waited - computed, now)
    if waited > _WAITED_NS and device.slots * skill.parallel == 1:
        between = min(max(now - device.epoch_ns - computed, 0.0), computed + 5 * MS)
        device.overhead_ns += 0.1 * (between - device.overhead_ns)
    device.learned()
    if skill.batch > 1:
        _learn_parallel(device, skill, computed, now - max(device.epoch_ns, attempt.assigned_ns))
    _judge(state, device, wall, float(attempt.expected_ns - attempt.assigned_ns))


def _learn_parallel(device: Device, skill: Skill, computed_ns: float, busy_ns: float) -> None:
    """How many tasks share a run: computing time reported per busy time of the device."""
    skill.computed_ns += computed_ns
    skill.busy_ns += busy_ns
    if skill.busy_ns > 0 and skill.computed_ns > 8 * computed_ns:
        share = skill.computed_ns / skill.busy_ns / device.slots
        skill.parallel += 0.3 * (min(max(share, 1.0), float(skill.batch)) - skill.parallel)
        skill.computed_ns = skill.busy_ns = 0.0


def _judge(state: CoreState, device: Device, actual_ns: float, predicted_ns: float) -> None:
    device.answered += 1
    device.misses = 0
    device.strikes = max(device.strikes - _FORGIVEN, 0.0)
    device.calibration.add(actual_ns, predicted_ns)
    badly = actual_ns > _BAD_RATIO * predicted_ns and actual_ns - predicted_ns > 20 * MS
    if device.probes_left:
        if badly:
            quarantine(state, device, "its predictions are still off")
        else:
            _pass_probe(state, device)
        return
    ratio = device.calibration.latest(_JUDGED) if badly else None
    if ratio is not None and ratio > _BAD_RATIO:
        if not _has_stand_in(state, device):
            device.calibration.clear()
            return
        quarantine(state, device, f"answers take {ratio:.1f} times as long as it led to expect")


def _pass_probe(state: CoreState, device: Device) -> None:
    device.probes_left -= 1
    if device.probes_left == 0:
        device.quarantine_for_ns = 0
        device.quarantine_reason = ""
        report = ReportDevice(state.event_id, device.device_id, "trusted", "it passed its probes")
        state.out.append(report)
    refresh(state, device)


def judge_misses(state: CoreState) -> None:
    """Learn from attempts that were given up: they took at least so long.

    Without this, a device that became so slow that nothing of it is in time would keep the
    estimate of its better days. One that lets everything wait forever is quarantined.
    """
    missed, state.missed = state.missed, []
    for attempt in missed:
        device = state.fleet.devices[attempt.device_id]
        skill = device.skills.get(attempt.task.lane.capability)
        if skill is None or device.is_silent or not device.is_online:
            continue
        if next(iter(device.held), None) is attempt:
            took = attempt.service_ns + state.now_ns - attempt.expected_ns
            skill.named(attempt.variant).estimate.add(took, state.now_ns)
            device.learned()
        device.misses += 1
        if device.misses >= _MISSES and not _has_stand_in(state, device):
            device.misses = 0
        elif device.misses >= _MISSES or device.probes_left:
            quarantine(state, device, "it accepts tasks and does not answer them in time")


def _has_stand_in(state: CoreState, device: Device) -> bool:
    """Whether others offer all that a device offers.

    Slow answers of the only device are better than none: a burst that the hub itself cannot carry
    makes every prediction wrong.
    """
    others = [
        other
        for other in state.fleet.devices.values()
        if other is not device and other.is_online and not other.quarantined_ns
    ]
    return all(any(name in other.skills for other in others) for name in device.skills)


def strike(state: CoreState, device: Device, reason: str) -> None:
    """Count a wrong answer, or a failure that was the device's and not the task's."""
    device.strikes += 1
    if device.strikes >= _STRIKES or device.probes_left:
        quarantine(state, device, reason)


def blame(state: CoreState, task: TaskRecord) -> None:
    """A task was solved: those that failed it before were wrong."""
    for device_id in task.failed_on:
        device = state.fleet.devices.get(device_id)
        if device is not None:
            strike(state, device, "it fails tasks that others solve")


def quarantine(state: CoreState, device: Device, reason: str) -> None:
    """Give a device nothing for a while; each time it relapses twice as long."""
    config = state.config
    if device.quarantined_ns:
        return
    longer = 2 * device.quarantine_for_ns or config.quarantine_ns
    device.quarantine_for_ns = min(longer, config.quarantine_cap_ns)
    device.quarantined_ns = state.now_ns + device.quarantine_for_ns
    device.quarantine_reason = reason
    device.probes_left = 0
    device.strikes = 0.0
    device.misses = 0
    device.calibration.clear()
    state.counters.quarantined += 1
    state.timers.add(device.quarantined_ns, Due.QUARANTINE, device)
    state.out.append(ReportDevice(state.event_id, device.device_id, "quarantined", reason))
    refresh(state, device)


def quarantine_due(state: CoreState, device: Device) -> None:
    """The pause is over: probation."""
    if not device.quarantined_ns or state.now_ns < device.quarantined_ns:
        return
    device.quarantined_ns = 0
    device.probes_left = state.config.probes
    report = ReportDevice(state.event_id, device.device_id, "probation", device.quarantine_reason)
    state.out.append(report)
    refresh(state, device)
