"""The README's example runs as it stands, against a real hub and agent."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from ispine.models.photos import demo_photos

README = Path(__file__).parents[2] / "README.md"
CLI = [sys.executable, "-m", "ispine.cli.main"]


def start(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    child = subprocess.Popen(
        [*CLI, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, json.loads(child.stdout.readline())


def stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    child.wait(10)
    assert child.stdout is not None
    child.stdout.close()


def test_the_example_prints_what_is_in_the_picture(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.+?)```", README.read_text(), re.DOTALL)
    assert found is not None
    # A machine that runs the whole suite can be slow; the example's own 150 ms are not tested here.
    code = found.group(1).replace("within_ms=150", "within_ms=5000")
    photo = next(p for p in demo_photos() if p.name.startswith("astronaut"))
    (tmp_path / "street.jpg").write_bytes(photo.data)
    hub, ready = start("hub", "--port", "0", "--engine", "embedded", "--json")
    try:
        agent, _ = start(
            "agent", "--url", ready["url"], "--id", "a1", "--capability", "detect", "--json"
        )
        try:
            environment = {**os.environ, "ISPINE_URL": ready["url"]}
            ran = subprocess.run(
                [sys.executable, "-c", code],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        finally:
            stop(agent)
    finally:
        stop(hub)
    assert ran.returncode == 0, ran.stderr
    assert "person" in ran.stdout
