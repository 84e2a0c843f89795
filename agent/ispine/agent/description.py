"""What the device says about itself, and when it is worth saying again."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ispine.agent import rules
from ispine.agent.config import AgentConfig
from ispine.agent.core import ALL_LOST
from ispine.agent.sensors import Reading
from ispine.protocol.state import CapabilityState, DeviceState

STATE_AGE_S = 20.0
"""The scheduler forgets telemetry after 60 s; three messages may be lost."""
SOFT_BELOW_HARD_C = 15.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What changes about a device beside its sensors.

    Attributes:
        rule_refusal: the owner's rule that refuses work, "" when none does.
        is_draining: it finishes what it holds and takes nothing new.
        lost_slots: slots with a run that does not end.
    """

    rule_refusal: str = ""
    is_draining: bool = False
    lost_slots: int = 0

    @property
    def refusal(self) -> str:
        """Why no work is taken, "" when it is."""
        return self.rule_refusal or ("the device drains" if self.is_draining else "")


def first_state(
    config: AgentConfig, boot: int, capabilities: tuple[CapabilityState, ...]
) -> DeviceState:
    """Everything that stays the same while the agent runs."""
    return DeviceState(
        device_id=config.device_id,
        boot=boot,
        name=config.name or config.device_id,
        kind=config.kind,
        owner=config.owner,
        version=_own_version(),
        slots=config.effective_slots,
        capabilities=capabilities,
        temp_soft_c=max(config.rules.max_temp_c - SOFT_BELOW_HARD_C, 0.0),
        temp_hard_c=config.rules.max_temp_c,
        rules=rules.describe(config.rules),
        runtimes=_runtimes(),
    )


def describe(first: DeviceState, reading: Reading, standing: Standing) -> DeviceState:
    """The state now; `first` says what the device has when nothing is lost."""
    usable = first.slots - standing.lost_slots
    refusal = standing.rule_refusal or ("" if usable > 0 else ALL_LOST)
    return first.model_copy(
        update={
            "battery_pct": reading.battery_pct,
            "is_charging": reading.is_charging,
            "temp_c": reading.temp_c,
            "cpu_load": reading.cpu_load,
            "accepts": not refusal,
            "refusal": refusal[:128],
            "is_draining": standing.is_draining,
            "slots": max(usable, 1),
        }
    )


def is_news(old: DeviceState, new: DeviceState) -> bool:
    """Whether somebody would decide otherwise with the new state."""
    return (
        (old.accepts, old.refusal, old.is_draining, old.slots, old.is_charging)
        != (new.accepts, new.refusal, new.is_draining, new.slots, new.is_charging)
        or _differs(old.temp_c, new.temp_c, 1.0)
        or _differs(old.battery_pct, new.battery_pct, 1.0)
        or _differs(old.cpu_load, new.cpu_load, 0.2)
    )


def _differs(old: float | None, new: float | None, by: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(old - new) >= by


def _own_version() -> str:
    try:
        return version("ispine")
    except PackageNotFoundError:
        return ""


def _runtimes() -> tuple[str, ...]:
    try:
        from ispine.models.runtime import available_providers
    except ImportError:
        return ()
    return tuple(available_providers())
