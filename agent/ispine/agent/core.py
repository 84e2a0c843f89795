"""What an agent decides: events in, actions out.

Theory of operation. An assignment is `waiting`, then `running`, then has a final reply that is kept
until the scheduler acknowledges it; at every moment it is in exactly one of the three. The same
attempt is never run twice: a duplicate gets what is already known. A task whose deadline has passed
is dropped before it runs. `accepted` is sent a moment late, because a `done` within that moment
says the same and saves two messages on the way of a short task.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

MS = 1_000_000

Key = tuple[str, str, int]
"""(client, task, attempt)."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Numbers of the core.

    Attributes:
        slots: assignments that run at once.
        spare: assignments that may wait beyond the slots.
        accept_after_ns: how long an `accepted` waits for a `done` that makes it needless.
        repeat_first_ns: first repetition of an unacknowledged final reply; doubles each time.
        repeat_times: repetitions before it is forgotten.
        kept_replies: final replies kept at once.
        overrun_ns: how long past its deadline a run may go on before its slot counts as lost.
    """

    slots: int = 1
    spare: int = 3
    accept_after_ns: int = 4 * MS
    repeat_first_ns: int = 1000 * MS
    repeat_times: int = 6
    kept_replies: int = 256
    overrun_ns: int = 10_000 * MS


@dataclass(frozen=True, slots=True)
class AssignmentReceived:
    """An attempt came; `deadline_ns` by this machine's clock."""

    now_ns: int
    key: Key
    deadline_ns: int
    priority: int = 1


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The executor is done with an attempt, well or badly."""

    now_ns: int
    key: Key


@dataclass(frozen=True, slots=True)
class ReplyAcknowledged:
    """The scheduler has the final reply."""

    now_ns: int
    key: Key


@dataclass(frozen=True, slots=True)
class AttemptCancelled:
    """The scheduler does not want an attempt any more."""

    now_ns: int
    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class WillingnessChanged:
    """An owner's rule began or ceased to refuse work, or the device drains; "" means it works."""

    now_ns: int
    refusal: str


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
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class StartRun:
    """Give an attempt to the executor."""

    key: Key
    waited_ns: int


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
    """The number of working slots changed."""

    lost: int


Action = StartRun | SendAccepted | SendFinal | Refuse | RepeatFinal | Forget | ReportSlots


@dataclass(slots=True)
class _Held:
    deadline_ns: int
    priority: int
    received_ns: int
    accept_at_ns: int
    is_running: bool = False
    is_cancelled: bool = False
    is_overrun: bool = False


@dataclass(slots=True)
class _Kept:
    repeat_at_ns: int
    repeats: int = 0


@dataclass(slots=True)
class Counters:
    """What happened, for the state and for tests."""

    ran: int = 0
    duplicates: int = 0
    expired: int = 0
    refused: int = 0
    cancelled: int = 0
    unacknowledged: int = 0


