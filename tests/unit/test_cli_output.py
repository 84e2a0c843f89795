"""Errors as one line or one JSON value, exit codes, tables and stories."""

import json
from typing import Any

import pytest
import typer

from ispine.cli import fleet_tables, output
from ispine.cli.running import watchdog_interval_s
from ispine.protocol.errors import ConfigError, TooBusy

ROW: dict[str, Any] = {
    "device": "lap",
    "standing": "ready",
    "held": 1,
    "slots": 2,
    "battery_pct": 41.6,
    "charging": True,
    "temp_c": 61.4,
    "capabilities": [{"capability": "detect", "variants": [{"service_ms": 18.2}]}],
    "link_ms": 0.4,
    "answered": 7,
    "calibration_p50": 1.01,
    "calibration_p95": None,
}


def ended(error: BaseException, *, as_json: bool = False) -> int:
    """The exit code of a command that ends with this error."""

    @output.guarded
    def command(as_json: bool) -> None:
        del as_json
        raise error

    with pytest.raises(typer.Exit) as caught:
        command(as_json=as_json)
    return caught.value.exit_code


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(ConfigError("expected this; got that")) == output.REFUSED
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "ispine: expected this; got that\n")


def test_an_error_is_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    error = TooBusy("full", task_id="t1", fields={"predicted_ms": 300.0})
    assert ended(error, as_json=True) == output.REFUSED
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "error": {"code": "too_busy", "message": "full", "task_id": "t1", "predicted_ms": 300.0}
    }


def test_a_missing_package_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(ModuleNotFoundError("No module", name="psutil")) == output.REFUSED
    assert "psutil" in (shown := capsys.readouterr().err)
    assert "pip install 'ispine[all]'" in shown


def test_ctrl_c_ends_with_the_code_of_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == output.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_hidden() -> None:
    @output.guarded
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(output.tracked(range(3), "counting")) == [0, 1, 2]
    with output.working("sleeping"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_table_for_a_pipe_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("what", "why"), [("x" * 300, "[not markup]"), (None, 3)], "title")
    shown = capsys.readouterr().out
    assert shown.count("x") == 300
    assert "[not markup]" in shown
    assert "title" in shown


@pytest.mark.parametrize(
    ("battery_pct", "charging", "shown"),
    [
        (41.6, True, "42 % charging"),
        (41.6, False, "42 %"),
        (None, True, "mains"),
        (None, False, ""),
    ],
)
def test_a_device_row_says_what_feeds_it(
    battery_pct: float | None, charging: bool, shown: str
) -> None:
    cells = fleet_tables.device_row({**ROW, "battery_pct": battery_pct, "charging": charging})
    assert len(cells) == len(fleet_tables.DEVICE_COLUMNS)
    assert cells[3] == shown
    assert cells[4:6] == ("61 °C", "detect 18.2")
    assert cells[-1] == "1.01 -"


def test_a_story_tells_candidates_and_times() -> None:
    story = {
        "task": "t1",
        "client": "glasses",
        "capability": "detect",
        "bytes": 90_000,
        "within_ms": 150.0,
        "status": "done",
        "code": "",
        "message": "",
        "device": "lap",
        "variant": "",
        "steps": [
            {
                "at_ms": 0.0,
                "what": "assigned",
                "device": "lap",
                "attempt": 1,
                "candidates": [
                    {
                        "device": "lap",
                        "variant": "int8",
                        "queue_ms": 0.0,
                        "link_ms": 1.0,
                        "compute_ms": 20.0,
                        "cost_ms": 21.0,
                        "had_place": False,
                    }
                ],
            }
        ],
        "parts_ms": {"computing": 20.0},
        "predicted_ms": 21.0,
        "total_ms": 22.0,
        "actual_to_predicted": 1.05,
    }
    lines = list(fleet_tables.story_lines(story))
    assert lines[0].endswith("→ done by lap")
    assert lines[2].strip().startswith("lap int8: queue 0.0 + link 1.0 + compute 20.0 ms")
    assert lines[2].endswith("full")
    assert "computing 20.0 ms" in lines[3]
    assert "predicted 21.0 ms, took 22.0 ms" in lines[4]
    refused = {**story, "status": "failed", "code": "too_busy", "device": "", "parts_ms": {}}
    lines = list(fleet_tables.story_lines({**refused, "message": "the fleet is full"}))
    assert lines[0].endswith("→ too_busy")
    assert any("nothing ran" in line for line in lines)
    assert lines[-1].strip() == "the fleet is full"


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_is_fed_only_by_whom_it_watches(
    environment: dict[str, str], interval_s: float
) -> None:
    assert watchdog_interval_s(environment, 7) == interval_s
