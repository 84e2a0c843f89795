"""Commands that serve: hub, broker, scheduler, agent, up."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ispine.cli.options import DEFAULT_ROOT, DEFAULT_URL, AsJson, Root, Url, Verbose
from ispine.cli.output import guarded
from ispine.protocol.errors import ConfigError

if TYPE_CHECKING:
    from ispine.agent.config import AgentConfig
    from ispine.broker import BrokerConfig

Host = Annotated[str, typer.Option(help="Address to listen on. Loopback unless told otherwise.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")]


class EngineName(StrEnum):
    """What carries the messages."""

    EMBEDDED = "embedded"
    MOSQUITTO = "mosquitto"
    AUTO = "auto"
    EXTERNAL = "external"


class Who(StrEnum):
    """Who may connect without a name."""

    NOBODY = "nobody"
    LOOPBACK = "loopback"
    EVERYBODY = "everybody"


Engine = Annotated[
    EngineName,
    typer.Option(help="auto takes mosquitto where it is installed; external needs --url."),
]
Anonymous = Annotated[Who, typer.Option(help="Who may connect without a name.")]
WsPort = Annotated[int | None, typer.Option(min=0, max=65535, help="Port for MQTT over WebSocket.")]


def _broker_config(
    engine: EngineName, host: str, port: int, ws_port: int | None, url: str, anonymous: Who
) -> "BrokerConfig":
    from pydantic import ValidationError

    from ispine.broker import BrokerConfig

    try:
        return BrokerConfig.model_validate(
            {
                "engine": engine.value,
                "host": host,
                "port": port,
                "ws_port": ws_port,
                "url": url if engine is EngineName.EXTERNAL else "",
                "anonymous": anonymous.value,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"--{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@guarded
def hub(
    host: Host = "127.0.0.1",
    port: Port = 1883,
    engine: Engine = EngineName.AUTO,
    url: Url = "",
    ws_port: WsPort = None,
    anonymous: Anonymous = Who.LOOPBACK,
    hub_id: Annotated[str, typer.Option("--id", help="Names this hub.")] = "hub",
    data: Annotated[
        Path | None, typer.Option(help="Folder for durable tasks; none without it.")
    ] = None,
    announce: Annotated[bool, typer.Option(help="Announce the hub by mDNS.")] = True,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run the hub: MQTT broker and scheduler in one process."""
    from ispine.cli.data_folder import data_folder
    from ispine.cli.hub import HubOptions, run_hub, run_loop
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    config = _broker_config(engine, host, port, ws_port, url, anonymous)
    with data_folder(data) as folder:
        options = HubOptions(
            config, _checked_id(hub_id), folder, announce, _checked_root(root), as_json
        )
        run_loop(run_hub(options))


def _checked_id(text: str) -> str:
    """`text`, when it may stand in a topic.

    Raises:
        ConfigError: it may not.
    """
    from ispine.protocol.errors import BadId
    from ispine.protocol.ids import check_id

    try:
        return check_id(text, "hub id")
    except BadId as error:
        raise ConfigError(f"--id: {error}") from error


def _checked_root(root: str) -> str:
    from ispine.protocol.errors import BadId
    from ispine.protocol.topics import Topics

    try:
        return Topics(root).root
    except BadId as error:
        raise ConfigError(f"--root: {error}") from error


