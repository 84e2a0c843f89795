"""Any order of events at an agent: nothing runs twice, every assignment ends in exactly one way."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ispine.agent.batching import BatchCurve
from ispine.agent.core import AgentCore
from ispine.agent.events import (
    MS,
    Action,
    AgentLimits,
    AssignmentReceived,
    AttemptCancelled,
    Event,
    Forget,
    Key,
    Keys,
    LinkRestored,
    Refuse,
    RepeatFinal,
    ReplyAcknowledged,
    RunFinished,
    SendAccepted,
    SendFinal,
    StartRun,
    TimePassed,
    WillingnessChanged,
)

GROUPS = {"": 1, "g": 3, "h": 8}
NUMBERS = st.integers(0, 11)


def key(number: int) -> Key:
    return ("client", f"t{number}", 1)


class AgentMachine(RuleBasedStateMachine):
    """The world around one core: what it was told, what it said, what the executor does."""

    def __init__(self) -> None:
        super().__init__()
        self.core = AgentCore()
        self.now_ns = 0
        self.running: dict[Keys, None] = {}
        self.given: dict[Key, AssignmentReceived] = {}
        self.started: set[Key] = set()
        self.ended: set[Key] = set()
        self.lost_before = 0

    @initialize(
        slots=st.integers(1, 3), spare=st.integers(1, 3), duty=st.sampled_from([1.0, 0.5, 0.1])
    )
    def begin(self, slots: int, spare: int, duty: float) -> None:
        self.core = AgentCore(
            AgentLimits(slots, spare, 4, duty, kept_replies=5, kept_bytes=1000, repeat_times=2)
        )

    def tell(self, event: Event) -> list[Action]:
        actions = list(self.core.handle(event))
        for action in actions:
            self.check(action)
        return actions

    def check(self, action: Action) -> None:
        if isinstance(action, StartRun):
            self.check_start(action)
        elif isinstance(action, SendFinal):
            assert action.key in self.started
            self.end(action.key)
        elif isinstance(action, Refuse):
            if action.code in ("too_busy", "expired"):
                assert action.key not in self.started, "what ran is answered with its outcome"
            self.end(action.key)
        elif isinstance(action, RepeatFinal):
            assert action.key in self.ended
        elif isinstance(action, SendAccepted):
            assert action.key in self.given
            assert action.key not in self.ended
        elif isinstance(action, Forget):
            assert action.key in self.ended
            self.forget(action.key)

    def check_start(self, action: StartRun) -> None:
        assert not self.core.refusal
        told = [self.given[each] for each in action.keys]
        assert all(each.deadline_ns > self.now_ns for each in told), "what is late does not run"
        assert len({each.group for each in told}) == 1
        assert len(told) <= min(each.max_batch for each in told)
        for each in action.keys:
            assert each not in self.started, "never twice"
            assert each not in self.ended
            self.started.add(each)
        self.running[action.keys] = None
        assert len(self.running) <= self.core.limits.slots

    def end(self, ended: Key) -> None:
        assert ended in self.given
        assert ended not in self.ended, "one outcome"
        self.ended.add(ended)

    def forget(self, forgotten: Key) -> None:
        """The core knows nothing of it any more: from here on it is a new assignment."""
        for known in (self.ended, self.started):
            known.discard(forgotten)
        del self.given[forgotten]

    @rule(
        number=NUMBERS,
        ttl_ms=st.integers(1, 60),
        priority=st.integers(0, 2),
        group=st.sampled_from(sorted(GROUPS)),
    )
    def assignment(self, number: int, ttl_ms: int, priority: int, group: str) -> None:
        deadline_ns = self.now_ns + ttl_ms * MS
        event = AssignmentReceived(
            self.now_ns, key(number), deadline_ns, priority, group, GROUPS[group]
        )
        is_known = key(number) in self.given
        self.given.setdefault(key(number), event)
        actions = self.tell(event)
        if is_known:
            answers = [a for a in actions if isinstance(a, SendAccepted | RepeatFinal)]
            assert key(number) in {answer.key for answer in answers}, "a duplicate is answered"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), size=st.integers(0, 600))
    def finish(self, data: st.DataObject, size: int) -> None:
        keys = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[keys]
        took_ns = data.draw(st.integers(0, 40)) * MS
        actions = self.tell(RunFinished(self.now_ns, keys, took_ns, (size,) * len(keys)))
        answered = {a.key for a in actions if isinstance(a, SendFinal | Refuse)}
        assert set(keys) <= answered, "whatever ran is answered at once"

    @rule(number=NUMBERS)
    def acknowledge(self, number: int) -> None:
        self.tell(ReplyAcknowledged(self.now_ns, key(number)))

    @rule(number=NUMBERS, attempt=st.integers(0, 2))
    def cancel(self, number: int, attempt: int) -> None:
        self.tell(AttemptCancelled(self.now_ns, f"t{number}", attempt))

    @rule(refusal=st.sampled_from(["", "", "hot"]))
    def willingness(self, refusal: str) -> None:
        self.tell(WillingnessChanged(self.now_ns, refusal))

    @rule()
    def link_restored(self) -> None:
        repeated = {
            a.key for a in self.tell(LinkRestored(self.now_ns)) if isinstance(a, RepeatFinal)
        }
        assert repeated == self.ended, "whatever is kept is said again"

    @rule(step_ms=st.one_of(st.integers(1, 30), st.integers(1000, 30_000)))
    def wait(self, step_ms: int) -> None:
        self.now_ns += step_ms * MS
        self.tell(TimePassed(self.now_ns))

    @rule()
    def wake(self) -> None:
        due_ns = self.core.next_wakeup_ns
        if due_ns is not None:
            self.now_ns = max(self.now_ns, due_ns)
            self.tell(TimePassed(self.now_ns))
            after_ns = self.core.next_wakeup_ns
            assert after_ns is None or after_ns > self.now_ns, "a wake-up does what it was for"

    @invariant()
    def holds(self) -> None:
        self.core.check_invariants()
        assert self.core.running == len(self.running)
        unanswered = set(self.given) - self.ended
        assert self.core.outstanding == len(unanswered)
        assert unanswered >= {each for keys in self.running for each in keys}

    def teardown(self) -> None:
        """Let everything end: nothing may stay without an outcome, and nothing is kept forever."""
        self.tell(WillingnessChanged(self.now_ns, ""))
        for _ in range(400):
            for keys in list(self.running):
                del self.running[keys]
                self.tell(RunFinished(self.now_ns, keys, MS, (1,) * len(keys)))
            due_ns = self.core.next_wakeup_ns
            if due_ns is None:
                break
            self.now_ns = max(self.now_ns, due_ns)
            self.tell(TimePassed(self.now_ns))
        assert self.core.outstanding == 0
        assert not self.given


AgentMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestAgentMachine = AgentMachine.TestCase


@given(
    runs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10**10), st.booleans()), max_size=60),
    slacks=st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=20),
    most=st.integers(2, 16),
)
def test_a_batch_is_never_larger_than_allowed(
    runs: Iterable[tuple[int, int, bool]], slacks: list[int], most: int
) -> None:
    curve = BatchCurve(most)
    for size, took_ns, is_in_time in runs:
        curve.observe(min(size, most), took_ns, is_in_time=is_in_time)
        assert 1 <= curve.cap <= most
    size, due_ns = curve.choose(slacks, 0)
    assert 1 <= size <= min(most, curve.cap, len(slacks))
    line = curve.line()
    assert line is None or min(line) >= 0
    if size > 1:
        assert curve.predict_ns(size) <= due_ns
