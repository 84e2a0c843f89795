"""Admin requests: what people and the dashboard may ask the scheduler."""

import json
from collections.abc import Callable, Mapping

from ispine.protocol.errors import BadId, TaskError, TaskRejected
from ispine.protocol.ids import Capability, DeviceId, check_id
from ispine.protocol.state import AdminAnswer, AdminFailure, AdminRequest, DeviceState
from ispine.scheduler import report
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.events import DeviceDrained, DeviceResumed, Event
from ispine.scheduler.report import Json

Args = Mapping[str, str | int | float | bool | None]
Verb = Callable[[Args], Json]

_MAX_TASKS = 500


class AdminDesk:
    """Answers requests.

    Args:
        core: is only read.
        tell: gives the core an event and carries out what follows.
        clock: returns `boot_ns`.
        states: what devices said about themselves, for display.
        service_stats: counters of the service.
    """

    def __init__(
        self,
        core: SchedulerCore,
        tell: Callable[[Event], None],
        clock: Callable[[], int],
        states: Mapping[DeviceId, DeviceState],
        service_stats: Callable[[], dict[str, Json]],
    ) -> None:
        self._core = core
        self._tell = tell
        self._clock = clock
        self._states = states
        self._service_stats = service_stats
        self._verbs: dict[str, Verb] = {
            "devices": self._devices,
            "tasks": self._tasks,
            "why": self._why,
            "drain": self._drain,
            "resume": self._resume,
            "stats": self._stats,
            "capacity": self._capacity,
        }

    def answer(self, request: AdminRequest) -> AdminAnswer:
        """Answer one request; refusals are answers too."""
        verb = self._verbs.get(request.verb)
        if verb is None:
            known = ", ".join([*self._verbs, "hello", "outcome"])
            return refuse("rejected", f"expected a verb out of {known}; got {request.verb!r}")
        try:
            return accept(verb(request.args))
        except (TaskError, BadId) as error:
            return refuse(error.code, str(error))

    def _devices(self, _: Args) -> Json:
        rows: list[Json] = []
        for row in report.devices(self._core.state):
            state = self._states.get(DeviceId(str(row["device"])))
            if state is not None:
                row["name"], row["kind"] = state.name, state.kind
                row["owner"], row["version"] = state.owner, state.version
                row["cpu_load"] = state.cpu_load
                row["rules"] = dict(state.rules)
                row["runtimes"] = list(state.runtimes)
                row["boot"] = state.boot
            rows.append(row)
        return rows

    def _tasks(self, args: Args) -> Json:
        limit = _whole(args, "limit", 50, 1, _MAX_TASKS)
        after = _whole(args, "after", 0, 0, 2**62)
        return list(report.tasks(self._core.state, limit, after))

    def _why(self, args: Args) -> Json:
        task = check_id(_text(args, "task"), "task id")
        story = report.why(self._core.state, task, str(args.get("client") or ""))
        if story is None:
            keep = self._core.state.config.traces
            raise TaskRejected(
                f"expected one of the last {keep} tasks; {task} is not among them;"
                " see `ispine tasks`"
            )
        return story

    def _drain(self, args: Args) -> Json:
        device = self._known_device(args)
        self._tell(DeviceDrained(self._clock(), device))
        return self._standing(device)

    def _resume(self, args: Args) -> Json:
        device = self._known_device(args)
        self._tell(DeviceResumed(self._clock(), device))
        return self._standing(device)

    def _known_device(self, args: Args) -> DeviceId:
        device = DeviceId(check_id(_text(args, "device"), "device id"))
        known = self._core.state.fleet.devices
        if device not in known:
            names = ", ".join(sorted(known)[:10]) or "none"
            raise TaskRejected(f"expected a known device ({names}); got {device}")
        return device

    def _standing(self, device_id: DeviceId) -> Json:
        device = self._core.state.fleet.devices[device_id]
        return {
            "device": device_id,
            "drained": device.is_drained,
            "standing": report.standing(device),
            "held": len(device.held),
        }

    def _stats(self, _: Args) -> Json:
        return {**report.stats(self._core.state), **self._service_stats()}

    def _capacity(self, args: Args) -> Json:
        capability = Capability(check_id(_text(args, "capability"), "capability"))
        fps = _number(args, "fps", 15.0)
        within_ms = _number(args, "within_ms", 150.0)
        size = _whole(args, "bytes", 100_000, 0, 2**31)
        found = report.capacity(self._core.state, capability, fps, within_ms, size)
        return {
            "capability": capability,
            "fps": fps,
            "within_ms": within_ms,
            "devices": found.devices,
            "total_per_s": round(found.total_per_s, 2),
            "used_per_s": round(found.used_per_s, 2),
            "streams": found.streams,
        }


def accept(data: Json) -> AdminAnswer:
    """A positive answer."""
    return AdminAnswer(status="ok", data=json.dumps(data))


def refuse(code: str, message: str) -> AdminAnswer:
    """A negative answer."""
    return AdminAnswer(status="refused", error=AdminFailure(code=code, message=message[:2048]))


def _text(args: Args, name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str):
        raise TaskRejected(f"expected text as {name}; got {value!r}")
    return value


def _number(args: Args, name: str, default: float) -> float:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise TaskRejected(f"expected {name} to be a positive number; got {value!r}")
    return float(value)


def _whole(args: Args, name: str, default: int, low: int, high: int) -> int:
    value = args.get(name, default)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise TaskRejected(f"expected {name} from {low} to {high}; got {value!r}")
    return value
