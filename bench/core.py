"""Decisions per second of the scheduler's core, alone: no link, no codec, one Python thread.

    python bench/core.py [--json] [--seconds 3]

A fleet whose devices differ tenfold is kept busy with 1,000 tasks waiting, from 20 wearables. A
decision is a task given to a device, with all that belongs to it: its admission, the answer of the
one before, what that teaches, and the line. The baseline, interleaved, is the same stream of events
through the least a scheduler can do: first come first served to the next free device, with a
heap and nothing else.
"""

import argparse
import gc
import json
import platform
import random
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.scheduler.actions import AssignTask
from ispine.scheduler.config import MS, SECOND, CoreConfig
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.events import (
    CapabilityOffer,
    DeviceDescription,
    DeviceOnline,
    DeviceSeen,
    Event,
    HubStarted,
    ReplyAccepted,
    ReplyDone,
    TaskSubmitted,
    VariantOffer,
)

WORK = Capability("work")
QUEUED = 1000
CLIENTS = 20
ROUND_S = 0.5


@dataclass
class CoreRun:
    """The real core with a fleet that never rests."""

    devices: int
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    core: SchedulerCore = field(default_factory=lambda: SchedulerCore(CoreConfig()))
    running: list[AssignTask] = field(default_factory=list)
    speed_ms: dict[DeviceId, float] = field(default_factory=dict)
    took_ns: list[int] = field(default_factory=list)
    now_ns: int = SECOND
    made: int = 0

    def __post_init__(self) -> None:
        self.tell(HubStarted(self.now_ns))
        for index in range(self.devices):
            device = DeviceId(f"d{index}")
            speed = self.speed_ms[device] = self.rng.uniform(20, 200)
            offer = CapabilityOffer(WORK, (VariantOffer("", speed * MS),))
            self.tell(DeviceSeen(self.now_ns, device, DeviceDescription(1, 1, (offer,))))
            self.tell(DeviceOnline(self.now_ns, device))
        self.fill()

    def tell(self, event: Event) -> None:
        """Give the core an event and take the time."""
        start = time.perf_counter_ns()
        actions = self.core.handle(event)
        self.took_ns.append(time.perf_counter_ns() - start)
        self.running += [action for action in actions if isinstance(action, AssignTask)]

    def fill(self) -> None:
        """Let 1,000 tasks wait."""
        while len(self.core.state.waiting) < QUEUED:
            self.made += 1
            self.tell(
                TaskSubmitted(
                    self.now_ns,
                    TaskId(f"t{self.made}"),
                    ClientId(f"c{self.made % CLIENTS}"),
                    WORK,
                    50_000,
                    self.now_ns + 600 * SECOND,
                )
            )

    def step(self) -> None:
        """One task ends, its place is given to the next, and a new one comes."""
        pick = self.rng.randrange(len(self.running))
        a = self.running[pick]
        self.running[pick] = self.running[-1]
        self.running.pop()
        self.now_ns += int(80 * MS / self.devices)
        self.tell(ReplyAccepted(self.now_ns, a.task_id, a.client_id, a.device_id, a.attempt))
        took_ms = self.speed_ms[a.device_id] * self.rng.uniform(0.95, 1.05)
        self.tell(
            ReplyDone(
                self.now_ns, a.task_id, a.client_id, a.device_id, a.attempt, 300, "", 1.0, took_ms
            )
        )
        self.fill()

    def run(self, seconds: float) -> tuple[int, float]:
        """Tasks given out, and the time that it took the core."""
        before = self.core.state.counters.assigned
        first = len(self.took_ns)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.step()
        spent_s = sum(self.took_ns[first:]) / 1e9
        return self.core.state.counters.assigned - before, spent_s


def run_baseline(seconds: float) -> tuple[int, float]:
    """First come, first served: a queue and a dictionary."""
    line: deque[str] = deque(f"t{index}" for index in range(QUEUED))
    given: dict[str, int] = {}
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for device in range(100):
            task = line.popleft()
            given[task] = device
            del given[task]
            line.append(task)
        count += 100
    return count, time.perf_counter() - start


def quantile(values: list[int], share: float) -> float:
    """A quantile of measured times."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def commit() -> str:
    """The commit that is measured, "" outside a checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def measure(seconds: float) -> dict[str, object]:
    """All numbers, the sizes interleaved."""
    runs = {str(size): CoreRun(size) for size in (30, 1000)}
    for run in runs.values():
        run.run(ROUND_S)
        run.took_ns.clear()
    gc.collect()
    gc.freeze()
    totals = {name: [0, 0.0] for name in (*runs, "fifo")}
    for _ in range(max(round(seconds / ROUND_S), 1)):
        for name, run in runs.items():
            count, spent = run.run(ROUND_S)
            totals[name][0] += count
            totals[name][1] += spent
        count, spent = run_baseline(ROUND_S / 5)
        totals["fifo"][0] += count
        totals["fifo"][1] += spent
    return {
        "decisions_per_s": {name: round(totals[name][0] / totals[name][1]) for name in runs},
        "events_per_s": {
            name: round(len(run.took_ns) / (sum(run.took_ns) / 1e9)) for name, run in runs.items()
        },
        "event_p50_ms": {n: round(quantile(r.took_ns, 0.5) / 1e6, 4) for n, r in runs.items()},
        "event_p95_ms": {n: round(quantile(r.took_ns, 0.95) / 1e6, 4) for n, r in runs.items()},
        "event_p99_ms": {n: round(quantile(r.took_ns, 0.99) / 1e6, 4) for n, r in runs.items()},
        "queued": QUEUED,
        "baseline_fifo_per_s": round(totals["fifo"][0] / totals["fifo"][1]),
        "machine": f"{platform.machine()} {platform.system()} Python {platform.python_version()}",
        "commit": commit(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each fleet size")
    args = parser.parse_args()
    found = measure(args.seconds)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
