"""The replay: the real core in simulated time, against simpler policies, from one file."""

import json
from pathlib import Path

import pytest

from ispine.cli import replay, replay_profile
from ispine.cli.replay import BASELINES, IspineRun, Setting, run_pushed
from ispine.protocol.errors import ConfigError

PROFILE = replay_profile.load(None)


def setting(load: float, seed: int = 1, seconds: int = 12) -> Setting:
    return Setting(PROFILE, "detector", load, seconds, seed)


def test_every_frame_is_counted_and_the_same_seed_gives_the_same_numbers() -> None:
    first, again = (IspineRun(setting(0.5)).run() for _ in range(2))
    assert first.frames == len(setting(0.5).frames())
    assert first.numbers() == again.numbers()
    assert first.numbers() != IspineRun(setting(0.5, seed=2)).run().numbers()


def test_all_policies_get_the_same_frames() -> None:
    counts = {run_pushed(setting(0.3), choose).frames for choose in BASELINES.values()}
    assert counts == {IspineRun(setting(0.3)).run().frames}


def test_a_silent_device_costs_ispine_less_than_the_others() -> None:
    mine = IspineRun(setting(0.27, seconds=30)).run().numbers()
    others = [
        run_pushed(setting(0.27, seconds=30), choose).numbers()["on_time"]
        for choose in BASELINES.values()
    ]
    assert mine["on_time"] >= 0.99
    assert mine["on_time"] > max(others)
    assert mine["extra_work"] <= 0.05
    assert mine["p99_ms"] <= replay.DEADLINE_MS


def test_overload_is_turned_away_and_not_queued() -> None:
    mine = IspineRun(setting(1.08, seconds=30)).run().numbers()
    naive = run_pushed(setting(1.08, seconds=30), BASELINES["round_robin"]).numbers()
    assert mine["on_time"] > 0.5 > naive["on_time"]
    assert mine["p99_ms"] < replay.DEADLINE_MS < naive["p99_ms"]


def test_the_table_has_every_policy_and_load() -> None:
    table = replay.compare(PROFILE, "detector", 8, 1)
    assert set(table) == {"ispine", *BASELINES}
    for loads in table.values():
        assert set(loads) == {"0.27", "0.68", "1.08"}
        for numbers in loads.values():
            assert set(numbers) == {"on_time", "p50_ms", "p99_ms", "extra_work"}


@pytest.mark.parametrize(
    "change",
    [
        {"phones": {}},
        {"phones": {"a": {"models": {"x": {"mean_ms": -1, "std_ms": 0}}}}},
        {"wifi_rtt_ms_quantiles": {"many": 1, "few": 2}},
        {"wifi_rtt_ms_quantiles": {"0": 1, "200": 2}},
        {"thermal_clock_factor_10s": {}},
    ],
)
def test_a_wrong_profile_is_refused_with_a_reason(
    tmp_path: Path, change: dict[str, object]
) -> None:
    body = json.loads(PROFILE.model_dump_json()) | change
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(body))
    with pytest.raises(ConfigError, match="expected"):
        replay_profile.load(file)


def test_a_missing_or_broken_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        replay_profile.load(tmp_path / "nowhere.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match="broken"):
        replay_profile.load(tmp_path / "broken.json")
