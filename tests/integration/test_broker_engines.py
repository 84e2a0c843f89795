"""Starting, stopping, choosing and surviving: what concerns engines, not messages."""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ispine.broker.mosquitto as mosquitto_module
from ispine.broker import BrokerConfig, engine_for
from ispine.broker.mosquitto import MosquittoEngine, Program, find_mosquitto, why_not
from ispine.broker.probe import probe
from ispine.protocol.errors import ConfigError, ConnectionLost

if TYPE_CHECKING:
    from tests.integration.conftest import Served, Start

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None and not os.environ.get("CI"),
    reason="needs mosquitto (apt-get install mosquitto)",
)


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
async def test_a_port_in_use_says_who_and_what_to_do(kind: str) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("needs mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = BrokerConfig.model_validate({"engine": kind, "port": port})
        engine = engine_for(config)
        with pytest.raises(ConfigError, match=f"port {port} .* free; .*--port"):
            await engine.start()
        await engine.stop()


async def test_an_address_of_another_machine() -> None:
    engine = engine_for(BrokerConfig(engine="embedded", host="203.0.113.1", port=0))
    with pytest.raises(ConfigError, match="address of this machine"):
        await engine.start()
    await engine.stop()


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
@pytest.mark.parametrize("host", ["::", "0.0.0.0", "::1", "localhost"])
async def test_the_hub_reaches_its_broker_on_any_address(kind: str, host: str) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("needs mosquitto")
    if not socket.has_ipv6 and ":" in host:
        pytest.skip("needs IPv6")
    engine = engine_for(BrokerConfig.model_validate({"engine": kind, "host": host, "port": 0}))
    try:
        await engine.start()
        link = await engine.attach("hub")
        assert link.is_connected
    finally:
        await engine.stop()


def test_a_missing_mosquitto_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto_module, "find_mosquitto", lambda: None)
    with pytest.raises(ConfigError, match="not installed; install it"):
        engine_for(BrokerConfig(engine="mosquitto"))
    assert engine_for(BrokerConfig(engine="auto")).name == "embedded"


def test_an_old_mosquitto_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Program("/usr/sbin/mosquitto", (1, 6, 9))
    monkeypatch.setattr(mosquitto_module, "find_mosquitto", lambda: old)
    with pytest.raises(ConfigError, match=r"2\.0 or newer; .* version 1\.6\.9"):
        engine_for(BrokerConfig(engine="mosquitto"))
    assert engine_for(BrokerConfig(engine="auto")).name == "embedded"


@needs_mosquitto
def test_auto_takes_mosquitto_where_it_does_what_is_asked() -> None:
    assert engine_for(BrokerConfig()).name == "mosquitto"
    assert "without a name" in (why_not(BrokerConfig(host="0.0.0.0")) or "")
    assert engine_for(BrokerConfig(host="0.0.0.0")).name == "embedded"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_a_program_that_is_no_mosquitto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "mosquitto"
    fake.write_text("#!/bin/sh\necho something else\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="version unknown"):
        engine_for(BrokerConfig(engine="mosquitto"))


async def test_an_external_broker_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = BrokerConfig(engine="external", url=f"mqtt://user:secret@127.0.0.1:{port}")
    engine = engine_for(config)
    assert "secret" not in engine.url
    assert "secret" not in repr(config)
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}") as caught:
        await engine.start()
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="give --url"):
        engine_for(BrokerConfig(engine="external"))


def engine_of(served: "Served") -> MosquittoEngine:
    assert isinstance(served.engine, MosquittoEngine)
    return served.engine


@pytest.mark.engines("mosquitto")
def test_a_killed_mosquitto_is_started_again(broker: "Served", wait: Callable[..., None]) -> None:
    engine = engine_of(broker)
    link = broker.attach("hub-test")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    wait(lambda: engine.stats()["restarts"] == 1, 10, "the restart")
    wait(lambda: link.is_connected, 10, "the link")
    broker.client().ping()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_files_of_a_killed_hub_are_removed(start: "Start") -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait(10)
    temporary = Path(tempfile.gettempdir())
    dead = temporary / f"ispine-mosquitto-{ended.pid}-test"
    living = temporary / f"ispine-mosquitto-{os.getpid()}-test"
    for folder in (dead, living):
        folder.mkdir()
        (folder / "passwords").touch()
    try:
        start("mosquitto")
        assert not dead.exists()
        assert living.exists()
    finally:
        shutil.rmtree(living)
        shutil.rmtree(dead, ignore_errors=True)


