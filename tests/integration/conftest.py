"""Brokers for the contract tests: each engine on a real listener, and stock amqtt for comparison.

A test that takes `broker` (anybody may do everything) or `guarded` (users and rules, nobody
anonymous) runs once per engine of its mark `engines`; without one on `embedded` and `mosquitto`.
On `stock` (amqtt 0.12.1 as it is, in a process of its own) a test must fail: so the fault is real,
and the test sees it. `ISPINE_TEST_BROKER=mqtt://HOST:PORT` adds a broker that runs elsewhere.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import psutil
import pytest
import uvloop

from ispine.broker import BrokerConfig, Engine, Rule, User, engine_for
from ispine.broker.credentials import hash_secret
from ispine.broker.mosquitto import find_mosquitto
from ispine.broker.rawclient import Closed, RawClient, Silence
from ispine.protocol.link import Link

Result = TypeVar("Result")
SECRETS = {"alice": "alice-secret-0123456789", "bob": "bob-secret-0123456789abc"}
USERS = tuple(
    User(name=name, role="device", secret_hash=hash_secret(secret))
    for name, secret in SECRETS.items()
)
RULES = (
    Rule(role="device", action="publish", topic_filter="own/{id}/#"),
    Rule(role="device", action="subscribe", topic_filter="own/{id}/#"),
    Rule(role="device", action="subscribe", topic_filter="low/+"),
    Rule(role="device", action="publish", topic_filter="low/+"),
    Rule(role="hub", action="publish", topic_filter="#"),
    Rule(role="hub", action="subscribe", topic_filter="#"),
)
USUAL = ("embedded", "mosquitto")

STOCK = """
import asyncio, json, sys
from amqtt.broker import Broker
async def main():
    broker = Broker(json.loads(sys.argv[1]))
    await broker.start()
    server = next(iter(broker._servers.values()))
    print(server.instance.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


class LoopThread:
    """An event loop in a thread of its own, so that tests can block.

    Args:
        kind: `uvloop`, which the hub runs on where it is installed, or `asyncio`.
    """

    def __init__(self, kind: str = "asyncio") -> None:
        self.loop = asyncio.new_event_loop() if kind == "asyncio" else uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.submit(work).result(20)

    def close(self) -> None:
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass
class Served:
    """A broker that serves, and clients that end with the test."""

    kind: str
    port: int
    engine: Engine | None = None
    loop: LoopThread | None = None
    host: str = "127.0.0.1"
    stack: ExitStack = field(default_factory=ExitStack)

    pid: int = 0

    def raw(self) -> RawClient:
        return self.stack.enter_context(RawClient(self.port, self.host))

    def client(self, client_id: str = "", **options: Any) -> RawClient:
        client = self.raw()
        code, _ = client.connect(client_id, **options)
        assert code == 0
        return client

    def user(self, name: str, client_id: str = "", **options: Any) -> RawClient:
        return self.client(client_id, username=name, password=SECRETS[name], **options)

    def try_user(self, name: str, client_id: str, **options: Any) -> tuple[int, RawClient]:
        """A client with the right secret; the code of the answer."""
        client = self.raw()
        code, _ = client.connect(client_id, username=name, password=SECRETS[name], **options)
        return code, client

    def attach(self, name: str) -> Link:
        """A link of the hub; publish on it with `hub_publishes`."""
        assert self.loop is not None
        assert self.engine is not None
        return self.loop.run(self.engine.attach(name))

    def hub_publishes(self, link: Link, topic: str, payload: bytes, **options: Any) -> None:
        assert self.loop is not None
        self.loop.loop.call_soon_threadsafe(lambda: link.publish(topic, payload, **options))

    def keep_only(self, name: str) -> None:
        """From now on there is one user."""
        assert self.loop is not None
        assert self.engine is not None
        users = [user for user in USERS if user.name == name]
        self.loop.run(self.engine.replace_access(users, RULES))

    @property
    def rss_bytes(self) -> int:
        """Resident memory of stock amqtt's process."""
        return psutil.Process(self.pid).memory_info().rss

    def stats(self) -> dict[str, int | float]:
        assert self.engine is not None
        return dict(self.engine.stats())


class Start(Protocol):
    """Starts a broker of a kind with settings of `BrokerConfig`."""

    def __call__(self, kind: str, **settings: Any) -> Served: ...


def stock_settings(folder: Path, *, is_guarded: bool) -> dict[str, Any]:
    plugins: dict[str, Any] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {}}
    if is_guarded:
        from pwdlib import PasswordHash

        hasher = PasswordHash.recommended()
        passwords = folder / "stock-passwords"
        lines = (f"{name}:{hasher.hash(secret)}" for name, secret in SECRETS.items())
        passwords.write_text("\n".join(lines) + "\n")
        allowed = {name: [f"own/{name}/#", "low/+"] for name in SECRETS}
        plugins = {
            "amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(passwords)},
            "amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {
                "acl": allowed,
                "publish_acl": allowed,
            },
        }
    return {"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}}, "plugins": plugins}


def start_stock(stack: ExitStack, settings: dict[str, Any]) -> tuple[int, int]:
    child = subprocess.Popen(
        [sys.executable, "-c", STOCK, json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    stack.callback(child.stdout.close)
    stack.callback(child.wait, 10)
    stack.callback(child.kill)
    return int(child.stdout.readline()), child.pid


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        thread = LoopThread(request.param)
        stack.callback(thread.close)

        def begin(kind: str, **settings: Any) -> Served:
            served = Served(kind, 0, loop=thread)
            if kind == "stock":
                stock = stock_settings(tmp_path, is_guarded=bool(settings.get("users")))
                served.port, served.pid = start_stock(stack, stock)
            elif kind == "elsewhere":
                url = urlsplit(os.environ["ISPINE_TEST_BROKER"])
                served.host, served.port = url.hostname or "", url.port or 1883
            else:
                served.engine = begin_engine(kind, settings)
                served.port = int(served.engine.url.rsplit(":", 1)[1])
            stack.callback(served.stack.close)
            return served

        def begin_engine(kind: str, settings: dict[str, Any]) -> Engine:
            if kind == "mosquitto" and find_mosquitto() is None and not os.environ.get("CI"):
                pytest.skip("needs mosquitto (apt-get install mosquitto)")
            engine = engine_for(
                BrokerConfig.model_validate({"engine": kind, "port": 0, **settings})
            )
            thread.run(engine.start())
            stack.callback(lambda: thread.run(engine.stop()))
            return engine

        yield begin


@pytest.fixture
def broker(request: pytest.FixtureRequest, start: Start) -> Served:
    """Anybody may do everything."""
    return start(request.param)


@pytest.fixture
def guarded(request: pytest.FixtureRequest, start: Start) -> Served:
    """With users and rules; nobody is anonymous."""
    return start(request.param, users=USERS, rules=RULES, anonymous="nobody")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines(*kinds): the brokers that a contract test runs on")
    config.addinivalue_line("markers", "both_loops: it runs on uvloop and on asyncio's own loop")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "start" in metafunc.fixturenames:
        engines = metafunc.definition.get_closest_marker("engines")
        is_both = metafunc.definition.get_closest_marker("both_loops") is not None
        is_both = is_both and (engines is None or engines.args != ("stock",))
        loops = ["uvloop", "asyncio"] if is_both else ["uvloop"]
        metafunc.parametrize("start", loops, indirect=True, scope="function")
    for name in ("broker", "guarded"):
        if name in metafunc.fixturenames:
            mark = metafunc.definition.get_closest_marker("engines")
            kinds = list(USUAL if mark is None else mark.args)
            if name == "broker" and os.environ.get("ISPINE_TEST_BROKER") and len(kinds) > 1:
                kinds.append("elsewhere")
            metafunc.parametrize(name, [_case(kind) for kind in kinds], indirect=True)


def _case(kind: str) -> Any:
    if kind != "stock":
        return kind
    mark = pytest.mark.xfail(
        strict=True, raises=(AssertionError, Closed, Silence), reason="a fault of stock amqtt"
    )
    return pytest.param(kind, marks=mark)
