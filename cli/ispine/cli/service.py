"""`ispine service`: keep hub and agent running in the background.

systemd on Linux, launchd on macOS. Files are written for the program that runs this command, so an
installation in a virtual environment works too.
"""

import os
import plistlib
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import guarded, print_json
from ispine.protocol.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Run in the background.")
PARTS = ("hub", "agent")
Part = Annotated[
    list[str] | None, typer.Argument(help="hub, agent; both without it.", show_default=False)
]
User = Annotated[bool, typer.Option("--user", help="For this user, not for the whole system.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]

# What a user's own manager may not or need not set.
_SYSTEM_ONLY = (
    "DynamicUser=",
    "ProtectClock=",
    "ProtectKernel",
    "ProtectHostname=",
    "ProtectProc=",
    "ProtectHome=",
    "PrivateDevices=",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
)


def unit_text(part: str) -> str:
    """The systemd unit as it is shipped."""
    shipped = files("ispine.cli") / "units" / f"ispine-{part}.service"
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    # An editable installation: the units lie beside the component folders.
    return (Path(__file__).parents[3] / "systemd" / f"ispine-{part}.service").read_text(
        encoding="utf-8"
    )


def fitted_unit(part: str, *, for_user: bool, program: str) -> str:
    """The unit for this machine: the path of the program, and what this manager may set."""
    lines: list[str] = []
    for line in unit_text(part).splitlines():
        if for_user and line.startswith(_SYSTEM_ONLY):
            continue
        if line.startswith("ExecStart="):
            line = line.replace("/usr/bin/env ispine", program)
        if for_user:
            line = line.replace("WantedBy=multi-user.target", "WantedBy=default.target")
        lines.append(line)
    return "\n".join(lines) + "\n"


def program_line() -> str:
    """How to start this very installation."""
    beside = Path(sys.executable).with_name("ispine")
    return str(beside) if beside.exists() else f"{sys.executable} -m ispine.cli.main"


def launchd_plist(part: str) -> bytes:
    """The launchd agent for one part."""
    return plistlib.dumps(
        {
            "Label": f"ispine.{part}",
            "ProgramArguments": [*program_line().split(" "), part],
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 5,
            "ProcessType": "Background",
        }
    )


def targets(parts: list[str], *, for_user: bool) -> dict[Path, bytes]:
    """Which files belong where on this system.

    Raises:
        ConfigError: an unknown part.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"expected hub or agent; got {unknown[0]!r}")
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "LaunchAgents"
        return {folder / f"ispine.{part}.plist": launchd_plist(part) for part in parts}
    if for_user:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        folder = Path(base) / "systemd" / "user"
    else:
        folder = Path("/etc/systemd/system")
    program = program_line()
    return {
        folder / f"ispine-{part}.service": fitted_unit(
            part, for_user=for_user, program=program
        ).encode()
        for part in parts
    }


def _manager(for_user: bool) -> list[str] | None:
    """The command of a running systemd, None where there is none."""
    if shutil.which("systemctl") is None:
        return None
    if not for_user and not Path("/run/systemd/system").is_dir():
        return None
    if for_user and "XDG_RUNTIME_DIR" not in os.environ:
        return None
    return ["systemctl", "--user"] if for_user else ["systemctl"]


def _control(for_user: bool, *steps: list[str]) -> list[str]:
    """Run the steps, or say how to."""
    manager = _manager(for_user)
    if manager is None:
        return [" ".join(["systemctl", *(["--user"] if for_user else []), *s]) for s in steps]
    for step in steps:
        ran = subprocess.run([*manager, *step], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ConfigError(f"{' '.join([*manager, *step])}: {ran.stderr.strip()[:300]}")
    return []


@app.command()
@guarded
def install(
    part: Part = None, user: User = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Start hub and agent now and at every boot. Safe to repeat."""
    written = targets(part or list(PARTS), for_user=user)
    todo: list[str] = []
    if not dry_run:
        _write(written)
        if sys.platform != "darwin":
            names = [path.name for path in written]
            todo = _control(user, ["daemon-reload"], ["enable", "--now", *names])
        else:
            todo = [f"launchctl load -w {path}" for path in written]
    _tell("would write" if dry_run else "written", list(written), todo, as_json)


def _write(written: dict[Path, bytes]) -> None:
    for path, content in written.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise ConfigError(
                f"expected to write {path}; {error.strerror}; use --user, or run it as root"
            ) from error


@app.command()
@guarded
def uninstall(
    part: Part = None, user: User = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Stop them and forget them. Safe to repeat."""
    written = [p for p in targets(part or list(PARTS), for_user=user) if p.exists()]
    todo: list[str] = []
    if not dry_run and written:
        if sys.platform != "darwin":
            todo = _control(user, ["disable", "--now", *(path.name for path in written)])
        for path in written:
            path.unlink()
        if sys.platform != "darwin":
            todo += _control(user, ["daemon-reload"])
    _tell("would remove" if dry_run else "removed", written, todo, as_json)


def _tell(what: str, paths: list[Path], todo: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"done": what, "files": [str(path) for path in paths], "todo": todo})
        return
    for path in paths:
        print(f"{what}: {path}")
    if not paths:
        print("nothing to do")
    for step in todo:
        print(f"now run: {step}")
