"""`ispine`: the command line."""

import typer

from ispine.cli import config, demo, doctor, fleet, models, rules, run, serve, service

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
    doctor.doctor,
):
    app.command()(_command)
app.add_typer(models.app, name="models")
app.add_typer(rules.app, name="rules")
app.add_typer(config.app, name="config")
app.add_typer(service.app, name="service")


def main() -> None:
    """Entry point of the command `ispine`."""
    app()


if __name__ == "__main__":
    main()
