"""A mosquitto of our own: generated configuration, supervised, its log in ours.

Its files (configuration, hashed secrets, rules) are in a private temporary folder; messages are
never written to disk. When it ends by itself it is started again, with growing pauses; the hub's
links reconnect by themselves.
"""

import asyncio
import ctypes
import getpass
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ispine.broker.access import HUB_ROLE
from ispine.broker.config import BrokerConfig, Rule, User
from ispine.broker.credentials import hash_secret, new_secret
from ispine.broker.export import (
    is_anonymous_possible,
    mosquitto_passwords,
    mosquitto_rules,
    mosquitto_settings,
)
from ispine.broker.listener import bind
from ispine.protocol.errors import ConfigError, ConnectionLost
from ispine.protocol.link import Link, Message, Will
from ispine.protocol.mqtt import MqttLink

log = logging.getLogger(__name__)

HUB_USER = "ispine-hub"
OLDEST = (2, 0)
_FOLDER = "ispine-mosquitto-"
_START_S = 5.0
_STOP_S = 3.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_CALM_S = 30.0
_STATS = {
    "clients/connected": "connected",
    "clients/total": "sessions",
    "messages/received": "messages_in",
    "messages/sent": "messages_out",
    "bytes/received": "bytes_in",
    "bytes/sent": "bytes_out",
    "retained messages/count": "retained_messages",
    "publish/messages/dropped": "dropped: by mosquitto",
    "heap/current": "heap_bytes",
}
# How lines of its log end, and the counter that the embedded engine has for the same.
_ENDINGS = {
    "disconnected due to oversize packet.": "closed: packet too large",
    "disconnected due to malformed packet.": "closed: malformed packet",
    "disconnected due to protocol error.": "closed: protocol error",
    "disconnected, not authorised.": "refused: not authorised",
    "already connected, closing old connection.": "closed: taken over",
    "has exceeded timeout, disconnecting.": "closed: silent",
}


@dataclass(frozen=True, slots=True)
class Program:
    """An installed mosquitto."""

    path: str
    version: tuple[int, ...]


def find_mosquitto() -> Program | None:
    """The installed mosquitto, None when there is none that runs."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    path = shutil.which("mosquitto", path=places)
    if path is None:
        return None
    try:
        shown = subprocess.run(
            [path, "-h"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"version (\d+)\.(\d+)(?:\.(\d+))?", shown)
    version = tuple(int(part) for part in found.groups() if part) if found else ()
    return Program(path, version)


def why_not(config: BrokerConfig) -> str | None:
    """Why mosquitto cannot take the embedded engine's place here; None when it can."""
    program = find_mosquitto()
    if program is None:
        return "mosquitto is not installed"
    if program.version < OLDEST:
        return f"mosquitto {'.'.join(map(str, program.version))} is older than 2.0"
    if config.anonymous == "loopback" and not is_anonymous_possible(config):
        return "mosquitto cannot admit local clients without a name on an address of the network"
    if config.ws_port is not None:
        # Seen on 2.0.11: 4 KB each 100 ms from a WebSocket; and it asks no page where it is from.
        return "mosquitto reads WebSockets slowly and from any page"
    return None


