"""When a device lends itself: its owner's rules.

A TOML file on the device, or options of `ispine agent`. The device enforces them itself; the
scheduler only sees the outcome.

    min_battery_pct = 30
    max_temp_c = 75
    only_when_charging = false
    only_when_idle = true          # CPU load of everything else below half
    max_cpu_share = 0.5
    quiet_hours = ["22:00-07:00"]
"""

import tomllib
from datetime import time
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ispine.agent.sensors import Reading
from ispine.protocol.errors import ConfigError

IDLE_LOAD = 0.5
TEMP_HYSTERESIS_C = 5.0
BATTERY_HYSTERESIS_PCT = 3.0


class Rules(BaseModel):
    """The rules of one owner.

    Attributes:
        min_battery_pct: below it, and not charging, no work is taken.
        max_temp_c: at it no work is taken; again 5 degrees below.
        only_when_charging: work only on mains power.
        only_when_idle: work only while the load of everything else is below half.
        max_cpu_share: share of the cores that slots and threads may use together.
        quiet_hours: spans of local time without work, "22:00-07:00".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_battery_pct: Annotated[float, Field(ge=0, le=100)] = 15.0
    max_temp_c: Annotated[float, Field(ge=0, le=150)] = 85.0
    only_when_charging: bool = False
    only_when_idle: bool = False
    max_cpu_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    quiet_hours: tuple[str, ...] = ()

    @field_validator("quiet_hours")
    @classmethod
    def _spans_are_times(cls, spans: tuple[str, ...]) -> tuple[str, ...]:
        for span in spans:
            _span(span)
        return spans


def _span(text: str) -> tuple[time, time]:
    try:
        begin, end = (time.fromisoformat(part.strip()) for part in text.split("-"))
    except ValueError as error:
        raise ValueError(f"expected a span like 22:00-07:00; got {text!r}") from error
    return begin, end


def load(path: Path) -> Rules:
    """Read a rules file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or holds an unknown or wrong rule.
    """
    try:
        return Rules.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"expected a rules file at {path}; {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected {path} to be TOML; {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"expected valid rules in {path}; {where}: {first['msg']}") from error


def refusal_of(rules: Rules, reading: Reading, local: time, *, was_refusing: bool = False) -> str:
    """Why no work is taken now, "" when it is.

    Args:
        rules: the owner's.
        reading: the sensors; what is unknown refuses nothing.
        local: local time of day.
        was_refusing: the last answer was a refusal: battery and temperature must recover a little
            beyond their floors, so that the device does not flicker.
    """
    for span in rules.quiet_hours:
        if _is_within(local, *_span(span)):
            return f"quiet hours {span}"
    if rules.only_when_charging and not reading.is_charging:
        return "not charging"
    floor = rules.min_battery_pct + (BATTERY_HYSTERESIS_PCT if was_refusing else 0)
    if reading.battery_pct is not None and not reading.is_charging and reading.battery_pct < floor:
        return f"battery at {reading.battery_pct:.0f} %, floor is {rules.min_battery_pct:.0f} %"
    ceiling = rules.max_temp_c - (TEMP_HYSTERESIS_C if was_refusing else 0)
    if reading.temp_c is not None and reading.temp_c >= ceiling:
        return f"at {reading.temp_c:.0f} °C, limit is {rules.max_temp_c:.0f} °C"
    others = (reading.cpu_load or 0.0) - reading.own_load
    if rules.only_when_idle and others > IDLE_LOAD:
        return f"busy: other programs use {others:.0%} of the CPU"
    return ""


def _is_within(now: time, begin: time, end: time) -> bool:
    if begin <= end:
        return begin <= now < end
    return now >= begin or now < end


def describe(rules: Rules) -> dict[str, str | float | bool]:
    """The rules by name, for the device state and for display."""
    shown: dict[str, str | float | bool] = {
        "min_battery_pct": rules.min_battery_pct,
        "max_temp_c": rules.max_temp_c,
    }
    if rules.only_when_charging:
        shown["only_when_charging"] = True
    if rules.only_when_idle:
        shown["only_when_idle"] = True
    if rules.max_cpu_share < 1:
        shown["max_cpu_share"] = rules.max_cpu_share
    if rules.quiet_hours:
        shown["quiet_hours"] = ", ".join(rules.quiet_hours)
    return shown
