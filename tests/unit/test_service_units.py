"""The background services: units that systemd accepts, and files that fit this machine."""

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from ispine.cli import service

UNITS = sorted((Path(__file__).parents[2] / "systemd").glob("*.service"))


def verify(*paths: Path, user: bool = False) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *(["--user"] if user else []), "verify", "--man=no"]
    return subprocess.run(
        [*command, *map(str, paths)], capture_output=True, text=True, timeout=30, check=False
    )


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Linux with systemd)"
)


@needs_systemd
def test_systemd_accepts_the_units() -> None:
    assert [unit.name for unit in UNITS] == ["ispine-agent.service", "ispine-hub.service"]
    ran = verify(*UNITS)
    assert ran.returncode == 0, ran.stderr
    assert "Unknown" not in ran.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_units_are_hardened_and_watched(unit: Path) -> None:
    lines = set(unit.read_text().splitlines())
    assert {
        "Type=notify",
        "DynamicUser=yes",
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "Restart=on-failure",
        "WatchdogSec=30s",
    } <= lines


def test_a_users_unit_names_this_very_program() -> None:
    text = service.fitted_unit("agent", for_user=True, program="/opt/x/bin/ispine")
    assert "ExecStart=/opt/x/bin/ispine agent" in text
    assert "WantedBy=default.target" in text
    assert "DynamicUser" not in text


def test_launchd_gets_a_valid_property_list() -> None:
    parsed = plistlib.loads(service.launchd_plist("hub"))
    assert parsed["Label"] == "ispine.hub"
    assert parsed["ProgramArguments"][-1] == "hub"
    assert parsed["KeepAlive"] == {"SuccessfulExit": False}


def test_install_and_uninstall_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from ispine.cli.main import app

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    runner = CliRunner()
    for _ in range(2):
        done = runner.invoke(app, ["service", "install", "--user"])
        assert done.exit_code == 0, done.output
    written = tmp_path / "systemd" / "user"
    assert {path.name for path in written.iterdir()} == {unit.name for unit in UNITS}
    for _ in range(2):
        assert runner.invoke(app, ["service", "uninstall", "--user"]).exit_code == 0
    assert list(written.iterdir()) == []
    assert runner.invoke(app, ["service", "install", "nosuch"]).exit_code == 1
