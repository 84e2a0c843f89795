"""`ispine doctor`: what works here, what does not, and what a bug report needs."""

import asyncio
import json
import os
import platform
import shutil
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import REFUSED, guarded, print_json, print_table
from ispine.protocol.errors import ConfigError, IspineError
from ispine.protocol.mqtt import DEFAULT_PORTS, parse_url

PACKAGES = (
    "ispine",
    "amqtt",
    "msgpack",
    "numpy",
    "onnx",
    "onnxruntime",
    "paho-mqtt",
    "pillow",
    "psutil",
    "pydantic",
    "typer",
    "zeroconf",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `ok`, `note` or `problem`, and what was seen."""

    check: str
    state: str
    seen: str


@guarded
def doctor(
    url: Annotated[str, typer.Option("--url", envvar="ISPINE_URL", help="The hub's broker.")] = "",
    bundle: Annotated[
        Path | None, typer.Option(help="Write a zip for a bug report; no payloads, no secrets.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the broker and the hub."""
    target = url or "mqtt://127.0.0.1:1883"
    findings = [finding for check in _checks(target) for finding in _safely(check)]
    counters = _counters(target)
    if bundle is not None:
        _write_bundle(bundle, findings, counters)
    if as_json:
        print_json({"findings": [asdict(f) for f in findings], "counters": counters})
    else:
        print_table(("check", "", "seen"), ((f.check, f.state, f.seen) for f in findings))
        noteworthy = {k: v for k, v in counters.items() if ":" in k and v}
        if noteworthy:
            print_table(("hub counter", "times"), noteworthy.items())
        if bundle is not None:
            print(f"written: {bundle}")
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(REFUSED)


Check = Callable[[], Iterator[Finding]]


def _checks(url: str) -> list[Check]:
    return [
        _versions,
        lambda: _port(url),
        lambda: _broker(url),
        lambda: _hub(url),
        _sensors,
        _models,
        _disk,
    ]


def _safely(check: Check) -> list[Finding]:
    try:
        return list(check())
    except IspineError as error:
        return [Finding(error.code, "problem", str(error))]


def _versions() -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("python", "ok" if sys.version_info >= (3, 11) else "problem", python)
    missing = [name for name in PACKAGES if not _version(name)]
    seen = ", ".join(f"{name} {_version(name)}" for name in PACKAGES if _version(name))
    yield Finding("packages", "ok", seen)
    if missing:
        yield Finding("packages", "note", f"not installed: {', '.join(missing)}")
    yield Finding("mosquitto", "ok" if shutil.which("mosquitto") else "note", _mosquitto())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _mosquitto() -> str:
    return shutil.which("mosquitto") or "not installed; only needed for --engine external"


def _port(url: str) -> Iterator[Finding]:
    parsed = parse_url(url)
    if parsed.host not in ("127.0.0.1", "localhost", "::1"):
        return
    for port in sorted({parsed.port, DEFAULT_PORTS["mqtt"]}):
        with socket.socket() as probe:
            probe.settimeout(1)
            is_taken = probe.connect_ex(("127.0.0.1", port)) == 0
        who = _holder(port) if is_taken else ""
        seen = f"taken by {who}" if is_taken else "free"
        yield Finding(f"port {port}", "note" if "mosquitto" in who else "ok", seen)


def _holder(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and tuple(connection.laddr)[1:2] == (port,) and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (OSError, psutil.Error):
        return "a process of somebody else"
    return "a process of somebody else"


def _broker(url: str) -> Iterator[Finding]:
    from ispine.broker.probe import probe

    report = asyncio.run(probe(url))
    yield Finding("broker", "ok", f"{report.endpoint} answers, round trip {report.rtt_ms:.1f} ms")
    for name, works, loss in report.abilities():
        yield Finding(f"broker: {name}", "ok" if works else "problem", "works" if works else loss)


def _hub(url: str) -> Iterator[Finding]:
    from ispine.cli.asking import ask

    rows = ask(url, "devices")
    online = [row["device"] for row in rows if row["online"]]
    state = "ok" if online else "note"
    yield Finding("scheduler", "ok", "answers")
    yield Finding("devices", state, ", ".join(online) or "none online; start 'ispine agent'")


def _counters(url: str) -> dict[str, Any]:
    from ispine.cli.asking import ask

    try:
        found = ask(url, "stats")
    except IspineError:
        return {}
    return found if isinstance(found, dict) else {}


def _sensors() -> Iterator[Finding]:
    from ispine.agent.sensors import Sensors

    reading = Sensors().read()
    battery = (
        "no battery" if reading.battery_pct is None else f"battery {reading.battery_pct:.0f} %"
    )
    heat = "temperature unknown" if reading.temp_c is None else f"{reading.temp_c:.0f} °C"
    yield Finding("sensors", "ok", f"{battery}, {heat}")


def _models() -> Iterator[Finding]:
    try:
        from ispine.models.runtime import available_providers
        from ispine.models.verifying import verify_all
    except ImportError as error:
        yield Finding("models", "note", f"cannot run here: {error}")
        return
    providers = ", ".join(available_providers())
    if not providers:
        yield Finding("models", "note", "onnxruntime is not installed: this device only asks")
        return
    yield Finding("runtimes", "ok", providers)
    for verdict in verify_all():
        state = "problem" if verdict.problem else "ok"
        yield Finding(
            f"model {verdict.model} {verdict.variant}", state, verdict.problem or "as it should be"
        )


def _disk() -> Iterator[Finding]:
    from ispine.models.catalogue import user_dir

    folder = user_dir()
    while not folder.exists():
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free / 2**20
    can_write = os.access(folder, os.W_OK)
    is_fine = can_write and free_mb > 200
    seen = f"{folder}: {free_mb:,.0f} MB free" + ("" if can_write else ", not writable")
    yield Finding("disk", "ok" if is_fine else "problem", seen)


def _write_bundle(path: Path, findings: list[Finding], counters: dict[str, Any]) -> None:
    told = {
        "findings": [asdict(finding) for finding in findings],
        "counters": counters,
        "machine": {"system": platform.platform(), "machine": platform.machine()},
    }
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("doctor.json", json.dumps(told, indent=1, default=str))
    except OSError as error:
        raise ConfigError(f"expected to write {path}; {error.strerror}") from error
