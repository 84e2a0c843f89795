"""What the agent's core hears and what it answers with: events, actions, limits.

Events are past tense and carry the time, in nanoseconds of `boot_ns`; actions are imperative.
"""

from dataclasses import dataclass

MS = 1_000_000

Key = tuple[str, str, int]
"""(client, task, attempt)."""

Keys = tuple[Key, ...]
"""The attempts that share one run, usually one."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Numbers of the core.

    Attributes:
        slots: runs at once.
        spare: assignments that may wait beyond the slots.
        largest_batch: most assignments in one run, over all capabilities.
        duty: share of the time that a slot may work, above 0; it rests after each run.
        accept_after_ns: how long an `accepted` waits for a `done` that makes it needless.
        repeat_first_ns: first repetition of an unacknowledged final reply; doubles each time.
        repeat_times: repetitions before it is forgotten.
        kept_replies: final replies kept at once.
        kept_bytes: of their data together; the newest is kept whatever its size.
        overrun_ns: how long past its deadline a run may go on before its slot counts as lost.
        least_rest_ns: shorter rests are saved up.
    """

    slots: int = 1
    spare: int = 3
    largest_batch: int = 1
    duty: float = 1.0
    accept_after_ns: int = 4 * MS
    repeat_first_ns: int = 1000 * MS
    repeat_times: int = 6
    kept_replies: int = 256
    kept_bytes: int = 32 * 1024 * 1024
    overrun_ns: int = 10_000 * MS
    least_rest_ns: int = 5 * MS

    @property
    def held(self) -> int:
        """Most assignments that wait or run."""
        return self.slots * self.largest_batch + self.spare


@dataclass(frozen=True, slots=True)
class AssignmentReceived:
    """An attempt came; `deadline_ns` by this machine's clock.

    Assignments of the same `group` may share a run of at most `max_batch`.
    """

    now_ns: int
    key: Key
    deadline_ns: int
    priority: int = 1
    group: str = ""
    max_batch: int = 1


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The executor is done with a run, well or badly.

    Attributes:
        keys: as in `StartRun`.
        took_ns: time that the capability computed.
        sizes: bytes of each reply's data.
    """

    now_ns: int
    keys: Keys
    took_ns: int = 0
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyAcknowledged:
    """The scheduler has the final reply."""

    now_ns: int
    key: Key


@dataclass(frozen=True, slots=True)
class AttemptCancelled:
    """The scheduler does not want an attempt any more; attempt 0 is every one."""

    now_ns: int
    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class WillingnessChanged:
    """An owner's rule began or ceased to refuse work, or the device drains; "" means it works."""

    now_ns: int
    refusal: str


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """The link is up again; what was sent around the break may be lost."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time is now."""

    now_ns: int


Event = (
    AssignmentReceived
    | RunFinished
    | ReplyAcknowledged
    | AttemptCancelled
    | WillingnessChanged
    | LinkRestored
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class StartRun:
    """Give attempts to the executor, as one run; `waited_ns` is how long each of them waited."""

    keys: Keys
    waited_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendAccepted:
    """Tell the scheduler that the attempt is here."""

    key: Key


@dataclass(frozen=True, slots=True)
class SendFinal:
    """Send the outcome of a run that just finished, and keep it."""

    key: Key


@dataclass(frozen=True, slots=True)
class Refuse:
    """Give an attempt back without running it, and keep that reply."""

    key: Key
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RepeatFinal:
    """Send a kept final reply again."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing about this attempt is needed any more."""

    key: Key


@dataclass(frozen=True, slots=True)
class ReportSlots:
    """So many slots are lost now; before, it were more or fewer."""

    lost: int


Action = StartRun | SendAccepted | SendFinal | Refuse | RepeatFinal | Forget | ReportSlots