def _die_with_parent() -> None:
    # Linux sends SIGTERM to the broker when the hub is killed, so that its port is free again.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class MosquittoEngine:
    """See `ispine.broker.engine.Engine`.

    Args:
        config: address, limits, users and rules.

    Raises:
        ConfigError: mosquitto is missing or too old.
    """

    name = "mosquitto"

    def __init__(self, config: BrokerConfig) -> None:
        program = find_mosquitto()
        if program is None:
            raise ConfigError(
                "expected the program mosquitto; it is not installed;"
                " install it (apt-get install mosquitto) or use --engine embedded"
            )
        if program.version < OLDEST:
            seen = ".".join(map(str, program.version)) or "unknown"
            raise ConfigError(
                f"expected mosquitto 2.0 or newer; {program.path} is version {seen};"
                " update it or use --engine embedded"
            )
        self._program = program
        self._config = config
        self._secret = new_secret()
        self._hub = User(name=HUB_USER, role=HUB_ROLE, secret_hash=hash_secret(self._secret))
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = config.port
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._links: list[MqttLink] = []
        self._stats: dict[str, int | float] = {"restarts": 0}

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"mqtt://{self._shown_host}:{self._port}"

    @property
    def ws_url(self) -> str | None:
        """Where WebSocket clients connect, None without that listener."""
        port = self._config.ws_port
        return None if port is None else f"ws://{self._shown_host}:{port}/mqtt"

    @property
    def pid(self) -> int | None:
        """Process id, None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def _shown_host(self) -> str:
        host = self._config.host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"[{host}]" if ":" in host else host

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See `Engine.start`."""
        self._port = _free_port(self._config.host, self._config.port)
        if self._config.ws_port is not None:
            ws_port = _free_port(self._config.host, self._config.ws_port)
            self._config = self._config.model_copy(update={"ws_port": ws_port})
        if why := why_not(self._config):
            log.warning("mosquitto does less than the embedded engine", extra={"why": why})
        _remove_left_behind()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-")
        self._write_files()
        try:
            await self._launch()
            await self._watch_stats()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="mosquitto-supervisor")

    def _write_files(self) -> None:
        assert self._folder is not None
        folder = Path(self._folder.name)
        config = self._config
        users = [*config.users, self._hub]
        owner = getpass.getuser() if hasattr(os, "geteuid") and os.geteuid() == 0 else None
        settings = mosquitto_settings(config, self._port, str(folder), user=owner)
        for name, text in (
            ("mosquitto.conf", settings),
            ("passwords", mosquitto_passwords(users)),
            ("rules", mosquitto_rules(config, users)),
        ):
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(text)

    async def _launch(self) -> None:
        assert self._folder is not None
        process = await asyncio.create_subprocess_exec(
            self._program.path,
            "-c",
            str(Path(self._folder.name) / "mosquitto.conf"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        self._process = process
        self._listening = asyncio.create_task(self._listen_to(process), name="mosquitto-log")
        await self._until_ready(process)

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _START_S
        while process.returncode is None and loop.time() < ends_s:
            try:
                _, writer = await asyncio.open_connection(self._dial_host, self._port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return
        if process.returncode is not None:
            await self._listening
        why = self._said[-1] if self._said else "it says nothing"
        raise ConfigError(
            f"expected {self._program.path} to listen on port {self._port}; {why};"
            " correct the setting or use --engine embedded"
        )

    @property
    def _dial_host(self) -> str:
        return self._shown_host.strip("[]")

    async def _listen_to(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            text = line.decode(errors="replace").strip()
            self._said.append(text)
            self._count(text)
            log.debug("mosquitto says", extra={"line": text[:300]})

    def _count(self, line: str) -> None:
        for ending, name in _ENDINGS.items():
            if line.endswith(ending):
                self._stats[name] = self._stats.get(name, 0) + 1

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            assert self._process is not None
            code = await self._process.wait()
            if loop.time() - began_s > _CALM_S:
                pause_s = _FIRST_PAUSE_S
            why = self._said[-1][:300] if self._said else ""
            log.warning("mosquitto ended, starting it again", extra={"code": code, "why": why})
            self._stats["restarts"] += 1
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            try:
                await self._launch()
            except ConfigError as error:
                log.error("mosquitto does not start", extra={"why": str(error)})

    async def stop(self) -> None:
        """See `Engine.stop`."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        await asyncio.gather(*(link.close() for link in self._links))
        self._links.clear()
        if self._process is not None:
            await _end(self._process)
            await self._listening
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # -- links -----------------------------------------------------------------------------------

    async def attach(self, name: str, will: Will | None = None) -> Link:
        """See `Engine.attach`."""
        return await self._link(name, will)

    async def _link(self, name: str, will: Will | None = None) -> MqttLink:
        link = MqttLink(
            self.url, client_id=name, will=will, username=HUB_USER, password=self._secret
        )
        await link.connect()
        self._links.append(link)
        return link

    async def replace_access(self, users: Iterable[User], rules: Iterable[Rule]) -> None:
        """See `Engine.replace_access`: mosquitto reads its files again."""
        changed = {"users": tuple(users), "rules": tuple(rules)}
        has_rules = bool(self._config.rules)
        self._config = self._config.model_copy(update=changed)
        self._write_files()
        if self._process is None or self._process.returncode is not None:
            return
        if has_rules == bool(self._config.rules):
            self._process.send_signal(signal.SIGHUP)
        else:
            self._process.terminate()

    async def _watch_stats(self) -> None:
        link = await self._link("ispine-hub-stats")
        for topic, name in _STATS.items():
            await self._watch_one(link, f"$SYS/broker/{topic}", name)

    async def _watch_one(self, link: MqttLink, topic: str, name: str) -> None:
        def note(message: Message) -> None:
            text = message.payload.decode(errors="replace")
            if re.fullmatch(r"\d+(\.\d+)?", text):
                self._stats[name] = float(text) if "." in text else int(text)

        try:
            await link.subscribe(topic, note)
        except ConnectionLost as error:
            log.debug("no statistics", extra={"topic": topic, "why": str(error)})

    def stats(self) -> Mapping[str, int | float]:
        """See `Engine.stats`; mosquitto counts, every five seconds."""
        return {
            **self._stats,
            "links": len(self._links),
            "dropped: link congested": sum(link.dropped for link in self._links),
        }


def _remove_left_behind() -> None:
    """Remove folders of hubs that were killed; those of others than this user stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _free_port(host: str, port: int) -> int:
    listening = bind(host, port)
    with listening:
        return int(listening.getsockname()[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
