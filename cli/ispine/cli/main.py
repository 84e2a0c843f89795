"""`ispine`: the command line."""

import typer

from ispine.cli import config, demo, doctor, fleet, models, rules, run, serve, service, simulate

app = typer.Typer(
    name="ispine",
    help="The devices on your network as one AI processor for wearables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (
    demo.demo,
    serve.up,
    serve.hub,
    serve.agent,
    serve.broker,
    serve.scheduler,
    run.run,
    fleet.devices,
    fleet.tasks,
    fleet.why,
    fleet.drain,
    fleet.resume,
    fleet.capacity,
    simulate.simulate,
    doctor.doctor,
):
    app.command()(_command)
app.add_typer(models.app, name="models")
app.add_typer(rules.app, name="rules")
app.add_typer(config.app, name="config")
app.add_typer(service.app, name="service")


def main() -> None:
    """Entry point of the command `ispine`: options left out come from the settings."""
    app(default_map=_defaults())


def _defaults() -> dict[str, dict[str, str]]:
    """The settings file's URL and models folder, for every command that has such an option."""
    from ispine.cli.settings import config_file

    if not config_file().is_file():
        return {}
    return _from_settings()


def _from_settings() -> dict[str, dict[str, str]]:
    from ispine.cli.settings import load
    from ispine.protocol.errors import ConfigError

    try:
        settings = load()
    except ConfigError as error:
        # `config show` explains it; the other commands go on without the file.
        typer.echo(f"ispine: {error}", err=True)
        return {}
    values = {"url": settings.url, "models": str(settings.models_dir or "")}
    given = {name: value for name, value in values.items() if value}
    return dict.fromkeys(_WITH_URL, given)


_WITH_URL = (
    "agent",
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


if __name__ == "__main__":
    main()
