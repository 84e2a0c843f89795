"""The examples do what they say, on a real hub and agent."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ispine.cli.processes import Child
from ispine.sdk import ExecutionFailed, Spine, TaskRejected

EXAMPLES = Path(__file__).parents[2] / "examples"
MICROPYTHON_HAS = {"binascii", "json", "os", "socket", "sys"}


@pytest.fixture(scope="module")
def url(module_fleet: Any) -> str:
    module_fleet.start_hub()
    command = ["agent", "--url", module_fleet.url, "--id", "a1", "--json"]
    for name in ("detect", "echo", "colour=custom_capability:colour"):
        command += ["--capability", name]
    agent = Child("agent", command, {"PYTHONPATH": str(EXAMPLES)})
    module_fleet.children.append(agent)
    agent.wait_ready()
    told: str = module_fleet.url
    return told


@pytest.fixture
def astronaut(photos: dict[str, bytes], tmp_path: Path) -> Path:
    path = tmp_path / "astronaut.jpg"
    path.write_bytes(photos["astronaut"])
    return path


def run(
    *command: str, hub: str = "", python: str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "ISPINE_URL": hub}
    return subprocess.run(
        [python, str(EXAMPLES / command[0]), *command[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def test_the_wearable_says_what_it_sees(url: str, astronaut: Path) -> None:
    ran = run("wearable.py", str(astronaut), hub=url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("astronaut.jpg: person 0.")
    assert ran.stdout.rstrip().endswith("(a1)")


def test_the_wearable_says_how_it_is_used_and_that_there_is_no_hub(
    astronaut: Path, free_port: int
) -> None:
    assert run("wearable.py").returncode == 2
    ran = run("wearable.py", str(astronaut), hub=f"mqtt://127.0.0.1:{free_port}")
    assert ran.returncode == 1
    assert "ispine hub" in ran.stdout
    assert ran.stderr == ""


def pythons() -> list[str]:
    return [sys.executable, *filter(None, [shutil.which("micropython")])]


@pytest.mark.parametrize("python", pythons())
def test_a_bare_socket_is_enough(url: str, astronaut: Path, python: str) -> None:
    port = url.rsplit(":", 1)[1]
    for _ in range(2):
        ran = run("plain_mqtt.py", "127.0.0.1", port, "detect", str(astronaut), python=python)
        assert ran.returncode == 0, ran.stderr
        told = json.loads(ran.stdout)
        assert (told["status"], told["device"]) == ("done", "a1")
        assert told["result"]["detections"][0]["label"] == "person"


def test_a_bare_socket_is_told_what_is_wrong(url: str, tmp_path: Path) -> None:
    path = tmp_path / "not-a-photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0 but no more")
    port = url.rsplit(":", 1)[1]
    ran = run("plain_mqtt.py", "127.0.0.1", port, "detect", str(path))
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["error"]["code"] == "rejected"


def test_the_microcontrollers_file_needs_nothing_that_it_has_not() -> None:
    tree = ast.parse((EXAMPLES / "plain_mqtt.py").read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert imported <= MICROPYTHON_HAS
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match | ast.AnnAssign)]


def test_a_function_of_ones_own_is_a_capability(url: str, photos: dict[str, bytes]) -> None:
    with Spine.connect(url) as spine:
        answer = spine.call("colour", photos["coffee"], within_ms=20_000)
        assert answer.data == b"mostly red"
        with pytest.raises(TaskRejected, match="expected"):
            spine.call("colour", b"no picture", within_ms=20_000)


def test_nothing_of_the_examples_reaches_the_caller_untyped(url: str) -> None:
    with Spine.connect(url) as spine, pytest.raises((TaskRejected, ExecutionFailed)):
        spine.call("colour", b"\xff\xd8\xff\xe0" + bytes(100), within_ms=20_000)
