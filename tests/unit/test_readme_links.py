"""The README's commands, links and the scripts it names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", ["run", "test"])
def test_the_two_commands_are_one_line_each(name: str) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "readme_command.py"), name]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_script_that_is_named_exists(page: Path) -> None:
    for name in re.findall(
        r"`?(?:python )?((?:bench|scripts|examples)/[\w/]+\.py)", page.read_text()
    ):
        assert (ROOT / name).exists(), name
