"""When a child that ended is started again, and in which order children end."""

import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ispine.cli import supervisor as watched
from ispine.cli.processes import START_S, StoppedEarly
from ispine.cli.supervisor import Supervisor


@dataclass
class FakeChild:
    name: str
    started_s: float
    log: list[str]
    is_running: bool = True
    is_ready: bool = True
    has_told_to_stop: bool = False

    def wait_ready(self, stop: threading.Event) -> dict[str, object]:
        if self.has_told_to_stop:
            stop.set()
            raise StoppedEarly
        return {"url": "mqtt://127.0.0.1:1"}

    def why_it_failed(self) -> str:
        return "of a test"

    def kill(self) -> None:
        self.log.append(f"kill {self.name}")
        self.is_running = False

    def close(self) -> None:
        self.log.append(f"close {self.name}")


@dataclass
class Stage:
    """A supervisor with children that only pretend, and a clock that is set by hand."""

    now_s: float = 0.0
    log: list[str] = field(default_factory=list)
    children: list[FakeChild] = field(default_factory=list)

    def start(self, arguments: list[str]) -> Any:
        self.log.append(f"start {arguments[0]}")
        self.children.append(FakeChild(arguments[0], self.now_s, self.log))
        return self.children[-1]

    def starts(self, name: str) -> int:
        return self.log.count(f"start {name}")

    def make(self) -> Supervisor:
        return Supervisor(cast("Any", self.start), lambda: self.now_s)

    def pause_until_restart(self, made: Supervisor) -> float:
        """Let the last child end; the seconds until it is started again."""
        self.children[-1].is_running = False
        begun_s, before = self.now_s, len(self.children)
        while len(self.children) == before:
            made.look_after_all()
            self.now_s += 0.01
            assert self.now_s < begun_s + 100
        return self.now_s - begun_s


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_pauses_grow_to_a_limit_with_jitter(stage: Stage) -> None:
    made = stage.make()
    made.start(["hub"])
    pauses = [stage.pause_until_restart(made) for _ in range(9)]
    expected_s = watched.FIRST_PAUSE_S
    for pause in pauses:
        assert 0.79 * expected_s <= pause <= 1.21 * expected_s + 0.05
        expected_s = min(expected_s * 2, watched.LONGEST_PAUSE_S)


def test_a_child_that_ran_long_begins_anew(stage: Stage) -> None:
    made = stage.make()
    made.start(["hub"])
    for _ in range(6):
        stage.pause_until_restart(made)
    stage.now_s += watched.STABLE_S + 1
    made.look_after_all()
    assert stage.pause_until_restart(made) < 2 * watched.FIRST_PAUSE_S


def test_a_child_that_does_not_come_up_is_ended_and_tried_again(stage: Stage) -> None:
    made = stage.make()
    made.start(["hub"])
    stage.children[0].is_ready = False
    stage.now_s = START_S + 1
    made.look_after_all()
    assert stage.log[-1] == "kill hub"
    stage.pause_until_restart(made)
    assert stage.starts("hub") == 2


def test_one_child_does_not_wait_for_another(stage: Stage) -> None:
    made = stage.make()
    made.start(["hub"])
    made.start(["agent"])
    stage.children[0].is_running = stage.children[1].is_running = False
    for _ in range(100):
        made.look_after_all()
        stage.now_s += 0.01
    assert (stage.starts("hub"), stage.starts("agent")) == (2, 2)


def test_children_end_in_reverse_order(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with stage.make() as made:
        made.start(["hub"])
        made.start(["agent"])
    assert stage.log[-2:] == ["close agent", "close hub"]


def test_what_was_started_ends_when_told_to_stop_early(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def start(arguments: list[str]) -> Any:
        child = stage.start(arguments)
        child.has_told_to_stop = arguments == ["agent"]
        return child

    with (
        pytest.raises(StoppedEarly),
        Supervisor(cast("Any", start), lambda: stage.now_s) as made,
    ):
        made.start(["hub"])
        made.start(["agent"])
    assert stage.log[-2:] == ["close agent", "close hub"]
