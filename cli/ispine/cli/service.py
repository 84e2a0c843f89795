"""`ispine service`: keep hub and agent running in the background.

systemd on Linux, launchd on macOS. Files are written for the program that runs this command, so an
installation in a virtual environment works too.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import guarded, print_json
from ispine.protocol.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Run in the background.")
Part = Annotated[
    list[str] | None, typer.Argument(help="hub, agent; both without it.", show_default=False)
]
User = Annotated[bool, typer.Option("--user", help="For this user, not for the whole system.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Step = list[str]


@app.command()
@guarded
def install(
    part: Part = None, user: User = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Start hub and agent now and at every boot. Safe to repeat."""
    from ispine.cli import service_files

    parts = part or list(service_files.PARTS)
    written = service_files.targets(parts, for_user=user, systemd_version=_systemd_version())
    steps = _install_steps(list(written), user)
    if not dry_run:
        if not user and sys.platform != "darwin":
            service_files.check_open_to_all(Path(service_files.program_line()[0]))
        _write(written)
        steps = _carry_out(steps, user)
    _tell("would write" if dry_run else "written", list(written), steps, as_json)


@app.command()
@guarded
def uninstall(
    part: Part = None, user: User = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Stop them and forget them. Safe to repeat."""
    from ispine.cli import service_files

    parts = part or list(service_files.PARTS)
    known = service_files.targets(parts, for_user=user, systemd_version=_systemd_version())
    there = [path for path in known if path.exists()]
    before, after = _uninstall_steps(there, user)
    if not dry_run:
        before = _carry_out(before, user)
        for path in there:
            _remove(path)
        after = _carry_out(after, user)
    _tell("would remove" if dry_run else "removed", there, before + after, as_json)


def _install_steps(paths: list[Path], for_user: bool) -> list[Step]:
    if sys.platform == "darwin":
        return [["launchctl", "load", "-w", str(path)] for path in paths]
    systemctl = ["systemctl", *(["--user"] if for_user else [])]
    names = [path.name for path in paths]
    steps = [[*systemctl, "daemon-reload"], [*systemctl, "enable", "--now", *names]]
    # Without it the services of a user end with the last login.
    return steps + ([["loginctl", "enable-linger"]] if for_user else [])


def _uninstall_steps(paths: list[Path], for_user: bool) -> tuple[list[Step], list[Step]]:
    """What to run before and after the files are removed."""
    if not paths:
        return [], []
    if sys.platform == "darwin":
        return [["launchctl", "remove", path.stem] for path in paths], []
    systemctl = ["systemctl", *(["--user"] if for_user else [])]
    names = [path.name for path in paths]
    return [[*systemctl, "disable", "--now", *names]], [[*systemctl, "daemon-reload"]]


def _carry_out(steps: list[Step], for_user: bool) -> list[Step]:
    """Run the steps where systemd runs; the ones that are left to the owner.

    Raises:
        ConfigError: systemd refuses; with its words.
    """
    import subprocess

    if not _is_managed(for_user):
        return steps
    left: list[Step] = []
    for step in steps:
        if step[0] != "systemctl":
            left.append(step)
            continue
        ran = subprocess.run(step, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ConfigError(f"{' '.join(step)}: {ran.stderr.strip()[:300]}")
    return left


def _is_managed(for_user: bool) -> bool:
    """Whether a systemd runs here that the steps can be given to."""
    import os
    import shutil

    if shutil.which("systemctl") is None:
        return False
    if not for_user:
        return Path("/run/systemd/system").is_dir()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return runtime is not None and (Path(runtime) / "systemd").is_dir()


def _systemd_version() -> int:
    """The version of the installed systemd, 0 when there is none."""
    import shutil
    import subprocess

    if shutil.which("systemctl") is None:
        return 0
    ran = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
    words = ran.stdout.split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0


def _write(written: dict[Path, bytes]) -> None:
    for path, content in written.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise ConfigError(
                f"expected to write {path}; {error.strerror}; use --user, or run it as root"
            ) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"expected to remove {path}; {error.strerror}; use --user, or run it as root"
        ) from error


def _tell(what: str, paths: list[Path], todo: list[Step], as_json: bool) -> None:
    lines = [" ".join(step) for step in todo]
    if as_json:
        print_json({"done": what, "files": [str(path) for path in paths], "todo": lines})
        return
    for path in paths:
        print(f"{what}: {path}")
    if not paths:
        print("nothing to do")
    for line in lines:
        print(f"{'would run' if what.startswith('would') else 'now run'}: {line}")
