"""Who may connect, and what they may do: checked before anything happens."""

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ispine.broker.rawclient import Closed, LastWill, RawClient, Silence

if TYPE_CHECKING:
    from tests.integration.conftest import Served

EVERY = ("embedded", "mosquitto", "stock")
WILL_WAIT_S = 12.0


def test_nobody_is_anonymous_where_that_is_said(guarded: "Served") -> None:
    assert guarded.raw().connect("nobody") == (5, False)
    assert guarded.raw().connect("a", username="alice", password="wrong")[0] in (4, 5)
    assert guarded.raw().connect("a", username="mallory", password="x")[0] in (4, 5)
    assert guarded.raw().connect("a", username="alice")[0] in (4, 5)
    guarded.user("alice")


@pytest.mark.engines(*EVERY)
def test_refused_connect_ends_nobody(guarded: "Served") -> None:
    victim = guarded.user("alice", "victim")
    victim.subscribe("own/alice/#")
    intruder = guarded.raw()
    assert intruder.connect("victim", username="bob", password="wrong")[0] in (4, 5)
    intruder.close()
    victim.publish("own/alice/y", b"still here")
    assert victim.message().payload == b"still here"


@pytest.mark.engines(*EVERY)
def test_refused_connect_publishes_no_will(guarded: "Served") -> None:
    watcher = guarded.user("alice", "watcher")
    watcher.subscribe("own/alice/#")
    victim = guarded.user("alice", "victim", clean=False)
    for username in (None, "bob"):
        for client_id in ("victim", "intruder"):
            intruder = guarded.raw()
            forged = LastWill("own/alice/x", b"forged")
            intruder.connect(
                client_id, clean=False, will=forged, username=username, password=username
            )
            intruder.close()
    victim.close()
    assert _all_within(watcher, 1.0) == []


@pytest.mark.engines("embedded", "stock")
def test_client_id_belongs_to_its_identity(guarded: "Served") -> None:
    alice = guarded.user("alice", "phone", clean=False)
    alice.subscribe("own/alice/#", qos=1)
    alice.disconnect()
    guarded.user("alice", "other").publish("own/alice/x", b"private", 1)
    _, thief = guarded.try_user("bob", "phone", clean=False)
    assert _all_within(thief, 1.0) == []
    assert guarded.user("alice", "phone", clean=False).message().payload == b"private"


@pytest.mark.engines("embedded")
def test_nobody_takes_the_client_id_of_another(guarded: "Served") -> None:
    alice = guarded.user("alice", "phone", clean=False)
    assert guarded.try_user("bob", "phone", clean=False)[0] == 2
    alice.ping()
    alice.disconnect()
    assert guarded.try_user("bob", "phone")[0] == 2
    assert guarded.try_user("bob", "alice")[0] == 2


@pytest.mark.engines("embedded")
def test_refused_connects_leave_no_sessions(guarded: "Served") -> None:
    before = guarded.stats()["sessions"]
    for number in range(300):
        with RawClient(guarded.port) as client:
            client.connect(f"refused-{number}", clean=False)
    assert guarded.stats()["sessions"] == before
    assert guarded.stats()["refused: not authorised"] == 300


def test_rules_for_publish_and_delivery(guarded: "Served") -> None:
    alice, bob = guarded.user("alice"), guarded.user("bob")
    bob.subscribe("own/bob/#", "low/+")
    alice.publish("own/bob/x", b"forbidden", 1)
    alice.publish("low/a", b"allowed", 1)
    assert [each.payload for each in bob.messages()] == [b"allowed"]
    if guarded.kind == "embedded":
        assert guarded.stats()["dropped: not authorised"] == 1


def test_retained_stays_behind_the_rules(guarded: "Served") -> None:
    hub = guarded.attach("hub-test")
    guarded.hub_publishes(hub, "own/bob/secret", b"1", qos=1, retain=True)
    bob = guarded.user("bob")
    bob.subscribe("own/bob/#")
    assert bob.message().payload == b"1"
    alice = guarded.user("alice")
    alice.subscribe("#")
    alice.subscribe("own/bob/secret")
    alice.subscribe("own/+/secret")
    assert alice.messages() == []


@pytest.mark.engines(*EVERY)
def test_a_refused_subscription_gets_no_retained_message(guarded: "Served") -> None:
    bob = guarded.user("bob")
    bob.publish("own/bob/secret", b"1", 1, retain=True)
    alice = guarded.user("alice")
    alice.subscribe("own/bob/secret")
    bob.subscribe("own/bob/secret")
    assert _all_within(alice, 0.5) == []
    newcomer = guarded.user("alice", "newcomer")
    assert _all_within(newcomer, 0.5) == []


@pytest.mark.engines(*EVERY)
def test_a_narrow_rule_admits_no_wide_subscription(guarded: "Served") -> None:
    alice = guarded.user("alice")
    codes = alice.subscribe("low/#", "low/+", "low/a")
    if guarded.kind != "mosquitto":
        assert codes == [128, 0, 0]
    if guarded.kind == "stock":
        return
    hub = guarded.attach("hub-test")
    for topic in ("low/deep/secret", "low", "low/a"):
        guarded.hub_publishes(hub, topic, b"1", qos=1)
    assert alice.message().topic == "low/a"
    assert {each.topic for each in alice.messages()} <= {"low/a"}


@pytest.mark.engines(*EVERY)
def test_a_will_obeys_the_rules_of_its_sender(guarded: "Served") -> None:
    bob = guarded.user("bob")
    bob.subscribe("own/bob/#", "low/+")
    _, evil = guarded.try_user("alice", "evil", will=LastWill("own/bob/x", b"forged"))
    evil.close()
    good = guarded.user("alice", "good", will=LastWill("low/will", b"gone"))
    good.close()
    assert bob.message(WILL_WAIT_S).payload == b"gone"
    assert bob.messages() == []


def test_access_can_change_while_it_runs(guarded: "Served") -> None:
    alice, bob = guarded.user("alice"), guarded.user("bob")
    guarded.keep_only("bob")
    assert alice.is_closed_within(5)
    assert guarded.try_user("alice", "x")[0] in (4, 5)
    bob.ping()


def _all_within(client: RawClient, seconds: float) -> list[bytes]:
    got: list[bytes] = []
    with suppress(Closed, Silence):
        while True:
            got.append(client.message(seconds).payload)
    return got
