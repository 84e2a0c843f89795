"""Questions to the core: devices, tasks, why, capacity, stats. Nothing here changes anything."""

from dataclasses import fields
from typing import NamedTuple

from ispine.protocol.ids import Capability
from ispine.scheduler.device import Device, Skill
from ispine.scheduler.placement import scan
from ispine.scheduler.state import CoreState
from ispine.scheduler.task import Lane
from ispine.scheduler.trace import Step, Trace

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_HEADROOM = 0.85
"""Share of the fleet that streams may fill: above it, queues outgrow deadlines."""


def _rounded(value: float | None, digits: int = 2) -> Json:
    return None if value is None else round(value, digits)


def devices(state: CoreState) -> list[dict[str, Json]]:
    """Every known device: standing, load, estimates and how good predictions for it were."""
    return [_device(state, device) for device in state.fleet.devices.values()]


def _device(state: CoreState, device: Device) -> dict[str, Json]:
    now, fresh = state.now_ns, state.config.telemetry_fresh_ns
    return {
        "device": device.device_id,
        "online": device.is_online,
        "standing": standing(device),
        "slots": device.slots,
        "held": len(device.held),
        "drained": device.is_drained or device.known.is_draining,
        "battery_pct": _rounded(device.battery.fresh(now, fresh)),
        "charging": device.known.is_charging,
        "temp_c": _rounded(device.temp.fresh(now, fresh)),
        "heat": _rounded(device.heat(now, state.config)),
        "price": _rounded(device.price),
        "link_ms": _rounded(device.link.base.mean_ns / 1e6),
        "link_ms_per_mb": _rounded(device.link.slope * 1e6 / 1e6),
        "answered": device.answered,
        "failed": device.failed,
        "ignored_readings": device.ignored_readings,
        "calibration_p50": _rounded(device.calibration.quantile(0.5)),
        "calibration_p95": _rounded(device.calibration.quantile(0.95)),
        "heard_s_ago": _rounded((now - device.heard_ns) / 1e9) if device.heard_ns else None,
        "capabilities": [_skill(skill) for skill in device.skills.values()],
    }


def standing(device: Device) -> str:
    """In a few words, why a device gets work or not."""
    if device.block:
        return device.block
    return f"on probation: {device.quarantine_reason}" if device.probes_left else "ready"


def _skill(skill: Skill) -> dict[str, Json]:
    variants: list[Json] = [
        {
            "variant": rung.name,
            "quality": rung.quality,
            "service_ms": _rounded(rung.estimate.mean_ns / 1e6),
            "deviation_ms": _rounded(rung.estimate.deviation_ns / 1e6),
            "prior_ms": _rounded(rung.estimate.prior_ns / 1e6),
            "samples": rung.estimate.count,
        }
        for rung in skill.ladder
    ]
    return {
        "capability": skill.capability,
        "idempotent": skill.is_idempotent,
        "max_batch": skill.batch,
        "parallel": _rounded(skill.parallel),
        "variants": variants,
    }


def tasks(state: CoreState, limit: int, after: int) -> list[dict[str, Json]]:
    """The last tasks, oldest first; `after` is the `cursor` of the last one that was seen."""
    return [_summary(trace) for trace in state.traces.latest(limit, after)]


def _summary(trace: Trace) -> dict[str, Json]:
    return {
        "cursor": trace.seq,
        "task": trace.task_id,
        "client": trace.client_id,
        "capability": trace.capability,
        "mode": trace.mode,
        "priority": trace.priority,
        "bytes": trace.size_bytes,
        "within_ms": _rounded(trace.within_ms),
        "status": trace.status,
        "code": trace.code,
        "message": trace.message,
        "device": trace.device_id,
        "variant": trace.variant,
        "predicted_ms": _rounded(trace.predicted_ms),
        "total_ms": _rounded(trace.total_ms),
    }


def why(state: CoreState, task_id: str, client_id: str = "") -> dict[str, Json] | None:
    """The whole story of one task, None when it is not known any more."""
    trace = state.traces.find(task_id, client_id)
    if trace is None:
        return None
    story = _summary(trace)
    story["steps"] = [_step(step) for step in trace.steps]
    story["parts_ms"] = {name: _rounded(value) for name, value in trace.parts_ms.items()}
    if trace.predicted_ms and trace.status == "done":
        story["actual_to_predicted"] = _rounded(trace.total_ms / trace.predicted_ms)
    return story


def _step(step: Step) -> dict[str, Json]:
    made: dict[str, Json] = {"at_ms": _rounded(step.at_ms), "what": step.what}
    if step.device_id:
        made["device"] = step.device_id
    if step.attempt:
        made["attempt"] = step.attempt
    if step.detail:
        made["detail"] = step.detail
    if step.candidates:
        made["candidates"] = [
            {
                "device": c.device.device_id,
                "variant": c.rung.name,
                "queue_ms": _rounded(c.wait_ns / 1e6),
                "link_ms": _rounded(c.link_ns / 1e6),
                "compute_ms": _rounded((c.service_ns + c.rung.load_ns) / 1e6),
                "cost_ms": _rounded(c.cost_ns / 1e6),
                "had_place": c.has_place,
            }
            for c in step.candidates
        ]
    return made


class Capacity(NamedTuple):
    """How much more fits.

    Attributes:
        devices: that make the deadline at all.
        total_per_s: tasks per second that they can sustain.
        used_per_s: what arrives now.
        streams: how many more streams of the asked kind fit.
    """

    devices: int
    total_per_s: float
    used_per_s: float
    streams: int


def capacity(
    state: CoreState, capability: Capability, fps: float, within_ms: float, size_bytes: int
) -> Capacity:
    """Streams of `fps` tasks per second, each answered within `within_ms`, that still fit.

    A device counts when its measured service and link time, with their deviation, make the
    deadline; it sustains slots / service time, of which 85 % are promised.
    """
    candidates = scan(state, Lane(capability, None, ""), size_bytes)
    able = [
        c for c in candidates if c.service_ns + c.link_ns + 2 * c.deviation_ns <= within_ms * 1e6
    ]
    total = sum(1e9 / max(c.pace_ns, 1.0) for c in able) * _HEADROOM
    last, rate = state.arrivals.get(capability, (state.now_ns, 0.0))
    used = rate * 0.5 ** min((state.now_ns - last) / 1e9, 60.0)
    streams = int(max(total - used, 0.0) / fps) if fps > 0 else 0
    return Capacity(len(able), total, used, streams)


def stats(state: CoreState) -> dict[str, Json]:
    """Counters of the core."""
    made: dict[str, Json] = {
        entry.name: getattr(state.counters, entry.name) for entry in fields(state.counters)
    }
    made["open"] = len(state.open)
    made["waiting"] = len(state.waiting)
    made["kept_outcomes"] = len(state.ledger)
    made["kept_bytes"] = state.ledger.kept_bytes
    made["hedge_attempts"] = state.budget.attempts
    made["devices_online"] = sum(d.is_online for d in state.fleet.devices.values())
    return made
