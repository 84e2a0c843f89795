"""Devices that die, freeze, lie and come back, on real processes."""

import os
import signal
import time
from typing import Any

import pytest

from ispine.cli.asking import ask
from ispine.protocol.codec import decode
from ispine.protocol.errors import ConfigError
from ispine.sdk import Spine

SLEEP = "work=capabilities_for_tests:sleep_10"


def all_done(futures: list[Any], timeout_s: float = 30) -> list[bytes]:
    deadline_s = time.monotonic() + timeout_s
    return [f.result(max(deadline_s - time.monotonic(), 0.1)).data for f in futures]


def duplicates_of(spine: Spine) -> int:
    """Outcomes beyond one per sending: a task that is sent again asks for its outcome again."""
    stats = spine.stats
    return max(stats.duplicates - stats.resent - stats.asked_again, 0)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_a_device_that_dies_or_freezes_costs_no_task(fleet: Any, fault: str) -> None:
    fleet.start_hub()
    victim = fleet.start_agent("a1", "--slots", "1", "--capability", SLEEP)
    fleet.start_agent("a2", "--slots", "1", "--capability", SLEEP)
    with Spine.connect(fleet.url) as spine:
        for _ in range(20):
            spine.call("work", b"warm", within_ms=5000)
        items = [str(number).encode() for number in range(150)]
        futures = [spine.submit("work", item, within_ms=20_000) for item in items]
        while sum(future.done() for future in futures) < 30:
            time.sleep(0.002)
        os.kill(victim.pid, getattr(signal, fault))
        try:
            assert all_done(futures) == items
            time.sleep(0.3)
            assert duplicates_of(spine) == 0
            assert spine.stats.sent == spine.stats.answered == 170
        finally:
            os.kill(victim.pid, signal.SIGCONT)


def test_a_frozen_device_comes_back_and_is_used_again(fleet: Any, wait: Any) -> None:
    fleet.start_hub()
    victim = fleet.start_agent("a1", "--slots", "1", "--capability", SLEEP)
    fleet.start_agent("a2", "--slots", "1", "--capability", SLEEP)
    with Spine.connect(fleet.url) as spine:
        os.kill(victim.pid, signal.SIGSTOP)
        futures = [spine.submit("work", b"1", within_ms=20_000) for _ in range(40)]
        all_done(futures)
        os.kill(victim.pid, signal.SIGCONT)

        def is_used() -> bool:
            more = [spine.submit("work", b"2", within_ms=20_000) for _ in range(10)]
            return "a1" in {future.result(20).device for future in more}

        wait(is_used, 20, "the device to be used again")
        assert duplicates_of(spine) == 0


def test_the_hub_starts_again_and_everybody_finds_it(fleet: Any, free_port: int, wait: Any) -> None:
    first = fleet.start_hub("--port", str(free_port))
    fleet.start_agent("a1", "--capability", "echo")
    with Spine.connect(fleet.url) as spine:
        assert spine.call("echo", b"before", within_ms=5000).data == b"before"
        first.kill()
        first.process.wait()
        wait(lambda: not spine.is_connected, 5, "the client to notice")
        fleet.start_hub("--port", str(free_port))
        wait(lambda: spine.is_connected, 15, "the client to come back")
        answer = spine.call("echo", b"after", within_ms=15_000)
        assert (answer.data, answer.device) == (b"after", "a1")


def test_a_task_open_while_the_hub_dies_is_answered_once(
    fleet: Any, free_port: int, wait: Any
) -> None:
    first = fleet.start_hub("--port", str(free_port))
    fleet.start_agent("a1", "--capability", "slow=capabilities_for_tests:sleep_300")
    with Spine.connect(fleet.url) as spine:
        future = spine.submit("slow", b"kept", within_ms=25_000)
        time.sleep(0.1)
        first.kill()
        first.process.wait()
        fleet.start_hub("--port", str(free_port))
        assert future.result(25).data == b"kept"
        assert duplicates_of(spine) == 0