@pytest.mark.engines("mosquitto")
def test_files_of_mosquitto_are_private_and_go(broker: "Served") -> None:
    engine = engine_of(broker)
    assert engine._folder is not None
    folder = Path(engine._folder.name)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert broker.loop is not None
    broker.loop.run(engine.stop())
    broker.loop.run(engine.stop())
    assert not folder.exists()


def test_what_is_closed_is_counted(broker: "Served", wait: Callable[..., None]) -> None:
    client = broker.client("large")
    client.send(b"\x30\xff\xff\xff\x7f")
    assert client.is_closed_within(3)
    broker.client("twice")
    broker.client("twice")
    wait(lambda: broker.stats().get("closed: packet too large") == 1, 5, "the counter")
    wait(lambda: broker.stats().get("closed: taken over") == 1, 5, "the counter")


@pytest.mark.engines("mosquitto")
def test_mosquitto_counts(broker: "Served", wait: Callable[..., None]) -> None:
    wait(lambda: broker.stats().get("connected", 0) >= 1, 15, "statistics")


def test_stopping_sends_what_was_written_and_frees_the_port(start: "Start") -> None:
    broker = start("embedded")
    client = broker.client()
    client.subscribe("last", qos=1)
    link = broker.attach("hub")
    assert broker.loop is not None
    assert broker.engine is not None

    async def stop() -> None:
        link.publish("last", bytes(5_000_000), qos=1)
        assert broker.engine is not None
        await broker.engine.stop()

    began = time.monotonic()
    pending = broker.loop.submit(stop())
    assert len(client.message().payload) == 5_000_000
    assert client.is_closed_within(3)
    pending.result(10)
    assert time.monotonic() - began < 3
    assert not link.is_connected
    with socket.create_server(("127.0.0.1", broker.port)):
        pass


@pytest.mark.engines("embedded", "mosquitto")
def test_the_self_test_finds_nothing_missing(broker: "Served") -> None:
    assert broker.loop is not None
    assert broker.engine is not None
    report = broker.loop.run(probe(broker.engine.url))
    assert [name for name, works, _ in report.abilities() if not works] == []


@needs_mosquitto
def test_the_self_test_names_what_is_lost(
    tmp_path: Path, free_port: int, wait: Callable[..., None]
) -> None:
    program = find_mosquitto()
    assert program is not None
    settings = tmp_path / "poor.conf"
    settings.write_text(
        f"listener {free_port} 127.0.0.1\nallow_anonymous true\nretain_available false\n"
        "max_packet_size 100000\n"
    )
    child = subprocess.Popen(
        [program.path, "-c", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait(lambda: serves(free_port), 10, "mosquitto")
        report = asyncio.run(probe(f"mqtt://127.0.0.1:{free_port}"))
    finally:
        child.terminate()
        child.wait(10)
    lost = {name: loss for name, works, loss in report.abilities() if not works}
    assert {"retained messages", "packets of 300 KB"} <= set(lost)
    assert report.acknowledges
    assert "hub that starts again" in lost["retained messages"]


def serves(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_bare_broker_process_is_small() -> None:
    script = (
        "import asyncio, resource\n"
        "from ispine.broker import BrokerConfig, engine_for\n"
        "async def main():\n"
        "    engine = engine_for(BrokerConfig(engine='embedded', port=0))\n"
        "    await engine.start()\n"
        "    await engine.stop()\n"
        "    import sys\n"
        "    heavy = [m for m in ('amqtt.broker', 'transitions', 'typer') if m in sys.modules]\n"
        "    with open('/proc/self/statm') as file:\n"
        "        pages = int(file.read().split()[1])\n"
        "    print(pages * resource.getpagesize() >> 20, *heavy)\n"
        "asyncio.run(main())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    assert int(shown[0]) < 45
    assert shown[1:] == []
