"""What the scheduler knows of one device, and how much of it it believes.

Work: a device holds attempts; `wait_ns` tells when a place to run becomes free. Standing: `block`
is the reason why it gets nothing now, "" when it may get work. Telemetry older than 60 s is
unknown, and a reading that jumps is believed only when the next one agrees.
"""

from dataclasses import dataclass, field
from math import isfinite

from ispine.protocol.ids import Capability, DeviceId
from ispine.scheduler.config import SECOND, CoreConfig
from ispine.scheduler.estimate import Calibration, LinkEstimate, TimeEstimate
from ispine.scheduler.events import CapabilityOffer, DeviceDescription, VariantOffer
from ispine.scheduler.task import Attempt

_LONGEST_SERVICE_NS = 3600.0 * SECOND
_LEAST_DEVIATION_NS = 1e6
"""No prediction is believed to be better than a millisecond."""


@dataclass(slots=True, eq=False)
class Rung:
    """One variant on one device.

    Attributes:
        numbers: what `Device.numbers_of` worked out, None when something was learned since.
    """

    name: str
    quality: float
    load_ns: float
    estimate: TimeEstimate
    numbers: tuple[float, float, float, float] | None = None


@dataclass(slots=True, eq=False)
class Skill:
    """One capability on one device.

    Attributes:
        ladder: usable variants of the best one's label set, best quality first.
        parallel: tasks that really run at once in one slot, learned where batches are possible.
    """

    capability: Capability
    ladder: list[Rung]
    is_idempotent: bool
    batch: int
    max_input_bytes: int
    parallel: float = 1.0
    busy_ns: float = 0.0
    computed_ns: float = 0.0

    def rung(self, level: int, pinned: str) -> Rung | None:
        """The variant for a task: a pinned one, or `level` rungs down."""
        if pinned:
            return next((rung for rung in self.ladder if rung.name == pinned), None)
        return self.ladder[min(level, len(self.ladder) - 1)] if level else self.ladder[0]

    def named(self, variant: str) -> Rung:
        """The variant of that name, the best one when there is none."""
        return next((rung for rung in self.ladder if rung.name == variant), self.ladder[0])


@dataclass(slots=True)
class Reading:
    """A sensor whose jumps are believed only when they are confirmed."""

    largest_jump: float
    value: float | None = None
    taken_ns: int = 0
    rejected: float | None = None

    def take(self, value: float | None, now_ns: int, fresh_ns: int) -> bool:
        """Take a reading; False when it was an impossible jump and therefore ignored."""
        if value is None or not isfinite(value):
            self.value = None
            return value is None
        known = self.value is not None and now_ns - self.taken_ns <= fresh_ns
        if known and self._jumps(value, self.value) and self._jumps(value, self.rejected):
            self.rejected = value
            return False
        self.value, self.taken_ns, self.rejected = value, now_ns, None
        return True

    def _jumps(self, value: float, other: float | None) -> bool:
        return other is None or abs(value - other) > self.largest_jump

    def fresh(self, now_ns: int, fresh_ns: int) -> float | None:
        """The value, None when it is unknown or too old."""
        return self.value if now_ns - self.taken_ns <= fresh_ns else None


