"""What a service manager hears from hub and agent: ready, alive, stopping."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ispine.cli.processes import Child

HUB = ["hub", "--port", "0", "--engine", "embedded", "--no-announce", "--json"]


class Manager:
    """The socket that systemd listens on."""

    def __init__(self, path: Path) -> None:
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(10)

    def hear(self, state: str, times: int = 1) -> None:
        """Wait until the process has said this so often, from now on."""
        while times:
            self.heard.append(self._socket.recv(100).decode())
            times -= self.heard[-1] == state

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    # The address of a Unix socket is short: it is given relative to the folder.
    monkeypatch.chdir(tmp_path)
    made = Manager(Path("notify"))
    yield made
    made.close()


def test_hub_and_agent_tell_that_they_are_ready_alive_and_stopping(manager: Manager) -> None:
    hub = Child("hub", HUB, manager.environment)
    try:
        manager.hear("READY=1")
        manager.hear("WATCHDOG=1", times=3)
        url = str(hub.wait_ready()["url"])
        command = ["agent", "--url", url, "--id", "a1", "--capability", "echo", "--json"]
        quiet = {**manager.environment, "WATCHDOG_USEC": ""}
        agent = Child("agent", command, quiet)
        try:
            manager.hear("READY=1")
        finally:
            agent.close()
        manager.hear("STOPPING=1")
    finally:
        hub.close()
    manager.hear("STOPPING=1")
    assert set(manager.heard) == {"READY=1", "WATCHDOG=1", "STOPPING=1"}


def test_a_hub_that_hangs_is_not_reported_alive(manager: Manager) -> None:
    import signal

    hub = Child("hub", HUB, manager.environment)
    try:
        manager.hear("WATCHDOG=1", times=2)
        hub.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, hub.pid, os.WSTOPPED)
        manager._socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            manager.hear("WATCHDOG=1", times=3)
        hub.process.send_signal(signal.SIGCONT)
        manager._socket.settimeout(10)
        manager.hear("WATCHDOG=1")
    finally:
        hub.close()


def test_a_port_in_use_is_never_reported_ready(manager: Manager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hub = Child("hub", ["hub", "--port", str(port), "--json"], manager.environment)
        assert hub.process.wait(20) == 1
        hub.close()
    manager.hear("STOPPING=1")
    assert "READY=1" not in manager.heard
