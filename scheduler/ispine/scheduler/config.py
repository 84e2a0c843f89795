"""Settings of the scheduler's core, with the reason for each default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The numbers of the policy. Times are nanoseconds.

    Attributes:
        seed: of the generator that breaks ties; the same seed and events give the same actions.
        grace_ns: how long a task may wait for its first capable device, after the start and after
            the last one was lost.
        battery_floor_pct: a device that is not charging gets nothing at or below it.
        heat_weight: λ_T, how much a device at its hard temperature is avoided.
        battery_weight: how much an empty battery is avoided.
        telemetry_fresh_ns: older temperature and battery readings are unknown, hence neutral.
        tie: devices within this share of the best cost are equal.
        eagerness: an idle device takes a task when the faster ones would end this share of those
            that would pay on its own; below 1 because of the tasks that are still to come.
        sample: above this many devices of one capability, only so many are looked at.
        max_slots: more than this from a device is not believed.
        max_batch: as `max_slots`, for tasks that run together in one slot.
        hedge_share: extra attempts per attempt.
        hedge_burst: extra attempts that may follow each other at once.
        hedge_at: share of a task's time after which it is hedged at the latest.
        hedge_floor_ns: least lateness that can start a hedge.
        lease_floor_ns: least lateness that ends a lease.
        accept_floor_ns: an assignment that is not accepted by then is sent again.
        silence_floor_ns, silence_cap_ns: a device that holds work and says nothing for so long is
            asked for a heartbeat; between the two it is a quarter of the time its oldest task took.
        answer_floor_ns, answer_least_ns: time to answer that: a sixth of what its most urgent task
            has left, between the two.
        suspect_ns, suspect_cap_ns: how long a device is suspect first, and at most.
        offline_ns: silence of an idle device after which it counts as gone.
        realtime_attempts, durable_attempts: how often a task may be run.
        assignments: how often a task may be given out, run or not.
        fair_window_ns: device time by which one wearable may be ahead of another for the sake of
            an earlier deadline.
        weights: share of a wearable relative to the others, 1 when it is not named.
        max_open: tasks that are not yet decided, of everybody.
        max_open_per_client, max_open_per_owner: the same, of one wearable and of one owner.
        device_ns_per_minute: device time that one wearable may use in a minute, None without limit.
        keep_ns: how long an outcome is kept.
        keep_bytes: bytes of results that are kept.
        keep_count: outcomes that are kept.
        max_ttl_ns: a deadline further away is refused.
        quarantine_ns, quarantine_cap_ns: first and longest pause of a quarantined device.
        probes: good answers in a row that end a quarantine.
        traces: finished tasks that `why` can explain.
    """

    seed: int = 1
    grace_ns: int = 2 * SECOND
    battery_floor_pct: float = 15.0
    heat_weight: float = 1.0
    battery_weight: float = 0.25
    telemetry_fresh_ns: int = 60 * SECOND
    tie: float = 0.05
    eagerness: float = 0.7
    sample: int = 100
    max_slots: int = 64
    max_batch: int = 16
    hedge_share: float = 0.05
    hedge_burst: float = 3.0
    hedge_at: float = 0.6
    hedge_floor_ns: int = 25 * MS
    lease_floor_ns: int = 150 * MS
    accept_floor_ns: int = 50 * MS
    silence_floor_ns: int = 30 * MS
    silence_cap_ns: int = 1 * SECOND
    answer_floor_ns: int = 60 * MS
    answer_least_ns: int = 20 * MS
    suspect_ns: int = 300 * MS
    suspect_cap_ns: int = 10 * SECOND
    offline_ns: int = 3_500 * MS
    realtime_attempts: int = 2
    durable_attempts: int = 8
    assignments: int = 16
    fair_window_ns: int = 100 * MS
    weights: Mapping[str, float] = field(default_factory=dict)
    max_open: int = 20_000
    max_open_per_client: int = 2_048
    max_open_per_owner: int = 8_192
    device_ns_per_minute: int | None = None
    keep_ns: int = 300 * SECOND
    keep_bytes: int = 64 * 1024 * 1024
    keep_count: int = 50_000
    max_ttl_ns: int = 24 * 3600 * SECOND
    quarantine_ns: int = 5 * SECOND
    quarantine_cap_ns: int = 120 * SECOND
    probes: int = 3
    traces: int = 2_000


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of the service around the core.

    Attributes:
        hub_id: names this scheduler on the wire.
        root: of all topics.
        core: the policy.
        payload_cap_bytes: inputs of all open tasks together.
        journal: SQLite file for durable tasks; None refuses them.
        urls: where the broker can be reached, for the retained hub message.
        version: of iSpine, for the same.
        outcome_days: how long the outcome of a durable task can be fetched.
        rival_wait_s: how long a second scheduler is given to show itself at the start.
    """

    hub_id: str = "hub"
    root: str = "ispine"
    core: CoreConfig = field(default_factory=CoreConfig)
    payload_cap_bytes: int = 256 * 1024 * 1024
    journal: Path | None = None
    urls: tuple[str, ...] = ()
    version: str = ""
    outcome_days: float = 7.0
    rival_wait_s: float = 0.3