@guarded
def broker(
    host: Host = "127.0.0.1",
    port: Port = 1883,
    engine: Engine = EngineName.AUTO,
    ws_port: WsPort = None,
    anonymous: Anonymous = Who.LOOPBACK,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run only the MQTT broker."""
    from ispine.cli.hub import run_broker, run_loop
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    if engine is EngineName.EXTERNAL:
        raise ConfigError("expected an engine that runs here; an external broker runs already")
    config = _broker_config(engine, host, port, ws_port, "", anonymous)
    run_loop(run_broker(config, as_json=as_json))


@guarded
def scheduler(
    url: Url = DEFAULT_URL,
    hub_id: Annotated[str, typer.Option("--id", help="Names this scheduler.")] = "hub",
    data: Annotated[Path | None, typer.Option(help="Folder for durable tasks.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run only the scheduler, on any MQTT broker."""
    from ispine.broker import BrokerConfig
    from ispine.cli.data_folder import data_folder
    from ispine.cli.hub import HubOptions, run_loop, run_scheduler
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    config = BrokerConfig(engine="external", url=url)
    with data_folder(data) as folder:
        options = HubOptions(
            config, _checked_id(hub_id), folder, root=_checked_root(root), as_json=as_json
        )
        run_loop(run_scheduler(url, options))


@guarded
def agent(
    url: Url = DEFAULT_URL,
    device_id: Annotated[str, typer.Option("--id", help="Unique in the fleet.")] = "",
    name: Annotated[str, typer.Option(help="For people.")] = "",
    kind: Annotated[str, typer.Option(help="laptop, phone, board, … for people.")] = "",
    owner: Annotated[str, typer.Option(help="Whose device it is.")] = "",
    capability: Annotated[
        list[str] | None,
        typer.Option(help="NAME, or NAME=module:function; all that load without it."),
    ] = None,
    slots: Annotated[int, typer.Option(help="Tasks at once; 0 asks the cores.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one model run.")] = 1,
    models: Annotated[Path | None, typer.Option(help="Folder with further models.")] = None,
    sensors: Annotated[
        Path | None, typer.Option(help="Folder shaped like /sys/class, instead of the device's.")
    ] = None,
    rules: Annotated[Path | None, typer.Option(help="TOML file with the owner's rules.")] = None,
    min_battery: Annotated[float | None, typer.Option(help="Percent; no work below it.")] = None,
    max_temp: Annotated[float | None, typer.Option(help="Degrees Celsius; no work at it.")] = None,
    only_when_charging: Annotated[bool, typer.Option(help="Work only on mains power.")] = False,
    only_when_idle: Annotated[bool, typer.Option(help="Work only while nobody else does.")] = False,
    slowdown: Annotated[float, typer.Option(hidden=True)] = 1.0,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Lend this device: run tasks for the fleet."""
    from pydantic import ValidationError

    from ispine.agent.config import AgentConfig, default_device_id
    from ispine.cli.hub import run_loop
    from ispine.cli.rules import owner_rules
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    wanted = capability or []
    if any("=" in spec for spec in wanted):
        # The owner's module is looked for in the current folder too, as `python -m` does.
        sys.path.insert(0, str(Path.cwd()))
    try:
        config = AgentConfig(
            url=url,
            device_id=device_id or default_device_id(),
            name=name,
            kind=kind,
            owner=owner,
            slots=slots,
            threads=threads,
            capabilities=tuple(spec for spec in wanted if "=" not in spec),
            extra=tuple(spec for spec in wanted if "=" in spec),
            model_dir=models,
            sensors_dir=sensors,
            rules=owner_rules(rules, min_battery, max_temp, only_when_charging, only_when_idle),
            slowdown=slowdown,
            root=_checked_root(root),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    run_loop(_run_agent(config, as_json=as_json))


async def _run_agent(config: "AgentConfig", *, as_json: bool) -> None:
    import asyncio

    from ispine.agent.service import run_agent
    from ispine.cli.running import say_ready, until_told_to_stop

    def ready() -> None:
        say_ready("agent", as_json=as_json, id=config.device_id, url=config.url.rsplit("@", 1)[-1])

    async with until_told_to_stop() as stopped:
        serving = asyncio.create_task(run_agent(config, ready), name="agent")
        waiting = asyncio.create_task(stopped.wait(), name="stop")
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not serving.done():
            serving.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        try:
            await serving
        except asyncio.CancelledError:
            return


@guarded
def up(
    host: Host = "127.0.0.1",
    port: Port = 1883,
    engine: Engine = EngineName.AUTO,
    anonymous: Anonymous = Who.LOOPBACK,
    data: Annotated[Path | None, typer.Option(help="Folder for durable tasks.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run hub and agent on this machine, and keep them running."""
    from contextlib import suppress

    from ispine.cli.processes import StoppedEarly
    from ispine.cli.running import say_ready, set_up_logs
    from ispine.cli.supervisor import Supervisor, free_port

    set_up_logs(verbose)
    # A hub that is started again must be found at the same port.
    fixed = port or free_port(host)
    common = ["--root", root, "--json"]
    hub_arguments = ["hub", "--host", host, "--port", str(fixed), "--anonymous", anonymous.value]
    hub_arguments += ["--engine", engine.value, *common]
    if data is not None:
        hub_arguments += ["--data", str(data)]
    with suppress(StoppedEarly), Supervisor() as supervisor:
        url = str(supervisor.start(hub_arguments)["url"])
        supervisor.start(["agent", "--url", url, *common])
        say_ready("up", as_json=as_json, url=url)
        supervisor.watch()


__all__ = ["agent", "broker", "hub", "scheduler", "up"]