@dataclass(slots=True, eq=False)
class Device:
    """One device.

    Attributes:
        block: why it gets no new work, "" when it may.
        price: factor on its time for heat and battery; refreshed with `block`.
        held: attempts that take a place, wanted or not.
        work_ns: device time that they were expected to take, together.
        epoch_ns: since when the oldest of them runs, as far as is known.
        heard_ns: last sign of life.
        pinged_ns: when it was asked for one in vain so far, 0 when it was not.
        probed_ns: when it was last asked, 0 once a heartbeat came.
        is_watched: a timer looks after what it holds.
        is_listened: a timer looks whether it is there at all.
        suspect_until_ns: 0 when it is trusted.
        suspect_for_ns: length of that suspicion.
        is_silent: it is suspect, and gave no sign of life when it was asked.
        quarantined_ns: end of the pause, 0 when it has none.
        refused_until_ns: it gave work back; it gets none until then.
        said_goodbye_ns: when it went offline by its own word, 0 while it is there.
        most_held: most that it may hold since its description changed last.
        overhead_ns: time of a slot between two tasks, beside computing.
        strikes: wrong answers and failures, fading with good answers.
        misses: late attempts in a row that were given up without an answer.
        probes_left: good answers until it is trusted again, 0 outside probation.
    """

    device_id: DeviceId
    known: DeviceDescription = field(default_factory=DeviceDescription)
    has_state: bool = False
    is_online: bool = False
    is_drained: bool = False
    block: str = "offline"
    price: float = 1.0
    slots: int = 1
    skills: dict[Capability, Skill] = field(default_factory=dict)
    held: dict[Attempt, None] = field(default_factory=dict)
    work_ns: float = 0.0
    epoch_ns: int = 0
    heard_ns: int = 0
    pinged_ns: int = 0
    probed_ns: int = 0
    is_watched: bool = False
    is_listened: bool = False
    suspect_until_ns: int = 0
    suspect_for_ns: int = 0
    suspected_ns: int = 0
    is_silent: bool = False
    quarantined_ns: int = 0
    quarantine_for_ns: int = 0
    quarantine_reason: str = ""
    probes_left: int = 0
    strikes: float = 0.0
    misses: int = 0
    refused_until_ns: int = 0
    said_goodbye_ns: int = 0
    most_held: int = 0
    temp: Reading = field(default_factory=lambda: Reading(25.0))
    battery: Reading = field(default_factory=lambda: Reading(20.0))
    link: LinkEstimate = field(default_factory=LinkEstimate)
    accept: TimeEstimate = field(default_factory=lambda: TimeEstimate(2e6))
    overhead_ns: float = 0.0
    calibration: Calibration = field(default_factory=Calibration)
    answered: int = 0
    failed: int = 0
    ignored_readings: int = 0

    def limit(self, skill: Skill) -> int:
        """Most attempts it may hold for this capability to be given another: slots + 1."""
        if self.probes_left:
            return 1
        return self.slots * skill.batch + 1

    def has_place(self, skill: Skill) -> bool:
        """Whether it may be given another attempt of this capability."""
        return len(self.held) < self.limit(skill)

    def wait_ns(self, now_ns: int, parallel: float = 1.0) -> float:
        """Expected time until a task given now begins to run.

        The task that runs is expected to need the rest of its time; when it is over its time, as
        long again as it is late.
        """
        held = len(self.held)
        places = self.slots * parallel
        if held < places or held == 0:
            return 0.0
        mean = self.work_ns / held
        elapsed = now_ns - self.epoch_ns
        rest = mean - elapsed if elapsed < mean else elapsed - mean
        return rest + (held - places) * mean / places

    def numbers_of(self, rung: Rung, skill: Skill) -> tuple[float, float, float, float]:
        """Service time, that with loading, time per task when busy, and deviation; nanoseconds."""
        estimate = rung.estimate
        deviation = max(estimate.deviation_ns + self.link.base.deviation_ns, _LEAST_DEVIATION_NS)
        service = estimate.mean_ns
        pace = (service + self.overhead_ns) / (self.slots * skill.parallel)
        rung.numbers = (service, service + rung.load_ns, pace, deviation)
        return rung.numbers

    def learned(self) -> None:
        """Something was learned: `numbers_of` has to be worked out again."""
        for skill in self.skills.values():
            for rung in skill.ladder:
                rung.numbers = None

    def hold(self, attempt: Attempt, now_ns: int) -> None:
        """Give it a place."""
        if not self.held:
            self.epoch_ns = now_ns
            self.work_ns = 0.0
        self.held[attempt] = None
        self.work_ns += attempt.service_ns

    def release(self, attempt: Attempt, now_ns: int) -> None:
        """Free the place of an attempt; the next one, if any, begins now."""
        if attempt in self.held:
            del self.held[attempt]
            attempt.is_held = False
            self.work_ns = max(self.work_ns - attempt.service_ns, 0.0)
            self.epoch_ns = now_ns

    def describe(self, told: DeviceDescription, now_ns: int, config: CoreConfig) -> None:
        """Take what it says about itself, as far as it can be believed."""
        same_boot = told.boot == self.known.boot
        if not same_boot:
            self.link = LinkEstimate()
            self.accept = TimeEstimate(2e6)
        self.known = told
        self.has_state = True
        self.most_held = len(self.held)
        self.slots = min(max(told.slots, 1), config.max_slots)
        fresh = config.telemetry_fresh_ns
        believed = self.temp.take(told.temp_c, now_ns, fresh)
        believed &= self.battery.take(told.battery_pct, now_ns, fresh)
        self.ignored_readings += not believed
        old = self.skills if same_boot else {}
        self.skills = {}
        for offer in told.offers:
            skill = _skill(offer, old.get(offer.name), config)
            if skill is not None:
                self.skills[offer.name] = skill

    def lose_skill(self, capability: Capability) -> None:
        """A capability turned out to be missing; it is back when the device describes itself."""
        self.skills.pop(capability, None)
        self.most_held = len(self.held)

    def refresh(self, now_ns: int, config: CoreConfig) -> None:
        """Work out `block` and `price` again."""
        self.block = self._find_block(now_ns, config)
        self.price = self._find_price(now_ns, config)

    def _find_block(self, now_ns: int, config: CoreConfig) -> str:
        if not self.is_online:
            return "offline"
        if not self.has_state:
            return "has not described itself"
        if self.is_drained or self.known.is_draining:
            return "drained"
        if not self.known.accepts:
            return self.known.refusal or "its owner's rules refuse work"
        if self.quarantined_ns:
            return f"quarantined: {self.quarantine_reason}"
        if self.suspect_until_ns:
            return "suspect"
        if self.refused_until_ns > now_ns:
            return "refused work"
        return self._find_low_battery(now_ns, config)

    def _find_low_battery(self, now_ns: int, config: CoreConfig) -> str:
        battery = self.battery.fresh(now_ns, config.telemetry_fresh_ns)
        if battery is None or self.known.is_charging or battery > config.battery_floor_pct:
            return ""
        return f"battery at {battery:.0f} %, not charging"

    def _find_price(self, now_ns: int, config: CoreConfig) -> float:
        price = 1.0 + config.heat_weight * self.heat(now_ns, config)
        battery = self.battery.fresh(now_ns, config.telemetry_fresh_ns)
        if battery is not None and not self.known.is_charging:
            price += config.battery_weight * (1 - battery / 100)
        return price

    def heat(self, now_ns: int, config: CoreConfig) -> float:
        """θ: 0 at the soft temperature or below or unknown, 1 at the hard one."""
        temp = self.temp.fresh(now_ns, config.telemetry_fresh_ns)
        soft, hard = self.known.temp_soft_c, self.known.temp_hard_c
        if temp is None or not (isfinite(soft) and isfinite(hard) and soft < hard):
            return 0.0
        return min(max((temp - soft) / (hard - soft), 0.0), 1.0)


