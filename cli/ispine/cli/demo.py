"""`ispine demo`: a hub, three devices and a wearable on this machine; one device is killed."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ispine.cli.demo_summary import Frame, Tally
from ispine.cli.options import AsJson
from ispine.cli.output import guarded, make_table, print_json
from ispine.cli.processes import Child
from ispine.protocol.errors import ConfigError

WITHIN_MS = 1000.0
KILL_AT = 0.5


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the demo."""

    name: str
    about: str
    slowdown: float = 1.0
    battery_pct: int = 100
    temp_c: float = 40.0


DEVICES = (
    Device("laptop", "fast, on mains power"),
    Device("tablet", "four times slower", slowdown=4.0),
    Device("phone", "79 °C, battery at 22 %", battery_pct=22, temp_c=79.0),
)


def write_sensors(folder: Path, device: Device) -> Path:
    """A folder like /sys/class with a battery and a thermal zone."""
    battery = folder / "power_supply" / "BAT0"
    zone = folder / "thermal" / "thermal_zone0"
    for path in (battery, zone):
        path.mkdir(parents=True)
    is_full = device.battery_pct == 100
    (battery / "type").write_text("Battery\n")
    (battery / "capacity").write_text(f"{device.battery_pct}\n")
    (battery / "status").write_text("Full\n" if is_full else "Discharging\n")
    (zone / "temp").write_text(f"{int(device.temp_c * 1000)}\n")
    return folder


