"""What a fleet was measured to do: a JSON file that a replay reads."""

import bisect
import random
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ispine.protocol.errors import ConfigError

MS, SECOND = 1_000_000, 1_000_000_000
THERMAL_STEP_NS = 10 * SECOND
Positive = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]
Draw = Callable[[int], float]
"""A time in nanoseconds, drawn for a simulated time."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ServiceTime(_Part):
    """One model on one phone, milliseconds."""

    mean_ms: Positive
    std_ms: NotNegative


class Phone(_Part):
    """One device."""

    models: Annotated[dict[str, ServiceTime], Field(min_length=1)]


class Profile(_Part):
    """A fleet.

    Attributes:
        phones: devices by name.
        wifi_rtt_ms_quantiles: percent (as text) to round trip in milliseconds.
        thermal_clock_factor_10s: series of the relative clock, one value for ten seconds.
        sample_interval_ms: how long one round trip holds.
    """

    phones: Annotated[dict[str, Phone], Field(min_length=2, max_length=200)]
    wifi_rtt_ms_quantiles: Annotated[dict[str, NotNegative], Field(min_length=2)]
    thermal_clock_factor_10s: Annotated[dict[str, list[Positive]], Field(min_length=1)]
    sample_interval_ms: Positive = 100.0

    def models(self) -> list[str]:
        """Models that every device was measured with."""
        shared = set.intersection(*(set(phone.models) for phone in self.phones.values()))
        return sorted(shared)

    def quantiles(self) -> list[tuple[float, float]]:
        """(share 0 to 1, round trip in ms), ascending."""
        return sorted(
            (float(share) / 100, rtt) for share, rtt in self.wifi_rtt_ms_quantiles.items()
        )


def load(path: Path | None) -> Profile:
    """Read a profile; None reads the made-up one of the package.

    Raises:
        ConfigError: it cannot be read, or is not of that form.
    """
    try:
        if path is None:
            text = (files("ispine.cli") / "data" / "fleet.json").read_text(encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
        profile = Profile.model_validate_json(text)
        quantiles = profile.quantiles()
        models = profile.models()
    except OSError as error:
        raise ConfigError(f"expected a fleet profile at {path}; {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"expected a fleet profile in {path}; {where}: {first['msg']}") from error
    except ValueError as error:
        raise ConfigError(f"expected a fleet profile in {path}; {error}") from error
    if not models or not all(0 <= share <= 1 for share, _ in quantiles):
        raise ConfigError(
            f"expected one model that all devices share and quantiles from 0 to 100 in {path}"
        )
    return profile


def link_of(profile: Profile, chance: random.Random) -> Draw:
    """One-way delay: half a round trip that holds for a sample interval."""
    shares, rtts = zip(*profile.quantiles(), strict=True)
    interval_ns = int(profile.sample_interval_ms * MS)
    held: dict[str, float] = {"slot": -1.0, "delay": 0.0}

    def draw(now_ns: int) -> float:
        slot = now_ns // interval_ns
        if held["slot"] != slot:
            held["slot"] = slot
            held["delay"] = _between(shares, rtts, chance.random()) / 2 * MS
        return held["delay"]

    return draw


def _between(shares: tuple[float, ...], rtts: tuple[float, ...], at: float) -> float:
    above = bisect.bisect_right(shares, at)
    if above == 0:
        return rtts[0]
    if above == len(shares):
        return rtts[-1]
    low, high = shares[above - 1], shares[above]
    return rtts[above - 1] + (rtts[above] - rtts[above - 1]) * (at - low) / (high - low)


def service_of(profile: Profile, name: str, model: str, series: int, chance: random.Random) -> Draw:
    """Time of one run: normal around the mean, slowed by the thermal series."""
    known = profile.phones[name].models[model]
    clocks = list(profile.thermal_clock_factor_10s.values())
    clock = clocks[series % len(clocks)]
    offset = chance.randrange(len(clock))

    def draw(now_ns: int) -> float:
        factor = clock[(offset + now_ns // THERMAL_STEP_NS) % len(clock)]
        took_ms = max(chance.gauss(known.mean_ms, known.std_ms), known.mean_ms / 2)
        return took_ms / factor * MS

    return draw
