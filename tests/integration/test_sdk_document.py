"""Every example in docs/sdk.md runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
SNIPPETS = re.findall(r"```python\n(.+?)```", DOCUMENT, re.DOTALL)
PRINTED = [
    ("person", "b'hello'"),
    ("9 ['person']",),
    ("4 of 4", "0 a1", "3 a1"),
    ("b'keep this'",),
    ("b'1' b'2'", "b'b'"),
    (),
]


@pytest.fixture(scope="module")
def url(module_fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    module_fleet.start_hub("--data", str(tmp_path_factory.mktemp("hub")))
    module_fleet.start_agent("a1")
    told: str = module_fleet.url
    return told


def test_every_example_is_known_here() -> None:
    assert len(SNIPPETS) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_example_runs(url: str, photos: dict[str, bytes], tmp_path: Path, number: int) -> None:
    (tmp_path / "photo.jpg").write_bytes(photos["astronaut"])
    # A machine that runs the whole suite can be slow; the examples' own deadlines are not tested.
    code = SNIPPETS[number].replace("within_ms=2000", "within_ms=20000")
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "ISPINE_URL": url},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for expected in PRINTED[number]:
        assert expected in ran.stdout, ran.stdout


def test_the_table_names_every_counter() -> None:
    from ispine.sdk.pending import Stats

    for name in Stats.__slots__:
        assert name in DOCUMENT