class Wearable:
    """The wearable's process, read line by line."""

    def __init__(self, url: str, seconds: float, tally: Tally, out: Path | None) -> None:
        self._tally, self._out = tally, out
        self._saved: set[str] = set()
        self._unsaved = ""
        self.recent: deque[Frame] = deque(maxlen=6)
        self.is_over = threading.Event()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
        command = [sys.executable, "-m", "ispine.cli.demo_wearable", "--url", url]
        command += ["--seconds", str(seconds), "--within-ms", str(tally.within_ms)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if told["event"] == "frame":
                self._take(told)
            elif told["event"] == "stats":
                self._tally.sent = told["sent"]
                # A task that was sent again asks for its outcome again: that is no duplicate.
                asked = told["resent"] + told["asked_again"]
                self._tally.duplicated = max(told["duplicates"] - asked, 0)
        self.is_over.set()

    def _take(self, told: dict[str, Any]) -> None:
        labels = tuple(item["label"] for item in told["found"])
        frame = Frame(
            told["capability"],
            told["photo"],
            told["status"],
            told["device"],
            told["ms"],
            told["at_s"],
            labels,
        )
        self._tally.add(frame)
        self.recent.append(frame)
        if self._out is not None and frame.capability == "detect" and frame.status == "done":
            self._save(frame.photo, told["found"])

    def _save(self, photo_name: str, found: list[dict[str, Any]]) -> None:
        if photo_name in self._saved or self._out is None:
            return
        self._saved.add(photo_name)
        from ispine.models.annotate import annotate
        from ispine.models.photos import demo_photos
        from ispine.models.results import Detection

        photo = next(photo for photo in demo_photos() if photo.name == photo_name)
        boxes = [Detection(item["label"], item["score"], tuple(item["box_xyxy"])) for item in found]
        try:
            annotate(photo.data, boxes, self._out / f"{photo_name}.jpg")
        except OSError as error:
            self._unsaved = f"expected to save pictures in {self._out}; {error.strerror}"

    def close(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(5)
        self._reader.join(2)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def check(self) -> None:
        """Complain when the wearable itself failed, or its pictures could not be saved.

        Raises:
            ConfigError: with its last words.
        """
        if self._process.wait(5) != 0:
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace").strip()[-800:]
            raise ConfigError(f"expected the wearable to finish; {words}")
        if self._unsaved:
            raise ConfigError(self._unsaved)


class Demo:
    """The whole run.

    Args:
        seconds: of streaming.
        out: folder for annotated pictures, None for none.
        show: called about ten times a second with the state of the run.
    """

    def __init__(self, seconds: float, out: Path | None) -> None:
        self._seconds, self._out = seconds, out
        self.tally = Tally(WITHIN_MS)
        self.standing = {device.name: "starting" for device in DEVICES}
        self.wearable: Wearable | None = None

    def run(self, show: "Show") -> None:
        """Start everything, stream, kill one device, stop everything.

        Raises:
            ConfigError: a part does not come up; with its last words.
        """
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ispine-demo-")))
            command = ["hub", "--port", "0", "--engine", "embedded", "--no-announce", "--json"]
            hub = Child("the hub", command)
            stack.callback(hub.close)
            url = str(hub.wait_ready()["url"])
            agents = {device.name: self._start(device, url, folder) for device in DEVICES}
            for agent in agents.values():
                stack.callback(agent.close)
            for name, agent in agents.items():
                agent.wait_ready()
                self.standing[name] = "online"
            self._stream(stack, url, agents, show)

    def _start(self, device: Device, url: str, folder: Path) -> Child:
        sensors = write_sensors(folder / device.name, device)
        arguments = ["agent", "--url", url, "--id", device.name, "--kind", device.about]
        arguments += ["--slots", "1", "--sensors", str(sensors), "--json"]
        arguments += ["--capability", "detect", "--capability", "classify"]
        if device.slowdown > 1:
            arguments += ["--slowdown", str(device.slowdown)]
        return Child(f"the agent {device.name}", arguments)

    def _stream(self, stack: ExitStack, url: str, agents: dict[str, Child], show: "Show") -> None:
        self.wearable = Wearable(url, self._seconds, self.tally, self._out)
        stack.callback(self.wearable.close)
        begun_s = time.monotonic()
        longest_s = self._seconds + 15
        while not self.wearable.is_over.wait(0.1):
            passed_s = time.monotonic() - begun_s
            if self.tally.killed_s is None and passed_s > self._seconds * KILL_AT:
                victim = DEVICES[0].name
                agents[victim].kill()
                self.tally.killed_s = time.time()
                self.standing[victim] = "killed (SIGKILL)"
            show(self)
            if passed_s > longest_s:
                raise ConfigError(f"expected the wearable to finish within {longest_s:.0f} s")
        self.wearable.check()
        show(self)


class Show:
    """Shows nothing: for `--json`."""

    def __call__(self, demo: Demo) -> None:
        """Called about ten times a second."""


class PlainShow(Show):
    """A line now and then, where there is no terminal."""

    def __init__(self) -> None:
        self._said_s = 0.0

    def __call__(self, demo: Demo) -> None:
        """Say how far it is, every two seconds."""
        if time.monotonic() - self._said_s > 2:
            self._said_s = time.monotonic()
            tally = demo.tally
            print(f"{len(tally.done)} answers, p50 {tally.quantile_ms(0.5):.0f} ms", flush=True)


class LiveShow(Show):
    """A live table of devices and answers."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(refresh_per_second=8)

    def __enter__(self) -> "LiveShow":
        self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._live.stop()

    def __call__(self, demo: Demo) -> None:
        """Draw the tables."""
        from rich.console import Group

        shares = demo.tally.shares()
        devices = [
            (d.name, d.about, demo.standing[d.name], f"{shares.get(d.name, 0):.0%}")
            for d in DEVICES
        ]
        recent = demo.wearable.recent if demo.wearable else ()
        answers = [
            (f.capability, f.photo, f.device or f.status, f"{f.ms:.0f} ms", ", ".join(f.labels))
            for f in recent
        ]
        self._live.update(
            Group(
                make_table(("device", "about", "status", "share"), devices, "iSpine demo"),
                make_table(("asked", "photograph", "answered by", "after", "found"), answers),
            )
        )


@guarded
def demo(
    seconds: Annotated[float, typer.Option(min=4, max=25, help="How long to stream.")] = 14.0,
    out: Annotated[Path | None, typer.Option(help="Folder for annotated pictures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show it all on this machine: three devices answer a wearable while one is killed."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"expected a folder at {out}; {error.strerror}") from error
    # A polite kill cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Demo(seconds, out)
    if as_json:
        run.run(Show())
        print_json(run.tally.summary())
    else:
        _run_for_people(run, out)
    summary = run.tally.summary()
    if summary["lost"] or summary["duplicated"]:
        raise typer.Exit(1)


def _run_for_people(run: Demo, out: Path | None) -> None:
    print("Starting a hub, three devices and a wearable on this machine …", flush=True)
    if sys.stdout.isatty():
        with LiveShow() as show:
            run.run(show)
    else:
        run.run(PlainShow())
    tally = run.tally
    summary = tally.summary()
    print(
        f"\n{summary['sent']} frames sent, {summary['answered']} answered,"
        f" {summary['on_time']} within {tally.within_ms:.0f} ms;"
        f" {summary['lost']} lost, {summary['duplicated']} duplicated\n"
        f"latency p50 {summary['p50_ms']} ms, p95 {summary['p95_ms']} ms,"
        f" p99 {summary['p99_ms']} ms;"
        f" longest gap after the kill {summary['longest_gap_ms']} ms"
    )
    print("answers by device: " + ", ".join(f"{k} {v:.0%}" for k, v in tally.shares().items()))
    found = ", ".join(f"{label} x{count}" for label, count in tally.detections().items())
    print(f"found: {found}")
    if out is not None:
        print(f"annotated pictures: {out}")
