"""Where the settings file lies, and whether there are settings at all: without heavy imports."""

import os
from pathlib import Path

_SECTIONS = ("ISPINE_HUB_", "ISPINE_AGENT_")


def config_file() -> Path | None:
    """The file that counts, None when there is none.

    `ISPINE_CONFIG`, else `ispine/config.toml` in the user's configuration folder, else
    `/etc/ispine/config.toml`. A file that `ISPINE_CONFIG` names counts whether it exists or not;
    `/dev/null` stands for none.
    """
    named = os.environ.get("ISPINE_CONFIG")
    if named:
        return None if named == os.devnull else Path(named)
    found = (path for path in usual_files() if path.is_file())
    return next(found, None)


def usual_files() -> tuple[Path, ...]:
    """Where a settings file is looked for."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "ispine" / "config.toml", Path("/etc/ispine/config.toml")


def has_settings() -> bool:
    """Whether a file, or the environment beyond what typer reads itself, sets anything."""
    is_set = any(name.startswith(_SECTIONS) for name in os.environ)
    return is_set or config_file() is not None