@dataclass(slots=True)
class AgentCore:
    """Decides what runs, what is refused and what is said again.

    Attributes:
        limits: the numbers.
        refusal: why no work is taken now, "" when it is.
    """

    limits: AgentLimits = field(default_factory=AgentLimits)
    refusal: str = ""
    counters: Counters = field(default_factory=Counters)
    _held: dict[Key, _Held] = field(default_factory=dict)
    _kept: OrderedDict[Key, _Kept] = field(default_factory=OrderedDict)
    _out: list[Action] = field(default_factory=list)

    def handle(self, event: Event) -> list[Action]:
        """The only mutator: what to do about an event."""
        self._out = []
        match event:
            case AssignmentReceived():
                self._on_assignment(event)
            case RunFinished(now_ns, key):
                self._on_finished(now_ns, key)
            case ReplyAcknowledged(_, key):
                if self._kept.pop(key, None) is not None:
                    self._out.append(Forget(key))
            case AttemptCancelled(_, task_id, attempt):
                self._on_cancelled(event.now_ns, task_id, attempt)
            case WillingnessChanged(now_ns, refusal):
                self._on_willingness(now_ns, refusal)
            case TimePassed(now_ns):
                self._on_time(now_ns)
        self._start_runs(event.now_ns)
        return self._out

    @property
    def outstanding(self) -> int:
        """Assignments that wait or run."""
        return len(self._held)

    @property
    def running(self) -> int:
        """Assignments that run."""
        return sum(held.is_running for held in self._held.values())

    @property
    def lost_slots(self) -> int:
        """Slots whose run went on far beyond its deadline."""
        return sum(held.is_overrun for held in self._held.values())

    @property
    def free_slots(self) -> int:
        """Assignments that could start at once."""
        if self.refusal:
            return 0
        return max(self.limits.slots - len(self._held), 0)

    @property
    def held_tasks(self) -> tuple[str, ...]:
        """Ids of the tasks that wait or run."""
        return tuple(key[1] for key, held in self._held.items() if not held.is_cancelled)

    @property
    def has_unsaid(self) -> bool:
        """Whether something waits, runs, or has a reply that was not acknowledged."""
        return bool(self._held or self._kept)

    @property
    def next_wakeup_ns(self) -> int | None:
        """When `TimePassed` is wanted next."""
        times = [kept.repeat_at_ns for kept in self._kept.values()]
        for held in self._held.values():
            if held.accept_at_ns:
                times.append(held.accept_at_ns)
            if held.is_running and not held.is_overrun:
                times.append(held.deadline_ns + self.limits.overrun_ns)
        return min(times, default=None)

    def _on_assignment(self, event: AssignmentReceived) -> None:
        key = event.key
        if key in self._kept:
            self.counters.duplicates += 1
            self._out.append(RepeatFinal(key))
        elif key in self._held:
            self.counters.duplicates += 1
            self._held[key].accept_at_ns = 0
            self._out.append(SendAccepted(key))
        elif self.refusal:
            self._refuse(event.now_ns, key, "too_busy", self.refusal)
        elif len(self._held) >= self.limits.slots + self.limits.spare:
            message = (
                f"expected at most {self.limits.slots + self.limits.spare} assignments at once;"
                " this is one more"
            )
            self._refuse(event.now_ns, key, "too_busy", message)
        else:
            self._held[key] = _Held(
                event.deadline_ns,
                event.priority,
                event.now_ns,
                event.now_ns + self.limits.accept_after_ns,
            )

    def _refuse(self, now_ns: int, key: Key, code: str, message: str) -> None:
        self.counters.refused += 1
        self._keep(now_ns, key)
        self._out.append(Refuse(key, code, message))

    def _keep(self, now_ns: int, key: Key) -> None:
        self._kept[key] = _Kept(now_ns + self.limits.repeat_first_ns)
        while len(self._kept) > self.limits.kept_replies:
            oldest, _ = self._kept.popitem(last=False)
            self.counters.unacknowledged += 1
            self._out.append(Forget(oldest))

    def _on_finished(self, now_ns: int, key: Key) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        if held.is_overrun:
            self._out.append(ReportSlots(self.lost_slots))
        # The next run begins before this one is answered: encoding takes a while.
        self._start_runs(now_ns)
        if held.is_cancelled:
            self._refuse(now_ns, key, "cancelled", "taken back while it ran")
            return
        self.counters.ran += 1
        self._keep(now_ns, key)
        self._out.append(SendFinal(key))

    def _on_cancelled(self, now_ns: int, task_id: str, attempt: int) -> None:
        for key, held in list(self._held.items()):
            if key[1] != task_id or (attempt and key[2] != attempt) or held.is_cancelled:
                continue
            self.counters.cancelled += 1
            if held.is_running:
                held.is_cancelled = True
                held.accept_at_ns = 0
            else:
                del self._held[key]
                self._refuse(now_ns, key, "cancelled", "taken back before it ran")

    def _on_willingness(self, now_ns: int, refusal: str) -> None:
        self.refusal = refusal
        if not refusal:
            return
        for key, held in list(self._held.items()):
            if not held.is_running:
                del self._held[key]
                self._refuse(now_ns, key, "too_busy", refusal)

    def _on_time(self, now_ns: int) -> None:
        for key, held in self._held.items():
            if held.accept_at_ns and held.accept_at_ns <= now_ns:
                held.accept_at_ns = 0
                self._out.append(SendAccepted(key))
            late_ns = held.deadline_ns + self.limits.overrun_ns
            if held.is_running and not held.is_overrun and late_ns <= now_ns:
                held.is_overrun = True
                self._out.append(ReportSlots(self.lost_slots))
        for key, kept in list(self._kept.items()):
            if kept.repeat_at_ns <= now_ns:
                self._repeat(now_ns, key, kept)

    def _repeat(self, now_ns: int, key: Key, kept: _Kept) -> None:
        if kept.repeats >= self.limits.repeat_times:
            del self._kept[key]
            self.counters.unacknowledged += 1
            self._out.append(Forget(key))
            return
        kept.repeats += 1
        kept.repeat_at_ns = now_ns + (self.limits.repeat_first_ns << kept.repeats)
        self._out.append(RepeatFinal(key))

    def _start_runs(self, now_ns: int) -> None:
        while self.running < self.limits.slots:
            waiting = [(k, h) for k, h in self._held.items() if not h.is_running]
            if not waiting:
                return
            key, held = min(
                waiting, key=lambda e: (-e[1].priority, e[1].deadline_ns, e[1].received_ns)
            )
            if held.deadline_ns <= now_ns:
                del self._held[key]
                self.counters.expired += 1
                self._refuse(
                    now_ns, key, "expired", "expected to start before the deadline; it has passed"
                )
                continue
            held.is_running = True
            self._out.append(StartRun(key, now_ns - held.received_ns))

    def check_invariants(self) -> None:
        """What must hold after every event.

        Raises:
            AssertionError: it does not.
        """
        assert not set(self._held) & set(self._kept)
        assert self.running <= self.limits.slots
        assert len(self._held) <= self.limits.slots + self.limits.spare
        assert len(self._kept) <= self.limits.kept_replies
        assert all(h.is_running for h in self._held.values() if h.is_cancelled or h.is_overrun)
        if self.refusal:
            assert all(h.is_running for h in self._held.values())
