"""The background services: units that systemd accepts, and files that fit this machine."""

import json
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ispine.cli import service_files as service
from ispine.protocol.errors import ConfigError

UNITS = sorted((Path(__file__).parents[2] / "systemd").glob("*.service"))


def verify(*paths: Path, user: bool = False) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *(["--user"] if user else []), "verify", "--man=no"]
    return subprocess.run(
        [*command, *map(str, paths)], capture_output=True, text=True, timeout=30, check=False
    )


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Linux with systemd)"
)


def complaints(ran: subprocess.CompletedProcess[str]) -> list[str]:
    """What systemd did not like, but for the back-off, which only newer versions know."""
    return [
        line
        for line in ran.stderr.splitlines()
        if "RestartSteps" not in line and "RestartMaxDelaySec" not in line
    ]


@needs_systemd
def test_systemd_accepts_the_units() -> None:
    assert [unit.name for unit in UNITS] == ["ispine-agent.service", "ispine-hub.service"]
    ran = verify(*UNITS)
    assert ran.returncode == 0, ran.stderr
    assert complaints(ran) == []


@needs_systemd
@pytest.mark.parametrize("for_user", [True, False])
def test_systemd_accepts_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_user: bool
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    odd = tmp_path / "my tools 100%"
    odd.mkdir()
    program = odd / "ispine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    paths = []
    for part in service.PARTS:
        paths.append(tmp_path / f"ispine-{part}.service")
        text = service.fitted_unit(part, [str(program)], for_user=for_user, systemd_version=252)
        paths[-1].write_text(text)
    ran = verify(*paths, user=for_user)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""


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
    program = ["/opt/x/bin/ispine"]
    text = service.fitted_unit("agent", program, for_user=True, systemd_version=255)
    assert "ExecStart=/opt/x/bin/ispine agent" in text
    assert "WantedBy=default.target" in text
    assert "RestartSteps=5" in text
    # Users' managers cannot make these without namespaces of their own.
    for key in ("DynamicUser", "ProtectSystem", "PrivateTmp", "EnvironmentFile"):
        assert key not in text


def test_an_older_systemd_is_not_told_what_it_does_not_know() -> None:
    text = service.fitted_unit("hub", ["/usr/bin/ispine"], for_user=False, systemd_version=252)
    assert "RestartSteps" not in text
    assert "RestartSec=1s" in text
    assert "DynamicUser=yes" in text


def test_a_program_below_a_home_can_be_seen_by_its_service() -> None:
    program = ["/home/pi/.venv/bin/ispine"]
    text = service.fitted_unit("hub", program, for_user=False, systemd_version=255)
    assert "ProtectHome=read-only" in text


def test_a_program_that_others_cannot_reach_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="--user"):
        service.check_open_to_all(closed / "ispine")


def test_launchd_gets_a_valid_property_list() -> None:
    parsed = plistlib.loads(service.launchd_plist("hub", ["/opt/my tools/ispine"]))
    assert parsed["Label"] == "ispine.hub"
    assert parsed["ProgramArguments"] == ["/opt/my tools/ispine", "hub"]
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
        assert "systemctl --user enable --now" in done.output
    written = tmp_path / "systemd" / "user"
    assert {path.name for path in written.iterdir()} == {unit.name for unit in UNITS}
    tried = runner.invoke(app, ["service", "uninstall", "--user", "--dry-run", "--json"])
    assert json.loads(tried.output)["done"] == "would remove"
    assert len(list(written.iterdir())) == 2
    for _ in range(2):
        assert runner.invoke(app, ["service", "uninstall", "--user"]).exit_code == 0
    assert list(written.iterdir()) == []
    assert runner.invoke(app, ["service", "install", "nosuch"]).exit_code == 1


@pytest.fixture
def fake_systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that only notes what it was told; its file of notes."""
    notes = tmp_path / "told"
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "systemd 255 (255.4)"; exit; fi\n'
        f'echo "$@" >> "{notes}"\n'
        f'if [ -e "{tmp_path}/broken" ]; then echo "Failed to enable unit" >&2; exit 1; fi\n'
    )
    program.chmod(0o755)
    (tmp_path / "systemd").mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return notes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is Linux only")
def test_a_running_systemd_is_told(fake_systemctl: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from ispine.cli.main import app

    runner = CliRunner()
    done = runner.invoke(app, ["service", "install", "agent", "--user", "--json"])
    assert done.exit_code == 0, done.output
    # Only what needs the owner is left to do.
    assert json.loads(done.output)["todo"] == ["loginctl enable-linger"]
    unit = tmp_path / "config" / "systemd" / "user" / "ispine-agent.service"
    assert "RestartSteps=5" in unit.read_text()
    assert runner.invoke(app, ["service", "uninstall", "--user"]).exit_code == 0
    assert not unit.exists()
    assert fake_systemctl.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now ispine-agent.service",
        "--user disable --now ispine-agent.service",
        "--user daemon-reload",
    ]
    (tmp_path / "broken").touch()
    refused = runner.invoke(app, ["service", "install", "--user", "--json"])
    assert refused.exit_code == 1
    assert "Failed to enable unit" in json.loads(refused.output)["error"]["message"]


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(ConfigError, match="expected Linux or macOS"):
        service.targets(["hub"], for_user=True, systemd_version=0)


def test_macos_gets_launchd_agents_and_the_commands_to_load_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from ispine.cli.main import app

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("ispine.cli.service._is_managed", lambda _for_user: False)
    done = CliRunner().invoke(app, ["service", "install", "hub", "--json"])
    assert done.exit_code == 0, done.output
    plist = tmp_path / "Library" / "LaunchAgents" / "ispine.hub.plist"
    assert plistlib.loads(plist.read_bytes())["ProgramArguments"][-1] == "hub"
    assert json.loads(done.output)["todo"] == [f"launchctl load -w {plist}"]
    done = CliRunner().invoke(app, ["service", "uninstall", "hub", "--json"])
    assert json.loads(done.output)["todo"] == ["launchctl remove ispine.hub"]
    assert not plist.exists()
