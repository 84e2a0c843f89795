"""The checks of `ispine doctor`, each by itself: one that fails says so and stops no other."""

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ispine.cli.ports import holder, is_taken
from ispine.protocol.errors import IspineError
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
    "pydantic-settings",
    "rich",
    "typer",
    "uvloop",
    "zeroconf",
)
LEAST_FREE_MB = 200
DISCOVERY_S = 1.0
TASKS = 50
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `ok`, `note` or `problem`, and what was seen."""

    check: str
    state: str
    seen: str


@dataclass(slots=True)
class Diagnosis:
    """What was found.

    Attributes:
        findings: in the order of the checks.
        counters: of the hub; empty when it does not answer.
        devices: as the hub knows them.
        tasks: the last ones, without what was sent or answered.
    """

    findings: list[Finding] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_problem(self) -> bool:
        """Whether anything must be mended."""
        return any(finding.state == PROBLEM for finding in self.findings)

    def troubles(self) -> Iterator[tuple[str, object]]:
        """The hub's counters of what was refused, dropped, closed or malformed, and by whom."""
        for name, value in self.counters.items():
            if ":" in name and value:
                yield name, value
        for row in self.counters.get("malformed_by", ()):
            yield f"malformed: {row['reason']} from {row['peer']}", row["count"]


Check = Callable[[], Iterator[Finding]]


def diagnose(found: Diagnosis, url: str, root: str, data: Path | None) -> Iterator[str]:
    """Run every check; yields the name of each once it is done.

    Args:
        found: takes what is found.
        url: of the hub's broker.
        root: of the topics.
        data: the hub's folder for durable tasks, None when it has none here.
    """
    checks: list[tuple[str, Check]] = [
        ("python", _python),
        ("packages", _packages),
        ("mosquitto", _mosquitto),
        ("port", lambda: _ports(url)),
        ("mDNS", _discovery),
        ("broker", lambda: _broker(url)),
        ("scheduler", lambda: _hub(url, root, found)),
        ("sensors", _sensors),
        ("models", _models),
        ("disk", lambda: _disk(data)),
    ]
    for name, check in checks:
        found.findings += _safely(name, check)
        yield name


NUMBER_OF_CHECKS = 10


def _safely(name: str, check: Check) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except IspineError as error:
        findings.append(Finding(name, PROBLEM, str(error)))
    except ModuleNotFoundError as error:
        seen = f"not checked: the package {error.name} is missing (pip install 'ispine[all]')"
        findings.append(Finding(name, NOTE, seen))
    return findings


def _python() -> Iterator[Finding]:
    is_new = sys.version_info >= (3, 11)
    yield Finding("python", OK if is_new else PROBLEM, platform.python_version())


def _packages() -> Iterator[Finding]:
    versions = {name: _version(name) for name in PACKAGES}
    here = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    yield Finding("packages", OK, here)
    missing = [name for name, number in versions.items() if not number]
    if missing:
        yield Finding("packages", NOTE, f"not installed: {', '.join(missing)}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _mosquitto() -> Iterator[Finding]:
    from ispine.broker.mosquitto import find_mosquitto

    program = find_mosquitto()
    if program is None:
        yield Finding("mosquitto", NOTE, "not installed; the embedded broker needs none")
    else:
        number = ".".join(map(str, program.version)) or "of unknown version"
        yield Finding("mosquitto", OK, f"{program.path} {number}")


def _ports(url: str) -> Iterator[Finding]:
    parsed = parse_url(url)
    if parsed.host not in LOOPBACK:
        return
    for port in sorted({parsed.port, DEFAULT_PORTS["mqtt"]}):
        if not is_taken(parsed.host, port):
            yield Finding(f"port {port}", OK, "free")
            continue
        who = holder(port) or "a process of somebody else"
        is_foreign = "mosquitto" in who
        advice = "; the hub needs another --port, or --engine external" if is_foreign else ""
        yield Finding(f"port {port}", NOTE if is_foreign else OK, f"taken by {who}{advice}")


def _discovery() -> Iterator[Finding]:
    from ispine.protocol.discovery import find_hub

    hub = asyncio.run(find_hub(DISCOVERY_S))
    if hub is None:
        yield Finding("mDNS", NOTE, "no hub announces itself; one on loopback never does")
    else:
        yield Finding("mDNS", OK, f"{hub.hub_id} at {', '.join(hub.urls)}")


def _broker(url: str) -> Iterator[Finding]:
    from ispine.broker.probe import probe

    report = asyncio.run(probe(url))
    yield Finding("broker", OK, f"{report.endpoint} answers, round trip {report.rtt_ms:.1f} ms")
    for name, works, loss in report.abilities():
        yield Finding(f"broker: {name}", OK if works else PROBLEM, "works" if works else loss)


def _hub(url: str, root: str, found: Diagnosis) -> Iterator[Finding]:
    if any(finding.check == "broker" and finding.state == PROBLEM for finding in found.findings):
        return
    asyncio.run(_ask_hub(url, root, found))
    yield Finding("scheduler", OK, f"answers; {found.counters.get('open', 0)} tasks open")
    journal = str(found.counters.get("journal") or "")
    if journal not in ("", "open"):
        yield Finding("journal", NOTE, f"durable tasks are refused: {journal}")
    online = [row for row in found.devices if row["online"]]
    if not online:
        yield Finding("devices", NOTE, "none online; start 'ispine agent'")
    for row in online:
        standing = row["standing"]
        yield Finding(f"device {row['device']}", OK if standing == "ready" else NOTE, standing)
        if row.get("version", "") not in ("", _version("ispine")):
            yield Finding(
                f"device {row['device']}",
                NOTE,
                f"runs iSpine {row['version']}, this machine {_version('ispine')}",
            )


async def _ask_hub(url: str, root: str, found: Diagnosis) -> None:
    from ispine.cli.asking import asker

    async with asker(url, root) as asking:
        found.counters = await asking.ask("stats")
        found.devices = await asking.ask("devices")
        found.tasks = await asking.ask("tasks", {"limit": TASKS})


def _sensors() -> Iterator[Finding]:
    from ispine.agent.sensors import Sensors

    reading = Sensors().read()
    battery = (
        "no battery" if reading.battery_pct is None else f"battery {reading.battery_pct:.0f} %"
    )
    heat = "temperature unknown" if reading.temp_c is None else f"{reading.temp_c:.0f} °C"
    yield Finding("sensors", OK, f"{battery}, {heat}")


def _models() -> Iterator[Finding]:
    from ispine.models.runtime import available_providers
    from ispine.models.verifying import verify_all

    providers = ", ".join(available_providers())
    if not providers:
        yield Finding("models", NOTE, "onnxruntime is not installed: this device only asks")
        return
    yield Finding("runtimes", OK, providers)
    for verdict in verify_all():
        state = PROBLEM if verdict.problem else OK
        seen = verdict.problem or "as it should be"
        yield Finding(f"model {verdict.model} {verdict.variant}", state, seen)


def _disk(data: Path | None) -> Iterator[Finding]:
    from ispine.models.catalogue import user_dir

    yield _folder("models folder", user_dir())
    if data is not None:
        yield _folder("data folder", data)


def _folder(name: str, folder: Path) -> Finding:
    """Whether a folder, or the one it would be made in, can be written to and has room."""
    while not folder.exists():
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free / 2**20
    can_write = folder.is_dir() and os.access(folder, os.W_OK)
    seen = f"{folder}: {free_mb:,.0f} MB free" + ("" if can_write else ", not writable")
    return Finding(name, OK if can_write and free_mb > LEAST_FREE_MB else PROBLEM, seen)
