"""Processes of the command line: how they start, end, and look after each other."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ispine.broker.mosquitto import find_mosquitto
from ispine.cli.processes import Child
from ispine.protocol.errors import ConfigError

CLI = [sys.executable, "-m", "ispine.cli.main"]
HUB = ["hub", "--port", "0", "--engine", "embedded", "--no-announce", "--json"]
Wait = Callable[..., None]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        env={**os.environ, "ISPINE_CONFIG": os.devnull, **environment},
        check=False,
    )


@pytest.fixture
def hub() -> Iterator[Child]:
    child = Child("hub", HUB)
    child.wait_ready()
    yield child
    child.close()


@pytest.fixture
def full_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system without any room."""
    folder = tmp_path / "full"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root only")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine may not mount a tmpfs")
    with suppress(OSError), (folder / "fill").open("wb") as fill:
        fill.write(bytes(64 * 1024))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_children_end_when_their_parent_is_killed(free_port: int, wait: Wait) -> None:
    up = Child("up", ["up", "--port", str(free_port), "--json"])
    try:
        up.wait_ready()
        children = psutil.Process(up.pid).children()
        assert {"hub", "agent"} <= {child.cmdline()[3] for child in children}
        up.kill()
        # Gone, or not yet collected by whoever adopted them.
        wait(lambda: not any(map(is_alive, children)), 15, "hub and agent to end")
    finally:
        up.close()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_stops_at_once_while_it_still_starts(free_port: int, number: int, wait: Wait) -> None:
    up = subprocess.Popen(
        [*CLI, "up", "--port", str(free_port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process = psutil.Process(up.pid)
        wait(process.children, 10, "the hub's process")
        children = process.children()
        up.send_signal(number)
        assert up.wait(10) == 0
        assert not any(map(is_alive, children))
    finally:
        up.kill()
        up.wait()


def test_ctrl_c_in_a_terminal_reaches_the_supervisor_only(free_port: int, wait: Wait) -> None:
    """A terminal sends SIGINT to its foreground group: the children must not be in it."""
    up = Child("up", ["up", "--port", str(free_port), "--json"])
    try:
        up.wait_ready()
        groups = {os.getpgid(child.pid) for child in psutil.Process(up.pid).children()}
        assert os.getpgid(up.pid) not in groups
        os.killpg(up.pid, signal.SIGINT)
        wait(lambda: not up.is_running, 15, "up to end")
        assert up.process.returncode == 0
    finally:
        up.close()


def test_a_hub_ends_cleanly_on_either_signal(wait: Wait) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        child = Child("hub", HUB)
        child.wait_ready()
        child.process.send_signal(number)
        wait(lambda child=child: not child.is_running, 5, "the hub to end")
        assert child.process.returncode == 0
        assert child.last_words() == ""
        child.close()


def test_settings_of_the_user_do_not_reach_a_child_that_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISPINE_HUB_PORT", "many")
    child = Child("hub", HUB)
    child.wait_ready()
    child.close()
    child = Child("hub", HUB, has_settings=True)
    with pytest.raises(ConfigError, match="ISPINE_HUB_PORT"):
        child.wait_ready()
    child.close()


def test_a_child_that_fails_says_why_in_its_parents_words() -> None:
    child = Child("the hub", ["hub", "--host", "203.0.113.9", "--port", "0", "--json"])
    with pytest.raises(ConfigError, match="expected the hub to come up; expected to listen"):
        child.wait_ready()
    child.close()


def test_who_holds_a_port_is_named(hub: Child) -> None:
    port = str(hub.wait_ready()["url"]).rsplit(":", 1)[1]
    ran = run("hub", "--port", port, "--no-announce", "--json")
    assert ran.returncode == 1
    told = json.loads(ran.stdout)["error"]
    assert told["code"] == "config"
    assert f"held by {psutil.Process(hub.pid).name()} (pid {hub.pid})" in told["message"]


needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None and not os.environ.get("CI"),
    reason="needs mosquitto (apt-get install mosquitto)",
)


@needs_mosquitto
def test_auto_takes_mosquitto_and_embedded_where_that_does_not_come_up(tmp_path: Path) -> None:
    hub = Child("hub", ["hub", "--port", "0", "--no-announce", "--json"])
    assert hub.wait_ready()["engine"] == "mosquitto"
    hub.close()
    broken = tmp_path / "mosquitto"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = -h ] && echo "mosquitto version 2.0.11" && exit\n'
        'echo "Error: Unable to open config file" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    hub = Child("hub", ["hub", "--port", "0", "--no-announce", "--json"], path)
    assert hub.wait_ready()["engine"] == "embedded"
    hub.close()


def test_two_hubs_never_share_a_data_folder(tmp_path: Path, wait: Wait) -> None:
    first = Child("hub", [*HUB, "--data", str(tmp_path / "data")])
    first.wait_ready()
    second = run(*HUB, "--data", str(tmp_path / "data"))
    assert second.returncode == 1
    assert "another hub uses" in json.loads(second.stdout)["error"]["message"]
    first.kill()
    wait(lambda: not first.is_running, 5, "the hub to end")
    third = Child("hub", [*HUB, "--data", str(tmp_path / "data")])
    third.wait_ready()
    third.close()
    first.close()


def test_a_data_folder_that_cannot_be_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for data in (file, file / "below"):
        ran = run(*HUB, "--data", str(data))
        assert ran.returncode == 1
        message = json.loads(ran.stdout)["error"]["message"]
        assert str(data) in message
        assert "choose another --data" in message


def test_a_full_data_folder_costs_durable_tasks_only(full_folder: Path) -> None:
    from ispine.protocol.errors import TaskError
    from ispine.sdk import Spine

    hub = Child("hub", [*HUB, "--data", str(full_folder)])
    try:
        url = str(hub.wait_ready()["url"])
        agent = Child("a1", ["agent", "--url", url, "--id", "a1", "--capability", "echo", "--json"])
        try:
            agent.wait_ready()
            with Spine.connect(url) as spine:
                assert spine.call("echo", b"hello", within_ms=5000).data == b"hello"
                with pytest.raises(TaskError, match="journal"):
                    spine.call("echo", b"hello", within_ms=5000, durable=True)
                assert spine.call("echo", b"again", within_ms=5000).data == b"again"
        finally:
            agent.close()
        told = json.loads(run("doctor", "--json", "--url", url).stdout)
        assert any(finding["check"] == "journal" for finding in told["findings"])
    finally:
        hub.close()


def test_a_full_disk_under_save_is_explained(full_folder: Path, photos: Any, fleet: Any) -> None:
    fleet.start_hub()
    fleet.start_agent("lap", "--capability", "detect")
    picture = full_folder.parent / "coffee.jpg"
    picture.write_bytes(photos["coffee"])
    ran = run("run", "detect", str(picture), "--save", str(full_folder), "--url", fleet.url)
    assert ran.returncode == 1
    assert ran.stderr.startswith("ispine: expected to save")
    assert "Traceback" not in ran.stderr


def test_nobody_reading_any_more_is_no_error(hub: Child) -> None:
    url = str(hub.wait_ready()["url"])
    follow = subprocess.Popen(
        [*CLI, "devices", "--watch", "--json", "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    assert follow.stderr is not None
    try:
        assert json.loads(follow.stdout.readline()) == []
        follow.stdout.close()
        assert follow.wait(10) == 0
        assert follow.stderr.read() == ""
    finally:
        follow.kill()
        follow.wait()
        follow.stderr.close()


def test_watching_outlives_the_hub_and_ctrl_c_ends_it(free_port: int, wait: Wait) -> None:
    command = [*HUB, "--port", str(free_port)]
    hub = Child("hub", command)
    url = str(hub.wait_ready()["url"])
    watch = subprocess.Popen(
        [*CLI, "devices", "--watch", "--json", "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    assert watch.stderr is not None
    try:
        assert json.loads(watch.stdout.readline()) == []
        hub.kill()
        assert "waiting for it" in watch.stderr.readline()
        hub.close()
        hub = Child("hub", command)
        hub.wait_ready()
        assert json.loads(watch.stdout.readline()) == []
        watch.send_signal(signal.SIGINT)
        wait(lambda: watch.poll() is not None, 10, "the watch to end")
        assert watch.returncode == 130
        assert "Traceback" not in watch.stderr.read()
    finally:
        watch.kill()
        watch.wait()
        watch.stdout.close()
        watch.stderr.close()
        hub.close()


def test_a_hub_that_swallows_everything_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started_s = time.monotonic()
        ran = run("devices", "--json", "--url", f"mqtt://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - started_s < 6
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["error"]["code"] == "connection_lost"


WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from ispine.cli.main import app
app({arguments!r})
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules", "show"], "psutil"),
        (["hub", "--port", "0"], "ispine[hub]"),
        (["models", "bench", "detect"], "ispine[agent]"),
    ],
)
def test_a_device_without_the_extras_is_told_what_to_install(
    arguments: list[str], message: str
) -> None:
    code = WITHOUT.format(missing=["psutil", "amqtt", "onnxruntime"], arguments=arguments)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("ispine: expected the package") or message in ran.stderr
    assert "pip install" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_doctor_works_without_the_extras(hub: Child) -> None:
    arguments = ["doctor", "--json", "--url", str(hub.wait_ready()["url"])]
    code = WITHOUT.format(missing=["psutil", "amqtt", "onnxruntime"], arguments=arguments)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.returncode == 0, ran.stderr
    findings = {f["check"]: f for f in json.loads(ran.stdout)["findings"]}
    assert "psutil" in findings["sensors"]["seen"]
    assert findings["scheduler"]["state"] == "ok"


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys, ispine.cli.main;"
        "heavy = {'asyncio', 'numpy', 'onnxruntime', 'PIL', 'pydantic', 'zeroconf', 'paho'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
