"""Settings of the commands: defaults, a TOML file, and `ISPINE_…` in the environment.

    url = "mqtt://192.168.1.10:1883"

    [hub]                       # options of `ispine hub` and `ispine up`
    host = "192.168.1.10"

    [agent]                     # options of `ispine agent`
    min_battery = 40

The environment says the same as `ISPINE_URL`, `ISPINE_HUB_HOST`, `ISPINE_AGENT_MIN_BATTERY`. An
option on the command line wins over the environment, the environment over the file.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ispine.cli.settings_file import config_file
from ispine.protocol.errors import ConfigError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubSettings(_Section):
    """Options of `ispine hub`; None leaves the command's own default."""

    id: str | None = None
    host: str | None = None
    port: int | None = None
    engine: str | None = None
    ws_port: int | None = None
    anonymous: str | None = None
    data: Path | None = None
    announce: bool | None = None


class AgentSettings(_Section):
    """Options of `ispine agent`; None leaves the command's own default."""

    id: str | None = None
    name: str | None = None
    kind: str | None = None
    owner: str | None = None
    capability: tuple[str, ...] | None = None
    slots: int | None = None
    threads: int | None = None
    models: Path | None = None
    sensors: Path | None = None
    rules: Path | None = None
    min_battery: float | None = None
    max_temp: float | None = None
    only_when_charging: bool | None = None
    only_when_idle: bool | None = None

    @field_validator("capability", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """`ISPINE_AGENT_CAPABILITY` holds the names with commas between."""
        return tuple(value.split(",")) if isinstance(value, str) else value


class Settings(BaseSettings):
    """What holds for every command unless an option says otherwise.

    Attributes:
        url: of the hub's broker; None leaves each command's own default.
        models_dir: folder with further models.
        root: of the topics.
        hub: options of the hub.
        agent: options of the agent.
    """

    model_config = SettingsConfigDict(
        env_prefix="ISPINE_",
        env_nested_delimiter="_",
        env_nested_max_split=1,
        extra="forbid",
        frozen=True,
    )

    url: str | None = None
    models_dir: Path | None = None
    root: str | None = None
    hub: HubSettings = HubSettings()
    agent: AgentSettings = AgentSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then the file."""
        file = config_file()
        if file is None:
            return init_settings, env_settings
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, toml_file=file),
        )


def load() -> Settings:
    """The effective settings.

    Raises:
        ConfigError: the file cannot be read or is no TOML, or a value is wrong or unknown.
    """
    file = config_file()
    if file is not None and not file.is_file():
        raise ConfigError(f"expected a settings file at {file}; it is not there; see ISPINE_CONFIG")
    where = str(file or "the environment")
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        where = _variable(name) if _variable(name) in os.environ else where
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"expected a known setting in {where}; got {name!r};"
                " 'ispine config show' lists them"
            ) from error
        raise ConfigError(f"setting {name} ({where}): {first['msg']}") from error
    except OSError as error:
        raise ConfigError(f"expected to read {where}; {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"expected {where} to be TOML; {error}") from error


class Origin(NamedTuple):
    """One setting that somebody set.

    Attributes:
        name: such as `agent.min_battery`.
        value: the effective one, passwords left out.
        source: the file, or the variable of the environment.
    """

    name: str
    value: object
    source: str


def origins(settings: Settings) -> Iterator[Origin]:
    """Every setting that is not a default, and where it comes from."""
    from_env = dict(_leaves(EnvSettingsSource(Settings)()))
    file = config_file()
    from_file = dict(_leaves(tomllib.loads(file.read_text()))) if file is not None else {}
    for name, value in _leaves(settings.model_dump(exclude_unset=True)):
        if name in from_env:
            source = _variable(name)
        elif name in from_file:
            source = str(file)
        else:
            continue
        yield Origin(name, _without_secret(name, value), source)


def _variable(name: str) -> str:
    """The variable of the environment that sets `name`."""
    return f"ISPINE_{name.upper().replace('.', '_')}"


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _without_secret(name: str, value: object) -> object:
    if name != "url" or not isinstance(value, str):
        return value
    scheme, _, rest = value.rpartition("://")
    host = rest.rsplit("@", 1)[-1]
    return f"{scheme}://{host}" if scheme else host


_OPTION_NAMES = {"hub": {"id": "hub_id"}, "agent": {"id": "device_id"}}


def option_defaults(settings: Settings) -> dict[str, object]:
    """The defaults of the options of every command, by command, as typer's `default_map`."""
    common = {"url": settings.url, "models": settings.models_dir, "root": settings.root}
    shared: dict[str, object] = {
        name: str(value) for name, value in common.items() if value is not None
    }
    hub = _set_options("hub", settings.hub)
    agent = _set_options("agent", settings.agent)
    made: dict[str, object] = dict.fromkeys(_COMMANDS, shared)
    made["models"] = dict.fromkeys(("list", "show", "add", "bench", "verify"), shared)
    made["doctor"] = {**shared, **({"data": settings.hub.data} if settings.hub.data else {})}
    made["rules"] = {"show": shared}
    made["hub"] = made["up"] = {**shared, **hub}
    made["agent"] = {**shared, **agent}
    return made


def _set_options(section: str, options: BaseModel) -> dict[str, object]:
    rename = _OPTION_NAMES[section]
    return {
        rename.get(name, name): list(value) if isinstance(value, tuple) else value
        for name, value in options.model_dump(exclude_none=True).items()
    }


_COMMANDS = (
    "broker",
    "scheduler",
    "run",
    "devices",
    "tasks",
    "why",
    "drain",
    "resume",
    "capacity",
    "doctor",
)
