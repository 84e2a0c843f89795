"""Where settings come from, which one wins, and what is refused."""

import os
from pathlib import Path

import pytest

from ispine.cli import settings
from ispine.cli.settings_file import config_file, has_settings
from ispine.protocol.errors import ConfigError

FILE = """
url = "mqtt://me:secret@hub.local:1999"
models_dir = "/srv/models"

[hub]
port = 1999
data = "/srv/ispine"
announce = false

[agent]
id = "lap"
min_battery = 40
capability = ["detect"]
"""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ISPINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing-here"))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    monkeypatch.setenv("ISPINE_CONFIG", str(path))
    return path


def test_without_file_and_environment_nothing_is_set() -> None:
    if config_file() is not None:
        pytest.skip("this machine has /etc/ispine/config.toml")
    assert not has_settings()
    assert list(settings.origins(settings.load())) == []


@pytest.mark.usefixtures("file")
def test_every_section_reaches_its_commands() -> None:
    made = settings.option_defaults(settings.load())
    shared = {"url": "mqtt://me:secret@hub.local:1999", "models": "/srv/models"}
    assert made["devices"] == shared
    hub = {"port": 1999, "data": Path("/srv/ispine"), "announce": False}
    assert made["hub"] == made["up"] == {**shared, **hub}
    agent = {"device_id": "lap", "min_battery": 40.0, "capability": ["detect"]}
    assert made["agent"] == {**shared, **agent}
    assert made["doctor"] == {**shared, "data": Path("/srv/ispine")}
    assert made["models"]["list"] == shared  # type: ignore[index]


def test_the_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISPINE_AGENT_MIN_BATTERY", "55")
    monkeypatch.setenv("ISPINE_AGENT_CAPABILITY", "detect,blur=mine:blur")
    monkeypatch.setenv("ISPINE_HUB_WS_PORT", "9001")
    loaded = settings.load()
    assert loaded.agent.min_battery == 55
    assert loaded.agent.capability == ("detect", "blur=mine:blur")
    assert (loaded.hub.ws_port, loaded.hub.port) == (9001, 1999)
    told = {origin.name: origin for origin in settings.origins(loaded)}
    assert told["agent.min_battery"].source == "ISPINE_AGENT_MIN_BATTERY"
    assert told["hub.port"].source == str(file)


def test_a_section_in_the_environment_alone_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISPINE_HUB_PORT", "1999")
    assert has_settings()
    assert settings.load().hub.port == 1999


@pytest.mark.usefixtures("file")
def test_a_password_is_never_shown() -> None:
    told = {origin.name: origin.value for origin in settings.origins(settings.load())}
    assert told["url"] == "mqtt://hub.local:1999"
    assert "secret" not in str(told)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url = \n", "to be TOML"),
        ("[hub]\nprot = 1\n", "hub.prot"),
        ("colour = 'red'\n", "colour"),
        ("[hub]\nport = 'many'\n", "hub.port"),
        ("[agent]\nmin_battery = 'low'\n", "agent.min_battery"),
        ("hub = 3\n", "hub"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        settings.load()
    assert str(file) in str(caught.value)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISPINE_HUB_PORT", "many")
    with pytest.raises(ConfigError, match="ISPINE_HUB_PORT"):
        settings.load()


def test_a_file_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISPINE_CONFIG", "/nowhere/config.toml")
    with pytest.raises(ConfigError, match=r"/nowhere/config\.toml"):
        settings.load()


def test_dev_null_stands_for_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISPINE_CONFIG", os.devnull)
    assert config_file() is None


def test_settings_know_every_option_of_hub_and_agent() -> None:
    from typer.main import get_command

    from ispine.cli.config import _NOT_SETTINGS
    from ispine.cli.main import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, identity, section in (
        ("hub", "hub_id", settings.HubSettings),
        ("agent", "device_id", settings.AgentSettings),
    ):
        options = {option.name for option in commands[name].params} - _NOT_SETTINGS
        assert options - {identity} | {"id"} == set(section.model_fields)
