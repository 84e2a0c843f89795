"""pyproject.toml names every component folder in each list that must name it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_component_is_listed_everywhere() -> None:
    components = {p.parent.name for p in ROOT.glob("*/ispine") if p.parent.name != "build"}
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    wheel = tool["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {p.removesuffix("/ispine") for p in wheel} == components
    assert set(tool["hatch"]["build"]["dev-mode-dirs"]) == components
    assert set(tool["mypy"]["mypy_path"]) == components
    assert set(tool["pyright"]["extraPaths"]) == components
    assert set(tool["coverage"]["run"]["source"]) == components


def test_ispine_is_a_namespace_package() -> None:
    assert list(ROOT.glob("*/ispine/__init__.py")) == []
