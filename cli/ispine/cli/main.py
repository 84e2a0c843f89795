"""`ispine`: the command line."""

import typer

from ispine.cli import demo, serve

app = typer.Typer(
    name="ispine",
    help="The devices on your network as one AI processor for wearables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (serve.up, serve.hub, serve.broker, serve.scheduler, serve.agent, demo.demo):
    app.command()(_command)


def main() -> None:
    """Entry point of the command `ispine`."""
    app()


if __name__ == "__main__":
    main()
