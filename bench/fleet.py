"""A hub and agents as processes of their own, for the benchmarks."""

import argparse
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ispine.cli.processes import Child
from ispine.sdk import Spine
from ispine.sdk.sync import Future

HERE = Path(__file__).parent


class Fleet:
    """Started with `running_fleet`."""

    def __init__(self) -> None:
        command = ["hub", "--port", "0", "--engine", "embedded", "--no-announce", "--json"]
        self.hub = Child("hub", command)
        self.url = str(self.hub.wait_ready()["url"])
        self.agents: dict[str, Child] = {}

    def start(self, name: str, function: str, *, url: str = "", wait: bool = True) -> Child:
        """An agent with one slot that offers `work`."""
        arguments = ["agent", "--url", url or self.url, "--id", name, "--slots", "1", "--json"]
        arguments += ["--capability", f"work=workers:{function}"]
        child = self.agents[name] = Child(name, arguments, {"PYTHONPATH": str(HERE)})
        if wait:
            child.wait_ready()
        return child

    def close(self) -> None:
        """End everything."""
        for child in [*self.agents.values(), self.hub]:
            child.stop(grace_s=0.5)
            child.close()


@contextmanager
def running_fleet(**workers: str) -> Iterator[tuple[Fleet, Spine]]:
    """A hub, one agent per keyword (name and function of `workers.py`), and a client."""
    fleet = Fleet()
    try:
        for name, function in workers.items():
            fleet.start(name, function)
        with Spine.connect(fleet.url) as spine:
            yield fleet, spine
    finally:
        fleet.close()


def submit(spine: Spine, count: int, within_ms: float = 60_000) -> list[Future]:
    """So many small tasks at once."""
    payload = random.Random(1).randbytes(1000)
    return [spine.submit("work", payload, within_ms=within_ms) for _ in range(count)]


def warm_up(spine: Spine, count: int = 60) -> None:
    """Let the scheduler learn the times."""
    for future in submit(spine, count):
        future.result(60)
    time.sleep(0.2)


def duplicates_of(spine: Spine) -> int:
    """Outcomes beyond one per sending: a task that is sent again asks for its outcome again."""
    stats = spine.stats
    return max(stats.duplicates - stats.resent - stats.asked_again, 0)


def arguments_of(description: str | None, **defaults: int) -> argparse.Namespace:
    """`--json` and the given numbers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def show(numbers: dict[str, object], *, as_json: bool) -> None:
    """One JSON object, or a line each."""
    if as_json:
        print(json.dumps(numbers))
        return
    for name, value in numbers.items():
        print(f"{name:22} {value}")
