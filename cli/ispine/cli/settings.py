"""Settings of the commands: defaults, a TOML file, and `ISPINE_…` in the environment."""

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ispine.protocol.errors import ConfigError


def config_file() -> Path:
    """`ISPINE_CONFIG`, or `ispine/config.toml` in the user's configuration folder."""
    named = os.environ.get("ISPINE_CONFIG")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "ispine" / "config.toml"


class Settings(BaseSettings):
    """What holds for every command unless an option says otherwise.

    Attributes:
        url: of the hub's broker; "" finds it by itself.
        models_dir: folder with further models.
        root: of the topics.
    """

    model_config = SettingsConfigDict(env_prefix="ISPINE_", extra="ignore", frozen=True)

    url: str = ""
    models_dir: Path | None = None
    root: str = "ispine"

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
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, toml_file=config_file()),
        )


def load() -> Settings:
    """The effective settings.

    Raises:
        ConfigError: the file is no TOML, or a value is wrong.
    """
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"setting {where} ({config_file()}): {first['msg']}") from error
    except ValueError as error:
        raise ConfigError(f"expected {config_file()} to be TOML; {error}") from error


def origins(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every setting with its value and where it came from."""
    import tomllib

    path = config_file()
    in_file = tomllib.loads(path.read_text()) if path.is_file() else {}
    told: dict[str, dict[str, Any]] = {}
    for name in Settings.model_fields:
        if f"ISPINE_{name.upper()}" in os.environ:
            source = f"ISPINE_{name.upper()}"
        elif name in in_file:
            source = str(path)
        else:
            source = "default"
        value = getattr(settings, name)
        shown = value.rsplit("@", 1)[-1] if name == "url" else value
        told[name] = {"value": shown if shown is None else str(shown), "from": source}
    return told
