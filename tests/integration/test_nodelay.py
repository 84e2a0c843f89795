"""TCP_NODELAY stands on every live TCP socket of a hub, an agent and a wearable.

The option is read from the real sockets of the running processes: their descriptors are borrowed
with pidfd_getfd(2), so nothing has to be believed.
"""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ispine.sdk import Spine

PIDFD_GETFD = 438
CLI = [sys.executable, "-m", "ispine.cli.main"]


def borrow(pid: int, descriptor: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    try:
        copy = libc.syscall(PIDFD_GETFD, handle, descriptor, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return socket.socket(fileno=copy)
    finally:
        os.close(handle)


def connected_sockets(pid: int) -> Iterator[socket.socket]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if not target.startswith("socket:"):
            continue
        with borrow(pid, int(entry.name)) as borrowed:
            is_tcp = borrowed.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and borrowed.type == socket.SOCK_STREAM and is_connected(borrowed):
                yield borrowed


def is_connected(candidate: socket.socket) -> bool:
    try:
        candidate.getpeername()
    except OSError:
        return False
    return True


def can_borrow() -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    with socket.socket() as own:
        try:
            borrow(os.getpid(), own.fileno()).close()
        except OSError:
            return False
    return True


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    child = subprocess.Popen(
        [*CLI, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        yield child, json.loads(child.stdout.readline())
    finally:
        child.terminate()
        child.wait(10)
        child.stdout.close()


@pytest.mark.skipif(not can_borrow(), reason="needs pidfd_getfd: Linux 5.6 and ptrace rights")
@pytest.mark.parametrize("engine", ["embedded", "mosquitto"])
def test_nagle_is_off_on_both_ends_of_every_connection(engine: str) -> None:
    if engine == "mosquitto" and shutil.which("mosquitto") is None:
        pytest.skip("needs mosquitto (apt-get install mosquitto)")
    hub_arguments = ("hub", "--port", "0", "--no-announce", "--json", "--engine", engine)
    with running(*hub_arguments) as (hub, ready):
        url = ready["url"]
        agent_arguments = ("agent", "--url", url, "--id", "a1", "--capability", "echo", "--json")
        with running(*agent_arguments) as (agent, _), Spine.connect(url) as spine:
            assert spine.call("echo", b"hello", within_ms=5000).data == b"hello"
            brokers = [child.pid for child in psutil.Process(hub.pid).children()]
            for pid in (hub.pid, *brokers, agent.pid, os.getpid()):
                options = [
                    live.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                    for live in connected_sockets(pid)
                ]
                assert options, pid
                assert all(options), (pid, options)