def test_two_agents_with_one_name_are_told_apart(echo_fleet: Any) -> None:
    with pytest.raises(ConfigError, match="only agent called 'a1'"):
        echo_fleet.start_agent("a1", "--capability", "echo")
    with Spine.connect(echo_fleet.url) as spine:
        assert spine.call("echo", b"x", within_ms=5000).data == b"x"


def test_a_killed_agent_comes_back_under_its_name(echo_fleet: Any) -> None:
    agent = echo_fleet.children[-1]
    agent.kill()
    agent.process.wait()
    echo_fleet.start_agent("a1", "--capability", "echo")
    with Spine.connect(echo_fleet.url) as spine:
        assert spine.call("echo", b"x", within_ms=5000).data == b"x"


def test_a_clean_stop_hands_back_what_it_has_not_begun(fleet: Any) -> None:
    fleet.start_hub()
    leaver = fleet.start_agent("a1", "--slots", "1", "--capability", SLEEP)
    fleet.start_agent("a2", "--slots", "1", "--capability", SLEEP)
    with Spine.connect(fleet.url) as spine:
        futures = [spine.submit("work", b"1", within_ms=20_000) for _ in range(100)]
        os.kill(leaver.pid, signal.SIGTERM)
        all_done(futures)
        assert leaver.process.wait(10) == 0
        assert duplicates_of(spine) == 0
        online = {row["device"]: row["online"] for row in ask(fleet.url, "devices")}
        assert online == {"a1": False, "a2": True}


def test_a_forged_reply_is_not_believed(echo_fleet: Any) -> None:
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    from ispine.protocol.chunks import Stamper
    from ispine.protocol.clock import boot_ns
    from ispine.protocol.messages import Reply

    stamper = Stamper("a1", 99, boot_ns)
    forger = paho.Client(CallbackAPIVersion.VERSION2)

    def on_task(_client: Any, _data: Any, message: Any) -> None:
        task: Any = decode(message.payload)[1]
        lie = Reply("done", task.task_id, task.client_id, 1, "made-up-lease", data=b"lie")
        forger.publish("ispine/replies/a1", stamper.frames(lie)[0], 0)

    forger.on_message = on_task
    forger.connect("127.0.0.1", echo_fleet.port)
    forger.subscribe("ispine/tasks/#")
    forger.loop_start()
    try:
        with Spine.connect(echo_fleet.url) as spine:
            for _ in range(30):
                assert spine.call("echo", b"truth", within_ms=5000).data == b"truth"
    finally:
        forger.loop_stop()
        forger.disconnect()
    assert ask(echo_fleet.url, "stats")["bad_leases"] > 0


def test_an_owners_rule_is_enforced_and_shown(fleet: Any, tmp_path: Any, wait: Any) -> None:
    from ispine.cli.demo import Device, write_sensors

    fleet.start_hub()
    sensors = write_sensors(tmp_path / "s", Device("x", "", battery_pct=80, temp_c=50))
    arguments = ("--sensors", str(sensors), "--min-battery", "30", "--capability", "echo")
    fleet.start_agent("phone", *arguments)
    with Spine.connect(fleet.url) as spine:
        assert spine.call("echo", b"x", within_ms=5000).device == "phone"
        (sensors / "power_supply" / "BAT0" / "capacity").write_text("12\n")
        wait(lambda: not spine.devices()[0].accepts, 10, "the rule to refuse")
        assert "battery at 12 %" in spine.devices()[0].refusal
        with pytest.raises(Exception, match="battery at 12 %"):
            spine.call("echo", b"x", within_ms=1000)
        (sensors / "power_supply" / "BAT0" / "capacity").write_text("90\n")
        wait(lambda: spine.devices()[0].accepts, 10, "the rule to allow again")
        assert spine.call("echo", b"x", within_ms=5000).device == "phone"
