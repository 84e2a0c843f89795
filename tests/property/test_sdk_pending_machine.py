"""The SDK's core on the worst network: each task has exactly one outcome, whatever is lost."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ispine.protocol.errors import TaskRejected
from ispine.protocol.messages import Result, Task, TaskEvent
from ispine.sdk.pending import MS, Action, EndTask, Pending, SendCancel, SendTask

IDS = st.sampled_from([f"t{number}" for number in range(6)])
PICK = st.integers(0, 1000)


@dataclass
class Hub:
    """Decides each task once, repeats what it decided, forgets everything when it begins anew."""

    decided: dict[str, Result] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def take(self, action: SendTask | SendCancel) -> list[Result | TaskEvent]:
        if isinstance(action, SendCancel):
            return self.decide(action.task_id, "cancelled")
        name = action.task.task_id
        if name in self.decided:
            return [self.decided[name]]
        self.open.add(name)
        return [TaskEvent("accepted", name, "c1")]

    def decide(self, name: str, status: str) -> list[Result | TaskEvent]:
        if name not in self.open:
            return []
        self.open.discard(name)
        self.decided[name] = Result(name, "c1", status)  # type: ignore[arg-type]
        return [self.decided[name]]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Pending()
        self.hub = Hub()
        self.now_ns = 0
        self.to_hub: list[SendTask | SendCancel] = []
        self.to_client: list[Result | TaskEvent] = []
        self.submitted: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, EndTask):
                name = action.result.task_id
                self.ended[name] = self.ended.get(name, 0) + 1
            elif self.core.is_connected:
                self.to_hub.append(action)

    @rule(name=IDS, ttl_ms=st.integers(1, 3000), data=st.sampled_from([b"a", b"b"]))
    def submit(self, name: str, ttl_ms: int, data: bytes) -> None:
        was_open = self.core.is_open(name)
        try:
            self.do(self.core.submitted(Task(name, "c1", "echo", data, ttl_ms), self.now_ns))
        except TaskRejected:
            assert was_open
            return
        self.submitted[name] = self.submitted.get(name, 0) + (not was_open)

    @rule(name=IDS)
    def take_back(self, name: str) -> None:
        self.do(self.core.taken_back(name))

    @rule(pick=PICK, keep=st.booleans())
    def deliver_to_hub(self, pick: int, keep: bool) -> None:
        """Any message, in any order; a kept one comes again."""
        if self.to_hub:
            message = self.to_hub[pick % len(self.to_hub)]
            if not keep:
                self.to_hub.remove(message)
            self.to_client += self.hub.take(message)

    @rule(pick=PICK, keep=st.booleans())
    def deliver_to_client(self, pick: int, keep: bool) -> None:
        if self.to_client and self.core.is_connected:
            message = self.to_client[pick % len(self.to_client)]
            if not keep:
                self.to_client.remove(message)
            if isinstance(message, Result):
                self.do(self.core.result_heard(message, self.now_ns))
            else:
                self.do(self.core.event_heard(message, self.now_ns))

    @rule(name=IDS, pieces=st.tuples(st.integers(0, 3)))
    def miss_chunks(self, name: str, pieces: tuple[int, ...]) -> None:
        self.to_client.append(TaskEvent("missing", name, "c1", missing=pieces))

    @rule(name=IDS)
    def stall_result(self, name: str) -> None:
        self.do(self.core.result_stalled(name, self.now_ns))

    @rule()
    def lose_everything(self) -> None:
        self.to_hub.clear()
        self.to_client.clear()

    @rule(name=IDS, status=st.sampled_from(["done", "failed", "expired"]))
    def decide(self, name: str, status: str) -> None:
        self.to_client += self.hub.decide(name, status)

    @rule()
    def begin_anew(self) -> None:
        self.hub = Hub()
        self.do(self.core.reconnected(self.now_ns))

    @rule()
    def disconnect(self) -> None:
        self.core.disconnected(self.now_ns)
        self.to_hub.clear()
        self.to_client.clear()

    @rule()
    def reconnect(self) -> None:
        self.do(self.core.reconnected(self.now_ns))

    @rule(ms=st.integers(0, 2000))
    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS
        self.do(self.core.time_passed(self.now_ns))

    @rule()
    def wait_until_due(self) -> None:
        due_ns = self.core.next_due_ns
        if due_ns is not None:
            self.now_ns = max(self.now_ns, due_ns)
            self.do(self.core.time_passed(self.now_ns))
            after_ns = self.core.next_due_ns
            assert after_ns is None or after_ns > self.now_ns, "the timer would spin"

    @invariant()
    def holds(self) -> None:
        self.core.check_invariants()
        for name, count in self.submitted.items():
            assert self.ended.get(name, 0) == count - self.core.is_open(name)

    def teardown(self) -> None:
        self.now_ns += 10_000 * MS
        self.do(self.core.time_passed(self.now_ns))
        assert len(self.core) == 0
        assert self.ended == {name: count for name, count in self.submitted.items() if count}


TestPending = Machine.TestCase
TestPending.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
