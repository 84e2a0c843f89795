"""The SDK on real hubs and agents: threads, closing, restarts, fallback, cost of the import."""

import asyncio
import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ispine.cli.processes import Child
from ispine.protocol.errors import LocalProtocolError
from ispine.sdk import (
    AsyncSpine,
    ConnectionLost,
    DeadlineExceeded,
    IspineError,
    NoCapableDevice,
    Spine,
    TaskCancelled,
    TaskRejected,
)

TESTS = "capabilities_for_tests"
LIGHT = ("onnxruntime", "amqtt", "onnx", "numpy", "PIL", "pydantic", "zeroconf")


@pytest.fixture(scope="module")
def url(module_fleet: Any) -> str:
    module_fleet.start_hub()
    module_fleet.start_agent(
        "a1",
        "--slots",
        "2",
        "--capability",
        "echo",
        "--capability",
        f"slow={TESTS}:sleep_40",
        "--capability",
        f"slower={TESTS}:sleep_300",
    )
    told: str = module_fleet.url
    return told


@pytest.fixture
def spine(url: str) -> Iterator[Spine]:
    with Spine.connect(url) as client:
        yield client


def in_threads(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_many_threads_share_one_client(spine: Spine) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(15):
            data = f"{number}-{turn}".encode()
            future = spine.submit("echo", data + b"f", within_ms=20_000)
            answered = spine.call("echo", data, within_ms=20_000).data
            if (answered, future.result(20).data) != (data, data + b"f"):
                wrong.append(data)

    in_threads(6, work)
    assert not wrong
    stats = spine.stats
    assert (stats.sent, stats.answered, stats.expired_here) == (180, 180, 0)


def test_closing_in_the_middle_leaves_no_caller_waiting(url: str) -> None:
    client = Spine.connect(url)
    ends: list[BaseException | None] = []
    begun = threading.Barrier(5)

    def wait_for(call: Any) -> None:
        begun.wait(10)
        try:
            call()
        except IspineError as error:
            ends.append(error)
        else:
            ends.append(None)

    def frames() -> Iterator[bytes]:
        while True:
            time.sleep(0.005)
            yield b"frame"

    calls = (
        lambda: client.call("slower", b"", within_ms=20_000),
        lambda: client.submit("slower", b"", within_ms=20_000).result(),
        lambda: list(client.stream("slow", frames(), within_ms=5000)),
        lambda: list(client.map("slower", [b"x"] * 1000)),
    )
    threads = [threading.Thread(target=wait_for, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    begun.wait(10)
    while client.stats.sent < 4:
        time.sleep(0.002)
    started = time.monotonic()
    client.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert time.monotonic() - started < 3
    assert len(ends) == 4
    assert all(isinstance(end, TaskCancelled | ConnectionLost) for end in ends)
    client.close()
    for call in calls:
        with pytest.raises(ConnectionLost, match="connect again"):
            call()


def test_a_source_may_itself_use_the_client(spine: Spine) -> None:
    first = spine.map("echo", [str(number).encode() for number in range(20)], within_ms=20_000)
    again = (outcome.value.data + b"!" for outcome in first if outcome.value)
    second = list(spine.map("echo", again, within_ms=20_000))
    assert [o.value.data for o in second if o.value] == [b"%d!" % n for n in range(20)]


def test_a_blocking_call_in_a_callback_says_so_instead_of_hanging(spine: Spine) -> None:
    seen: list[BaseException] = []
    told = threading.Event()

    def called_back(_future: object) -> None:
        try:
            spine.call("echo", b"")
        except LocalProtocolError as error:
            seen.append(error)
        told.set()

    spine.submit("echo", b"", within_ms=20_000).add_done_callback(called_back)
    assert told.wait(20)
    assert "submit()" in str(seen[0])
    following = threading.Event()

    def goes_on(_future: object) -> None:
        spine.submit("echo", b"", within_ms=20_000).add_done_callback(lambda _: following.set())

    spine.submit("echo", b"", within_ms=20_000).add_done_callback(goes_on)
    assert following.wait(20)


def test_progress_is_told_on_the_thread_that_iterates(spine: Spine) -> None:
    told: list[tuple[int, int | None, int]] = []

    def progress(done: int, total: int | None) -> None:
        told.append((done, total, threading.get_ident()))

    items = [b"x"] * 30
    assert len(list(spine.map("echo", items, within_ms=20_000, progress=progress))) == 30
    assert [done for done, _, _ in told] == list(range(1, 31))
    assert {(total, thread) for _, total, thread in told} == {(30, threading.get_ident())}


def test_leaving_a_stream_early_leaves_the_client_usable(spine: Spine) -> None:
    for outcome in spine.stream("slow", (b"x" for _ in range(1000)), within_ms=5000):
        if outcome.value is not None:
            break
    gc.collect()
    assert spine.call("echo", b"fine", within_ms=20_000).data == b"fine"


async def test_the_blocking_client_works_inside_a_running_loop(spine: Spine) -> None:
    assert spine.call("echo", b"x", within_ms=20_000).data == b"x"


def test_a_map_of_the_fleets_size_keeps_both_slots_busy(spine: Spine) -> None:
    list(spine.map("slow", [b"x"] * 4, within_ms=20_000))
    started = time.monotonic()
    outcomes = list(spine.map("slow", [b"x"] * 20, within_ms=20_000))
    assert all(outcome.value is not None for outcome in outcomes)
    assert time.monotonic() - started < 20 * 0.04 * 0.95 + 0.4


def test_devices_are_there_at_the_first_question_of_every_thread(spine: Spine) -> None:
    seen: list[list[str]] = []
    in_threads(4, lambda _n: seen.append([device.device_id for device in spine.devices()]))
    assert seen == [["a1"]] * 4


def test_what_is_wrong_with_a_durable_id_is_told(spine: Spine) -> None:
    with pytest.raises(TaskRejected, match="task id"):
        spine.outcome("a/b")
    with pytest.raises(TaskRejected, match="within_ms"):
        spine.outcome("t1", within_ms=0)
    with pytest.raises(TaskRejected, match="journal"):
        spine.outcome("nobody-knows-it")


def test_the_outcome_of_a_durable_task_survives_the_hub(
    fleet: Any, tmp_path: Path, free_port: int, wait: Any
) -> None:
    def start_hub() -> Child:
        port = str(free_port)
        hub = Child(
            "hub", ["hub", "--port", port, "--no-announce", "--json", "--data", str(tmp_path)]
        )
        fleet.children.append(hub)
        fleet.url = str(hub.wait_ready()["url"])
        return hub

    hub = start_hub()
    fleet.start_agent("a1", "--capability", "echo", "--capability", f"slow={TESTS}:sleep_300")
    with Spine.connect(fleet.url) as client:
        done = client.call("echo", b"kept", durable=True, within_ms=60_000)
        futures = [
            client.submit("slow", b"%d" % n, durable=True, within_ms=60_000) for n in range(4)
        ]
        futures[0].result(20)
        with pytest.raises(TaskRejected, match="this one is open") as waiting:
            client.outcome(futures[3].task_id, within_ms=5000)
        assert waiting.value.fields["code"] == "open"
        hub.kill()
        wait(lambda: not client.is_connected)
        start_hub()
        assert [future.result(30).data for future in futures] == [b"0", b"1", b"2", b"3"]
        kept = client.outcome(done.task_id, within_ms=5000)
        assert (kept.data, kept.device, kept.task_id) == (b"kept", "a1", done.task_id)
        assert kept.total_ms > 0
        with pytest.raises(TaskRejected, match="nobody-knows-it"):
            client.outcome("nobody-knows-it", within_ms=5000)
        assert client.stats.sent == client.stats.answered == 5


def test_a_call_rides_over_a_restart_of_the_hub(fleet: Any, free_port: int) -> None:
    def start() -> Child:
        hub = Child("hub", ["hub", "--port", str(free_port), "--no-announce", "--json"])
        fleet.children.append(hub)
        fleet.url = str(hub.wait_ready()["url"])
        return hub

    hub = start()
    fleet.start_agent("a1", "--capability", f"slow={TESTS}:sleep_300")
    with Spine.connect(fleet.url) as client:
        future = client.submit("slow", b"x", within_ms=30_000)
        client.call("slow", b"y", within_ms=30_000)
        hub.kill()
        waiting = client.submit("slow", b"z", within_ms=30_000)
        start()
        assert future.result(30).data == b"x"
        assert waiting.result(30).data == b"z"


def test_the_deadline_holds_while_the_hub_is_away(fleet: Any) -> None:
    hub = fleet.start_hub()
    with Spine.connect(fleet.url) as client:
        hub.kill()
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="expected an answer within 300 ms"):
            client.call("echo", b"x", within_ms=300)
        assert 0.29 <= time.monotonic() - started < 1.5


def test_a_scheduler_of_its_own_on_mosquitto_may_begin_anew(
    fleet: Any, tmp_path: Path, free_port: int, wait: Any
) -> None:
    if shutil.which("mosquitto") is None and "CI" not in os.environ:
        pytest.skip("needs mosquitto (apt-get install mosquitto)")
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"listener {free_port} 127.0.0.1\nallow_anonymous true\n")
    quiet = subprocess.DEVNULL
    broker = subprocess.Popen(
        ["mosquitto", "-c", str(conf)], stdin=quiet, stdout=quiet, stderr=quiet
    )
    fleet.url = f"mqtt://127.0.0.1:{free_port}"

    def start_scheduler() -> Child:
        child = Child("scheduler", ["scheduler", "--url", fleet.url, "--json"])
        fleet.children.append(child)
        child.wait_ready()
        return child

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", free_port)) == 0

    try:
        wait(answers)
        scheduler = start_scheduler()
        fleet.start_agent("a1", "--capability", "echo", "--capability", f"slow={TESTS}:sleep_300")
        with Spine.connect(fleet.url) as client:
            big = os.urandom(3_000_000)
            assert client.call("echo", big, within_ms=20_000).data == big
            assert [device.device_id for device in client.devices()] == ["a1"]
            future = client.submit("slow", b"x", within_ms=40_000)
            scheduler.kill()
            start_scheduler()
            assert future.result(40).data == b"x"
            assert client.is_connected
    finally:
        fleet.close()
        fleet.children.clear()
        broker.terminate()
        broker.wait(5)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_port_that_speaks_something_else_is_told_in_time(answer: bytes) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                if answer:
                    peer.sendall(answer)
                told.wait(10)

        told = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        started = time.monotonic()
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
            Spine.connect(f"mqtt://127.0.0.1:{port}", timeout_s=0.5)
        assert time.monotonic() - started < 1.5
        told.set()
        thread.join(5)


async def test_the_environment_names_the_hub(
    url: str, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISPINE_URL", url)
    async with await AsyncSpine.connect() as client:
        assert client.endpoint == url
    monkeypatch.setenv("ISPINE_URL", f"mqtt://127.0.0.1:{free_port}")
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{free_port}.*ispine hub"):
        await AsyncSpine.connect()


def test_without_a_hub_everything_runs_here(free_port: int) -> None:
    with Spine.connect(f"mqtt://127.0.0.1:{free_port}", fallback="local") as client:
        assert client.call("echo", b"call", within_ms=20_000).device == ""
        assert client.submit("echo", b"submit", within_ms=20_000).result(20).data == b"submit"
        assert [o.value.data for o in client.map("echo", [b"1", b"2"]) if o.value] == [b"1", b"2"]
        assert client.devices() == []
        assert not client.is_connected
        with pytest.raises(NoCapableDevice, match="not installed here"):
            client.call("nosuch", b"", within_ms=20_000)
        with pytest.raises(NoCapableDevice, match="not installed here"):
            client.submit("nosuch", b"", within_ms=20_000).result(20)
        with pytest.raises(ConnectionLost, match="expected a hub"):
            client.outcome("t1")


def test_what_no_device_can_runs_here(fleet: Any) -> None:
    fleet.start_hub()
    with Spine.connect(fleet.url) as client, pytest.raises(NoCapableDevice):
        client.call("echo", b"x", within_ms=5000)
    with Spine.connect(fleet.url, fallback="local") as client:
        assert client.call("echo", b"x", within_ms=5000).device == ""
        assert client.submit("echo", b"x", within_ms=5000).result(10).data == b"x"


def test_a_closed_client_ends_what_runs_here(free_port: int) -> None:
    client = Spine.connect(f"mqtt://127.0.0.1:{free_port}", fallback="local")
    futures = [client.submit("echo", b"x", within_ms=20_000) for _ in range(50)]
    client.close()
    for future in futures:
        assert future.exception(10) is None or isinstance(future.exception(), TaskCancelled)


def test_a_program_that_forgets_to_close_still_ends(url: str) -> None:
    code = (
        "import sys\nfrom ispine.sdk import Spine\n"
        "spine = Spine.connect(sys.argv[1])\n"
        "print(spine.call('echo', b'bye', within_ms=20000).data)\n"
        "spine.submit('slower', b'', within_ms=20000)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "b'bye'", "")


def run_python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout


def test_the_import_is_quick_and_light() -> None:
    code = (
        "import sys, time\nbegun = time.perf_counter()\nimport ispine.sdk\n"
        "print((time.perf_counter() - begun) * 1e3)\n"
        f"print(*sorted(set(sys.modules) & set({(*LIGHT, 'asyncio')!r})))"
    )
    told = [run_python(code).splitlines() for _ in range(5)]
    assert min(float(lines[0]) for lines in told) < 150
    assert told[0][1] == ""


def test_a_connected_client_is_still_light(url: str) -> None:
    code = (
        "import sys\nfrom ispine.sdk import Spine\n"
        f"with Spine.connect({url!r}) as spine:\n"
        "    spine.call('echo', b'x', within_ms=20000)\n"
        f"print(*sorted(set(sys.modules) & set({LIGHT!r})))"
    )
    assert run_python(code).strip() == ""


async def test_the_twins_have_the_same_calls() -> None:
    def calls(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    only_async = {"begin", "cancel", "ask", "over"}
    assert calls(Spine) == calls(AsyncSpine) - only_async | {"client_id"}
    assert asyncio.iscoroutinefunction(AsyncSpine.detect)
