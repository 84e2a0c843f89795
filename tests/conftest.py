"""Real processes for the tests: hubs and agents on free loopback ports."""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ispine.cli.processes import Child
from ispine.models.photos import demo_photos
from ispine.sdk import Spine

ENGINE = os.environ.get("ISPINE_TEST_ENGINE", "embedded")
"""Which broker the fleets of the tests run on."""


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "") -> None:
    """Poll until the condition holds; fail with its name when it does not."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"waited {timeout_s} s in vain for {what or condition}")
        time.sleep(0.02)


@dataclass
class Fleet:
    """A hub and its agents, ended with the test."""

    url: str = ""
    hub: Child | None = None
    children: list[Child] = field(default_factory=list)

    def start_hub(self, *arguments: str) -> Child:
        command = ["hub", "--port", "0", "--engine", ENGINE, "--no-announce", "--json"]
        child = Child("hub", [*command, *arguments])
        self.children.append(child)
        self.url = str(child.wait_ready()["url"])
        self.hub = child
        return child

    def start_agent(self, name: str, *arguments: str) -> Child:
        command = ["agent", "--url", self.url, "--id", name, "--json", *arguments]
        child = Child(name, command, {"PYTHONPATH": str(Path(__file__).parent)})
        self.children.append(child)
        child.wait_ready()
        return child

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def close(self) -> None:
        for child in reversed(self.children):
            child.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """An empty fleet; the test starts what it needs."""
    made = Fleet()
    yield made
    made.close()


@pytest.fixture(scope="module")
def module_fleet() -> Iterator[Fleet]:
    """Like `fleet`, for all tests of a module that do no harm to it."""
    made = Fleet()
    yield made
    made.close()


@pytest.fixture
def echo_fleet(fleet: Fleet) -> Fleet:
    """A hub and one agent that echoes."""
    fleet.start_hub()
    fleet.start_agent("a1", "--capability", "echo")
    return fleet


@pytest.fixture
def spine(echo_fleet: Fleet) -> Iterator[Spine]:
    """A wearable on `echo_fleet`."""
    with Spine.connect(echo_fleet.url) as client:
        yield client


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    """The photographs of the package by name."""
    return {photo.name: photo.data for photo in demo_photos()}


@pytest.fixture
def free_port() -> int:
    """A TCP port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


needs_mosquitto_clients = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None,
    reason="needs mosquitto_pub and mosquitto_sub (apt-get install mosquitto-clients)",
)


@pytest.fixture
def wait() -> Callable[..., None]:
    """`wait_until`."""
    return wait_until
