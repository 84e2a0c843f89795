"""A measured fleet in simulated time, under the real scheduler and under simpler policies.

Every policy gets the same frames of the same streams, the same devices with the same draws, and
the same fault: the second-fastest device is silent for the middle half of the run. A frame counts
as on time if its answer is back within the deadline; a frame that the wearable drops itself
because a newer one took its place counts as not on time.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from ispine.cli.replay_profile import MS, SECOND, Profile, link_of, service_of
from ispine.protocol.ids import Capability, DeviceId
from ispine.scheduler.actions import PublishResult
from ispine.scheduler.config import CoreConfig
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.events import CapabilityOffer, DeviceDescription, HubStarted, VariantOffer
from ispine.scheduler.sim import SimDevice, World
from ispine.sdk.flow import Window

WORK = Capability("work")
DEADLINE_MS = 150
FRAME_BYTES = 30_000
FPS = 15.0
LOADS = ("0.27", "0.68", "1.08")


@dataclass(frozen=True, slots=True)
class Setting:
    """One run: which fleet, how long, how loaded, which draws."""

    profile: Profile
    model: str
    load: float
    seconds: int
    seed: int

    def means_ms(self) -> dict[str, float]:
        """Unthrottled time of one run by device."""
        return {n: p.models[self.model].mean_ms for n, p in self.profile.phones.items()}

    def silent(self) -> str:
        """The second-fastest device."""
        means = self.means_ms()
        return sorted(means, key=lambda name: means[name])[1]

    def frames(self) -> list[tuple[int, str]]:
        """(time in ns, stream) of every frame, ascending."""
        rate = self.load * sum(1000 / mean for mean in self.means_ms().values())
        streams = max(1, round(rate / FPS))
        gap_ns = SECOND * streams / rate
        chance = random.Random(f"frames{self.seed}")
        made: list[tuple[int, str]] = []
        for stream in range(streams):
            at_ns = chance.random() * gap_ns
            while at_ns < self.seconds * SECOND:
                made.append((int(at_ns), f"s{stream}"))
                at_ns += gap_ns * (1 + 0.1 * chance.gauss(0, 1))
        return sorted(made)


@dataclass(slots=True)
class Score:
    """What a policy reached in one run.

    Attributes:
        frames: that the cameras made.
        times_ms: of the answers.
        runs: that devices did.
    """

    frames: int
    times_ms: list[float] = field(default_factory=list)
    runs: int = 0

    def numbers(self) -> dict[str, float]:
        """Shares and milliseconds."""
        ordered = sorted(self.times_ms)
        on_time = sum(took <= DEADLINE_MS for took in ordered)
        last = len(ordered) - 1
        return {
            "on_time": round(on_time / max(self.frames, 1), 5),
            "p50_ms": round(ordered[last // 2], 2) if ordered else 0.0,
            "p99_ms": round(ordered[int(0.99 * last)], 2) if ordered else 0.0,
            "extra_work": round(max(self.runs - len(ordered), 0) / max(self.frames, 1), 5),
        }


def _draws(setting: Setting) -> dict[str, tuple[Callable[[int], float], Callable[[int], float]]]:
    made = {}
    for number, name in enumerate(setting.profile.phones):
        chance = random.Random(f"{name}{setting.seed}")
        service = service_of(setting.profile, name, setting.model, number, chance)
        made[name] = (service, link_of(setting.profile, chance))
    return made


# -- the real core ---------------------------------------------------------------------------------


class IspineRun:
    """The real `SchedulerCore`, simulated agents, and the SDK's window for each stream."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._world = World(SchedulerCore(CoreConfig(seed=setting.seed)))
        self._windows: dict[str, Window] = {}
        self._newest: dict[str, str] = {}
        self._made_ns: dict[str, int] = {}
        self._sent_ns: dict[str, int] = {}
        self._seen = 0
        self.score = Score(0)

    def run(self) -> Score:
        """From the first frame to the last answer."""
        world, setting = self._world, self._setting
        world.tell(HubStarted(0))
        means = setting.means_ms()
        for name, (service, link) in _draws(setting).items():
            offer = CapabilityOffer(WORK, (VariantOffer("", means[name] * MS),))
            told = DeviceDescription(1, 1, (offer,))
            world.start(SimDevice(DeviceId(name), {WORK: service}, link, told))
        world.after_event = self._collect
        start_ns = SECOND
        for number, (at_ns, stream) in enumerate(setting.frames()):
            task = f"{stream}-{number}"
            world.at(start_ns + at_ns, partial(self._frame, stream, task))
            self.score.frames += 1
        silent = DeviceId(setting.silent())
        span_ns = setting.seconds * SECOND
        world.at(start_ns + span_ns // 4, lambda: world.freeze(silent))
        world.at(start_ns + 3 * span_ns // 4, lambda: world.thaw(silent))
        world.run(start_ns + span_ns + 2 * SECOND)
        self.score.runs = sum(device.ran for device in world.devices.values())
        return self.score

    def _frame(self, stream: str, task: str) -> None:
        window = self._windows.setdefault(stream, Window())
        window.frame_came(self._world.now_ns / SECOND)
        self._made_ns[task] = self._world.now_ns
        if window.has_place:
            self._send(stream, task)
        else:
            self._newest[stream] = task

    def _send(self, stream: str, task: str) -> None:
        world = self._world
        left_ns = self._made_ns[task] + DEADLINE_MS * MS - world.now_ns
        if left_ns <= 0:
            return
        self._windows[stream].sent()
        self._sent_ns[task] = world.now_ns
        world.submit(task, client=stream, within_ns=left_ns, size_bytes=FRAME_BYTES)

    def _collect(self) -> None:
        results = self._world.results
        while self._seen < len(results):
            at_ns, result = results[self._seen]
            self._seen += 1
            self._ended(at_ns, result)

    def _ended(self, at_ns: int, result: PublishResult) -> None:
        stream = str(result.client_id)
        is_answered = result.status == "done"
        if is_answered:
            self.score.times_ms.append((at_ns - self._made_ns[result.task_id]) / MS)
        took_s = (at_ns - self._sent_ns[result.task_id]) / SECOND
        self._windows[stream].ended(took_s, is_answered=is_answered)
        newest = self._newest.pop(stream, None)
        if newest is not None:
            self._world.at(at_ns, lambda: self._send(stream, newest))


# -- what people would use instead -----------------------------------------------------------------


@dataclass(slots=True)
class Worker:
    """A device with a queue that everything is pushed into.

    Attributes:
        free_ns: when it will have done what it holds.
        held: tasks it holds.
        estimate_ms: smoothed time of one run, for the policy that looks at it.
    """

    name: str
    service: Callable[[int], float]
    link: Callable[[int], float]
    estimate_ms: float
    free_ns: int = 0
    held: int = 0


Choice = Callable[[list[Worker], int, random.Random], Worker]


def round_robin(workers: list[Worker], number: int, _: random.Random) -> Worker:
    """One after the other, as a shared subscription does."""
    return workers[number % len(workers)]


def shortest_queue(workers: list[Worker], _: int, chance: random.Random) -> Worker:
    """The one that holds least."""
    least = min(worker.held for worker in workers)
    return chance.choice([worker for worker in workers if worker.held == least])


def power_of_two(workers: list[Worker], _: int, chance: random.Random) -> Worker:
    """The shorter of two random queues."""
    return min(chance.sample(workers, 2), key=lambda worker: worker.held)


def completion_time(workers: list[Worker], _: int, __: random.Random) -> Worker:
    """The one that would be done first by what it held and took so far."""
    return min(workers, key=lambda worker: (worker.held + 1) * worker.estimate_ms)


BASELINES: dict[str, Choice] = {
    "round_robin": round_robin,
    "join_shortest_queue": shortest_queue,
    "power_of_two": power_of_two,
    "ect": completion_time,
}


def run_pushed(setting: Setting, choose: Choice) -> Score:
    """One baseline: each frame is pushed to a device at once and answered whenever it is done."""
    means = setting.means_ms()
    workers = [
        Worker(name, service, link, means[name])
        for name, (service, link) in _draws(setting).items()
    ]
    chance = random.Random(f"choice{setting.seed}")
    span_ns = setting.seconds * SECOND
    silence = (setting.silent(), span_ns // 4, 3 * span_ns // 4)
    score = Score(0)
    ends: list[tuple[int, int, Worker, float]] = []
    for number, (at_ns, _) in enumerate(setting.frames()):
        while ends and ends[0][0] <= at_ns:
            _note_end(heappop(ends))
        worker = choose(workers, number, chance)
        worker.held += 1
        answered_ns, took_ms = _push(worker, at_ns, silence)
        heappush(ends, (answered_ns, number, worker, took_ms))
        score.frames += 1
        score.runs += 1
        score.times_ms.append((answered_ns - at_ns) / MS)
    return score


def _note_end(end: tuple[int, int, Worker, float]) -> None:
    _, _, worker, took_ms = end
    worker.held -= 1
    worker.estimate_ms += 0.2 * (took_ms - worker.estimate_ms)


def _push(worker: Worker, at_ns: int, silence: tuple[str, int, int]) -> tuple[int, float]:
    """When the answer is back, and how long the run took in milliseconds."""
    name, begin_ns, end_ns = silence
    arrived_ns = at_ns + int(worker.link(at_ns))
    start_ns = max(arrived_ns, worker.free_ns)
    took = worker.service(start_ns)
    done_ns = start_ns + int(took)
    if worker.name == name and done_ns > begin_ns and start_ns < end_ns:
        # It stands still and goes on where it was.
        done_ns += end_ns - max(begin_ns, start_ns)
    worker.free_ns = done_ns
    return done_ns + int(worker.link(done_ns)), took / MS


def compare(
    profile: Profile, model: str, seconds: int, seeds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Every policy at every load; numbers are means over the seeds."""
    table: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ("ispine", *BASELINES)}
    for load in LOADS:
        settings = [
            Setting(profile, model, float(load), seconds, seed) for seed in range(1, seeds + 1)
        ]
        table["ispine"][load] = _mean([IspineRun(s).run().numbers() for s in settings])
        for name, choose in BASELINES.items():
            table[name][load] = _mean([run_pushed(s, choose).numbers() for s in settings])
    return table


def _mean(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(sum(r[name] for r in runs) / len(runs), 5) for name in runs[0]}
