"""`ispine doctor`: what works here, what does not, and what a bug report needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ispine.cli.options import DEFAULT_ROOT, DEFAULT_URL, AsJson, Root
from ispine.cli.output import REFUSED, guarded, print_json, print_table, tracked
from ispine.protocol.errors import ConfigError

if TYPE_CHECKING:
    from ispine.cli.diagnosis import Diagnosis


@guarded
def doctor(
    url: Annotated[str, typer.Option("--url", envvar="ISPINE_URL", help="The hub's broker.")] = "",
    data: Annotated[
        Path | None, typer.Option(help="The hub's folder for durable tasks, if it runs here.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Write a zip for a bug report; no payloads, no secrets.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the broker and the hub."""
    from dataclasses import asdict

    from ispine.cli.diagnosis import NUMBER_OF_CHECKS, Diagnosis, diagnose

    found = Diagnosis()
    steps = diagnose(found, url or DEFAULT_URL, root, data)
    for _name in tracked(steps, "checking", NUMBER_OF_CHECKS):
        pass
    if bundle is not None:
        _write_bundle(bundle, found)
    if as_json:
        findings = [asdict(finding) for finding in found.findings]
        print_json({"findings": findings, "counters": found.counters})
    else:
        _print(found, bundle)
    if found.has_problem:
        raise typer.Exit(REFUSED)


def _print(found: "Diagnosis", bundle: Path | None) -> None:
    print_table(("check", "", "seen"), ((f.check, f.state, f.seen) for f in found.findings))
    troubles = list(found.troubles())
    if troubles:
        print_table(("the hub counted", "times"), troubles)
    if bundle is not None:
        print(f"written: {bundle}")


def _write_bundle(path: Path, found: "Diagnosis") -> None:
    import json
    import platform
    import zipfile
    from dataclasses import asdict

    from ispine.cli import settings

    told = {
        **asdict(found),
        "machine": {"system": platform.platform(), "machine": platform.machine()},
        "settings": [origin._asdict() for origin in settings.origins(settings.load())],
    }
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("doctor.json", json.dumps(told, indent=1, default=str))
    except OSError as error:
        raise ConfigError(f"expected to write {path}; {error.strerror}") from error
