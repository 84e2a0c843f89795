"""The files of the background services, fitted to this machine: systemd units, launchd agents."""

import os
import plistlib
import re
import stat
import sys
from importlib.resources import files
from pathlib import Path

from ispine.protocol.errors import ConfigError

PARTS = ("hub", "agent")
SYSTEM_FOLDER = Path("/etc/systemd/system")
BACKOFF_SINCE = 254
"""The systemd version that knows `RestartSteps=`."""

_SHIPPED_COMMAND = "/usr/bin/env ispine"
_BACKOFF = ("RestartSteps=", "RestartMaxDelaySec=")
# What a user's own manager may not set, or only where users may make namespaces.
_SYSTEM_ONLY = (
    "AmbientCapabilities=",
    "CapabilityBoundingSet=",
    "DynamicUser=",
    "Environment=XDG_DATA_HOME=",
    "EnvironmentFile=",
    "PrivateDevices=",
    "PrivateTmp=",
    "ProtectClock=",
    "ProtectControlGroups=",
    "ProtectHome=",
    "ProtectHostname=",
    "ProtectKernel",
    "ProtectProc=",
    "ProtectSystem=",
)
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))


def unit_text(part: str) -> str:
    """The systemd unit as it is shipped."""
    shipped = files("ispine.cli") / "units" / f"ispine-{part}.service"
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    # An editable installation: the units lie beside the component folders.
    beside = Path(__file__).parents[3] / "systemd" / f"ispine-{part}.service"
    return beside.read_text(encoding="utf-8")


def fitted_unit(part: str, program: list[str], *, for_user: bool, systemd_version: int) -> str:
    """The unit for this machine: its program, and what this manager knows and may set."""
    left_out: tuple[str, ...] = _SYSTEM_ONLY if for_user else ()
    left_out += _BACKOFF if systemd_version < BACKOFF_SINCE else ()
    lines = [line for line in unit_text(part).splitlines() if not line.startswith(left_out)]
    text = "\n".join(lines) + "\n"
    text = text.replace(_SHIPPED_COMMAND, " ".join(map(_quoted, program)))
    if for_user:
        return text.replace("WantedBy=multi-user.target", "WantedBy=default.target")
    if any(Path(program[0]).is_relative_to(home) for home in _HOMES):
        text = text.replace("ProtectHome=yes", "ProtectHome=read-only")
    return text


def _quoted(word: str) -> str:
    """One word of a systemd command line."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w./+:@%$-]+", escaped) else f'"{escaped}"'


def launchd_plist(part: str, program: list[str]) -> bytes:
    """The launchd agent for one part."""
    return plistlib.dumps(
        {
            "Label": label(part),
            "ProgramArguments": [*program, part],
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 5,
            "ProcessType": "Background",
            "StandardErrorPath": str(Path.home() / "Library" / "Logs" / f"ispine-{part}.log"),
        }
    )


def label(part: str) -> str:
    """What launchd calls a part."""
    return f"ispine.{part}"


def program_line() -> list[str]:
    """How to start this very installation."""
    beside = Path(sys.executable).with_name("ispine")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "ispine.cli.main"]


def check_open_to_all(program: Path) -> None:
    """A service with a user of its own must be able to reach the program.

    Raises:
        ConfigError: a folder on the way is closed to other users.
    """
    for folder in program.parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise ConfigError(
                f"expected a program that every user may run; {folder} is closed to others;"
                " install iSpine elsewhere (such as /opt/ispine), or use --user"
            )


def targets(parts: list[str], *, for_user: bool, systemd_version: int) -> dict[Path, bytes]:
    """Which files belong where on this system.

    Raises:
        ConfigError: an unknown part, or a system without systemd and launchd.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"expected hub or agent; got {unknown[0]!r}")
    program = program_line()
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "LaunchAgents"
        return {folder / f"{label(part)}.plist": launchd_plist(part, program) for part in parts}
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"expected Linux or macOS; this is {sys.platform}; start 'ispine up' with its own means"
        )
    folder = _user_folder() if for_user else SYSTEM_FOLDER
    return {
        folder / f"ispine-{part}.service": fitted_unit(
            part, program, for_user=for_user, systemd_version=systemd_version
        ).encode()
        for part in parts
    }


def _user_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user"
