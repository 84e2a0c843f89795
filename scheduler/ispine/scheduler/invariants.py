"""What must hold after every event. This is the specification of the core's state."""

from ispine.scheduler.device import Device
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import AttemptState, TaskRecord


def check(state: CoreState) -> None:
    """Raise AssertionError with the rule that is broken."""
    waiting = set(state.waiting)
    assert len(waiting) == len(state.waiting), "the line counts its tasks"
    for key, task in state.open.items():
        assert task.key == key
        assert state.ledger.get(key) is None, f"{key} is open and decided"
        _check_task(task, task in waiting)
    for task in waiting:
        assert task.key in state.open, f"{task.key} waits but is decided"
    for device in state.fleet.devices.values():
        _check_device(state, device)
    assert state.budget.is_kept, "more hedges than the budget allows"


def _check_task(task: TaskRecord, waits: bool) -> None:
    active = task.active()
    assert task.is_waiting == waits
    assert not task.is_decided, f"{task.key} is decided but open"
    assert waits or active, f"{task.key} has no owner: it neither waits nor runs"
    assert not (waits and active), f"{task.key} waits although a device has it"
    hedges = sum(attempt.is_hedge for attempt in task.attempts.values())
    assert hedges <= 1, f"{task.key} was hedged {hedges} times"
    assert task.is_idempotent or not hedges, f"{task.key} may not run twice but was hedged"
    assert len(active) <= 2, f"{task.key} runs on {len(active)} devices"
    devices = [attempt.device_id for attempt in active]
    assert len(set(devices)) == len(devices), f"{task.key} runs twice on one device"


def _check_device(state: CoreState, device: Device) -> None:
    most = max((device.slots * s.batch + 1 for s in device.skills.values()), default=None)
    if most is not None:
        seen = device.most_held
        assert len(device.held) <= max(most, seen), f"{device.device_id} holds too much"
    for attempt in device.held:
        assert attempt.device_id == device.device_id
        assert attempt.is_held
        done = attempt.task.is_decided
        assert not done or attempt.state is AttemptState.UNWANTED, "a decided task still runs"
    if not device.held:
        assert device.work_ns >= 0
    for capability, skill in device.skills.items():
        is_open = device in state.fleet.open(capability)
        may = not device.block and len(device.held) < device.limit(skill)
        assert is_open == may, f"{device.device_id} is listed wrongly for {capability}"
