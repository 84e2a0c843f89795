"""Commands that serve: hub, broker, scheduler, agent, up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ispine.cli.options import DEFAULT_URL, AsJson, Url, Verbose
from ispine.cli.output import guarded
from ispine.protocol.errors import ConfigError

if TYPE_CHECKING:
    from ispine.agent.config import AgentConfig
    from ispine.agent.rules import Rules
    from ispine.broker import BrokerConfig

Host = Annotated[str, typer.Option(help="Address to listen on. Loopback unless told otherwise.")]
Port = Annotated[int, typer.Option(help="TCP port; 0 takes a free one.")]
Engine = Annotated[
    str,
    typer.Option(
        help="embedded, mosquitto, auto (mosquitto if installed), or external with --url."
    ),
]
Anonymous = Annotated[
    str, typer.Option(help="Who may connect without a name: nobody, loopback, everybody.")
]


def _broker_config(
    engine: str, host: str, port: int, ws_port: int | None, url: str, anonymous: str
) -> "BrokerConfig":
    from pydantic import ValidationError

    from ispine.broker import BrokerConfig

    try:
        return BrokerConfig.model_validate(
            {
                "engine": engine,
                "host": host,
                "port": port,
                "ws_port": ws_port,
                "url": url if engine == "external" else "",
                "anonymous": anonymous,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"--{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@guarded
def hub(
    host: Host = "127.0.0.1",
    port: Port = 1883,
    engine: Engine = "embedded",
    url: Url = "",
    ws_port: Annotated[int | None, typer.Option(help="Port for MQTT over WebSocket.")] = None,
    anonymous: Anonymous = "loopback",
    hub_id: Annotated[str, typer.Option("--id", help="Names this hub.")] = "hub",
    data: Annotated[
        Path | None, typer.Option(help="Folder for durable tasks; none without it.")
    ] = None,
    announce: Annotated[bool, typer.Option(help="Announce the hub by mDNS.")] = True,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run the hub: MQTT broker and scheduler in one process."""
    from ispine.cli.hub import HubOptions, run_hub, run_loop
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    config = _broker_config(engine, host, port, ws_port, url, anonymous)
    folder = _data_folder(data)
    run_loop(run_hub(HubOptions(config, hub_id, folder, announce, as_json=as_json)))


def _data_folder(data: Path | None) -> Path | None:
    if data is None:
        return None
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"expected a data folder at {data}; {error.strerror}; choose another --data"
        ) from error
    return data


@guarded
def broker(
    host: Host = "127.0.0.1",
    port: Port = 1883,
    ws_port: Annotated[int | None, typer.Option(help="Port for MQTT over WebSocket.")] = None,
    anonymous: Anonymous = "loopback",
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run only the MQTT broker."""
    from ispine.cli.hub import run_broker, run_loop
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    config = _broker_config("embedded", host, port, ws_port, "", anonymous)
    run_loop(run_broker(config, as_json=as_json))


@guarded
def scheduler(
    url: Url = DEFAULT_URL,
    hub_id: Annotated[str, typer.Option("--id", help="Names this scheduler.")] = "hub",
    data: Annotated[Path | None, typer.Option(help="Folder for durable tasks.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run only the scheduler, on any MQTT broker."""
    from ispine.broker import BrokerConfig
    from ispine.cli.hub import HubOptions, run_loop, run_scheduler
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    options = HubOptions(
        BrokerConfig(engine="external", url=url), hub_id, _data_folder(data), as_json=as_json
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
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Lend this device: run tasks for the fleet."""
    from pydantic import ValidationError

    from ispine.agent.config import AgentConfig, default_device_id
    from ispine.cli.hub import run_loop
    from ispine.cli.running import set_up_logs

    set_up_logs(verbose)
    wanted = capability or []
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
            rules=_rules(rules, min_battery, max_temp, only_when_charging, only_when_idle),
            slowdown=slowdown,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    run_loop(_run_agent(config, as_json=as_json))


def _rules(
    path: Path | None,
    min_battery: float | None,
    max_temp: float | None,
    only_when_charging: bool,
    only_when_idle: bool,
) -> "Rules":
    from ispine.agent import rules

    given: dict[str, object] = {}
    if min_battery is not None:
        given["min_battery_pct"] = min_battery
    if max_temp is not None:
        given["max_temp_c"] = max_temp
    if only_when_charging:
        given["only_when_charging"] = True
    if only_when_idle:
        given["only_when_idle"] = True
    base = rules.load(path) if path is not None else rules.Rules()
    return rules.Rules.model_validate({**base.model_dump(), **given})


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
    anonymous: Anonymous = "loopback",
    data: Annotated[Path | None, typer.Option(help="Folder for durable tasks.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run hub and agent on this machine, and keep them running."""
    from ispine.cli.running import say_ready, set_up_logs
    from ispine.cli.supervisor import Supervisor, free_port

    set_up_logs(verbose)
    # A hub that is started again must be found at the same port.
    fixed = port or free_port(host)
    hub_arguments = ["hub", "--host", host, "--port", str(fixed), "--anonymous", anonymous]
    hub_arguments += ["--json"]
    if data is not None:
        hub_arguments += ["--data", str(data)]
    with Supervisor() as supervisor:
        ready = supervisor.start("hub", hub_arguments)
        url = str(ready["url"])
        supervisor.start("agent", ["agent", "--url", url, "--json"])
        say_ready("up", as_json=as_json, url=url)
        supervisor.watch()


__all__ = ["agent", "broker", "hub", "scheduler", "up"]
