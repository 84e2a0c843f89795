"""`ispine`: the command line."""

import sys
from typing import Annotated

import typer

from ispine.cli import (
    config,
    demo,
    doctor,
    fleet,
    models,
    rules,
    run,
    serve,
    service,
    simulate,
)
from ispine.cli.output import fail
from ispine.cli.settings_file import has_settings
from ispine.protocol.errors import ConfigError

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


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"ispine {version('ispine')}")
        raise typer.Exit


@app.callback()
def ispine(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The devices on your network as one AI processor for wearables."""
    # Help must work with settings that do not.
    if not has_settings() or "--help" in sys.argv:
        return
    from ispine.cli.settings import load, option_defaults

    try:
        context.default_map = option_defaults(load())
    except ConfigError as error:
        fail(error, as_json="--json" in sys.argv)


def main() -> None:
    """Entry point of the command `ispine`: options left out come from the settings."""
    app()


if __name__ == "__main__":
    main()
