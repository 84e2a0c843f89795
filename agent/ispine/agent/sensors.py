"""Battery, temperature and load of this device.

Read with psutil, or from a folder that is shaped like `/sys/class` (`power_supply/*/type`,
`capacity`, `status`, `online`; `thermal/thermal_zone*/temp`). What cannot be read is unknown, never
a guess.
"""

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

log = logging.getLogger(__name__)

_CHARGING = {"charging", "full", "not charging"}
_MAX_FILE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the sensors.

    Attributes:
        battery_pct: 0 to 100, None without a battery or when unknown.
        is_charging: on mains power; true without a battery.
        temp_c: hottest zone in degrees Celsius, None when unknown.
        cpu_load: share of the whole CPU in use, 0 to 1, None when unknown.
        own_load: the part of it that is this process.
    """

    battery_pct: float | None = None
    is_charging: bool = True
    temp_c: float | None = None
    cpu_load: float | None = None
    own_load: float = 0.0


class Sensors:
    """Reads the sensors of this device.

    Args:
        folder: like `/sys/class`; None reads the device itself.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._complained: set[Path] = set()
        self._process: psutil.Process | None = None

    def read(self) -> Reading:
        """One look; takes a few milliseconds of file reads."""
        total, own = self._load()
        if self._folder is None:
            return replace(_read_psutil(), cpu_load=total, own_load=own)
        battery, is_charging = self._battery(self._folder / "power_supply")
        temperature = self._temperature(self._folder / "thermal")
        return Reading(battery, is_charging, temperature, total, own)

    def _load(self) -> tuple[float, float]:
        import psutil

        if self._process is None:
            self._process = psutil.Process()
        cores = psutil.cpu_count() or 1
        total = min(psutil.cpu_percent(None) / 100, 1.0)
        return total, min(self._process.cpu_percent(None) / 100 / cores, 1.0)

    def _text(self, path: Path) -> str | None:
        try:
            with path.open("rb") as file:
                return file.read(_MAX_FILE_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            if path.exists() and path not in self._complained:
                self._complained.add(path)
                log.warning("sensor unreadable", extra={"why": type(error).__name__})
            return None

    def _number(self, path: Path, low: float, high: float, scale: float = 1.0) -> float | None:
        text = self._text(path)
        if text is None:
            return None
        try:
            value = float(text) * scale
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
        if path not in self._complained:
            self._complained.add(path)
            log.warning("sensor out of range", extra={"expected": f"{low} to {high}"})
        return None

    def _battery(self, folder: Path) -> tuple[float | None, bool]:
        charge: float | None = None
        is_charging, has_battery = False, False
        for supply in _folders(folder):
            kind = (self._text(supply / "type") or "").lower()
            if kind == "battery":
                has_battery = True
                level = self._number(supply / "capacity", 0, 100)
                charge = level if charge is None else max(charge, level or 0)
                status = (self._text(supply / "status") or "").lower()
                is_charging = is_charging or status in _CHARGING
            elif kind in ("mains", "usb"):
                is_charging = is_charging or self._text(supply / "online") == "1"
        return charge, is_charging or not has_battery

    def _temperature(self, folder: Path) -> float | None:
        zones = [
            self._number(zone / "temp", -60, 200, scale=0.001)
            for zone in _folders(folder)
            if zone.name.startswith("thermal_zone")
        ]
        return max((z for z in zones if z is not None), default=None)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _read_psutil() -> Reading:
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return Reading(
        None if battery is None else min(max(float(battery.percent), 0.0), 100.0),
        battery is None or bool(battery.power_plugged),
        _psutil_temperature(),
    )


def _psutil_temperature() -> float | None:
    import psutil

    if not hasattr(psutil, "sensors_temperatures"):
        return None
    zones = psutil.sensors_temperatures().values()
    readings = [float(sensor.current) for zone in zones for sensor in zone]
    return max((value for value in readings if -60 <= value <= 200), default=None)
