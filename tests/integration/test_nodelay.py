"""TCP_NODELAY stands on every live TCP socket of a hub, an agent and a wearable.

The option is read from the real sockets of the running processes: their descriptors are borrowed
with pidfd_getfd(2), so nothing has to be believed.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
def test_nagle_is_off_on_both_ends_of_every_connection() -> None:
    hub_arguments = ("hub", "--port", "0", "--no-announce", "--json")
    with running(*hub_arguments) as (hub, ready):
        url = ready["url"]
        agent_arguments = ("agent", "--url", url, "--id", "a1", "--capability", "echo", "--json")
        with running(*agent_arguments) as (agent, _), Spine.connect(url) as spine:
            assert spine.call("echo", b"hello", within_ms=5000).data == b"hello"
            for pid, at_least in ((hub.pid, 1), (agent.pid, 1), (os.getpid(), 1)):
                options = [
                    live.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                    for live in connected_sockets(pid)
                ]
                assert len(options) >= at_least
                assert all(options), (pid, options)
