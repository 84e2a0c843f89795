"""Sensors, rules and settings of an agent."""

import math
from datetime import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from ispine.agent import rules
from ispine.agent.config import AgentConfig, default_device_id
from ispine.agent.rules import Rules, refusal_of
from ispine.agent.sensors import Reading, Sensors
from ispine.protocol.errors import ConfigError
from ispine.protocol.ids import is_id

NOON, NIGHT = time(12), time(23, 30)


def folder_with(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_sensor_folder_is_read(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        power_supply__BAT0__type="Battery\n",
        power_supply__BAT0__capacity="42\n",
        power_supply__BAT0__status="Discharging\n",
        power_supply__AC__type="Mains",
        power_supply__AC__online="0",
        thermal__thermal_zone0__temp="41000\n",
        thermal__thermal_zone1__temp="68500\n",
    )
    reading = Sensors(folder).read()
    assert (reading.battery_pct, reading.is_charging, reading.temp_c) == (42, False, 68.5)


def test_a_device_without_battery_is_on_mains(tmp_path: Path) -> None:
    reading = Sensors(tmp_path / "nothing").read()
    assert (reading.battery_pct, reading.is_charging, reading.temp_c) == (None, True, None)


@pytest.mark.parametrize("nonsense", ["", "nan", "-5", "900", "abc", "\0\xff", "9" * 500, "inf"])
def test_nonsense_is_unknown_not_a_guess(tmp_path: Path, nonsense: str) -> None:
    folder = folder_with(
        tmp_path,
        power_supply__BAT0__type="Battery",
        power_supply__BAT0__capacity=nonsense,
        power_supply__BAT0__status="Discharging",
        thermal__thermal_zone0__temp=nonsense if nonsense != "900" else "900000",
    )
    reading = Sensors(folder).read()
    assert reading.battery_pct is None
    assert reading.temp_c is None or not math.isnan(reading.temp_c)


def test_this_machines_own_sensors_can_be_read() -> None:
    reading = Sensors().read()
    assert reading.cpu_load is not None
    assert 0 <= reading.cpu_load <= 1


@pytest.mark.parametrize(
    ("given", "reading", "refused"),
    [
        (Rules(min_battery_pct=30), Reading(20, False), "battery at 20 %"),
        (Rules(min_battery_pct=30), Reading(20, True), ""),
        (Rules(min_battery_pct=30), Reading(None, False), ""),
        (Rules(max_temp_c=70), Reading(None, True, 71), "at 71 °C"),
        (Rules(max_temp_c=70), Reading(None, True, 69), ""),
        (Rules(only_when_charging=True), Reading(90, False), "not charging"),
        (Rules(only_when_idle=True), Reading(cpu_load=0.9, own_load=0.1), "busy"),
        (Rules(only_when_idle=True), Reading(cpu_load=0.9, own_load=0.8), ""),
        (Rules(), Reading(), ""),
    ],
)
def test_each_rule_refuses_what_it_should(given: Rules, reading: Reading, refused: str) -> None:
    answer = refusal_of(given, reading, NOON)
    assert answer.startswith(refused) if refused else answer == ""


def test_quiet_hours_cross_midnight() -> None:
    given = Rules(quiet_hours=("22:00-07:00",))
    assert refusal_of(given, Reading(), NIGHT) == "quiet hours 22:00-07:00"
    assert refusal_of(given, Reading(), time(6, 59)) != ""
    assert refusal_of(given, Reading(), NOON) == ""


def test_a_rule_does_not_flicker() -> None:
    given = Rules(max_temp_c=70)
    assert refusal_of(given, Reading(temp_c=67), NOON) == ""
    assert refusal_of(given, Reading(temp_c=67), NOON, was_refusing=True) != ""
    assert refusal_of(given, Reading(temp_c=64), NOON, was_refusing=True) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_battery_pct = 300", "less than or equal to 100"),
        ("surprise = 1", "surprise"),
        ("quiet_hours = ['late']", "22:00-07:00"),
        ("min_battery_pct = ", "TOML"),
    ],
)
def test_a_wrong_rules_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        rules.load(file)


def test_a_missing_rules_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        rules.load(tmp_path / "nowhere.toml")


def test_the_default_device_id_may_stand_in_a_topic() -> None:
    assert is_id(default_device_id())


def test_a_bad_device_id_is_refused() -> None:
    with pytest.raises(ValidationError):
        AgentConfig(url="mqtt://x", device_id="a/b")


def test_slots_follow_the_owners_share() -> None:
    half = AgentConfig(url="mqtt://x", rules=Rules(max_cpu_share=0.01))
    assert half.effective_slots == 1
    assert AgentConfig(url="mqtt://x", slots=7).effective_slots == 7