def _is_sound(variant: VariantOffer) -> bool:
    numbers = (variant.service_ns, variant.load_ns, variant.quality)
    return (
        variant.is_usable
        and all(isfinite(number) and number >= 0 for number in numbers)
        and variant.service_ns <= _LONGEST_SERVICE_NS
    )


def _skill(offer: CapabilityOffer, old: Skill | None, config: CoreConfig) -> Skill | None:
    sound = sorted((v for v in offer.variants if _is_sound(v)), key=lambda v: -v.quality)
    if not sound:
        return None
    ladder = [
        Rung(v.name, v.quality, v.load_ns, _estimate(v, old))
        for v in sound
        if v.label_set == sound[0].label_set
    ]
    skill = Skill(
        offer.name,
        ladder,
        offer.is_idempotent,
        min(max(offer.max_batch, 1), config.max_batch),
        offer.max_input_bytes,
    )
    if old is not None:
        skill.parallel = min(old.parallel, skill.batch)
    return skill


def _estimate(variant: VariantOffer, old: Skill | None) -> TimeEstimate:
    """The running estimate of the variant, or one that begins at the prior."""
    fresh = TimeEstimate(variant.service_ns)
    known = None if old is None else next((r for r in old.ladder if r.name == variant.name), None)
    if known is None or known.estimate.count == 0:
        return fresh
    known.estimate.prior_ns = fresh.prior_ns
    return known.estimate
