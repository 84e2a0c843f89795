"""Rules as data, secrets, and the files for other brokers."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from ispine.broker import BrokerConfig, Rule, User
from ispine.broker.access import Access, Identity, covers
from ispine.broker.credentials import hash_secret, is_secret, new_secret
from ispine.broker.export import emqx_rules, emqx_users, mosquitto_passwords, mosquitto_rules

RULES = (
    Rule(role="device", action="publish", topic_filter="ispine/replies/{id}"),
    Rule(role="device", action="subscribe", topic_filter="ispine/queues/{id}/+"),
    Rule(role="wearable", action="subscribe", topic_filter="ispine/results/{id}/+"),
    Rule(action="subscribe", topic_filter="ispine/hub"),
    Rule(identity="phone", action="publish", topic_filter="ispine/extra/#"),
)
PHONE = Identity("phone", "device")
NOBODY = Identity("", "wearable")


@pytest.mark.parametrize(
    ("allowed", "wanted", "expected"),
    [
        ("low/+", "low/#", False),
        ("low/#", "low/+", True),
        ("low/#", "low", True),
        ("low/+", "low", False),
        ("#", "a/+/b", True),
        ("#", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("$SYS/#", "#", False),
        ("+/a", "b/a", True),
        ("a/+", "+/a", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/#", False),
        ("a/b", "a/+", False),
    ],
)
def test_covers(allowed: str, wanted: str, expected: bool) -> None:
    assert covers(allowed, wanted) == expected


def test_rules_by_role_identity_and_own_name() -> None:
    access = Access(BrokerConfig(rules=RULES))
    assert access.may_publish(PHONE, "ispine/replies/phone")
    assert not access.may_publish(PHONE, "ispine/replies/tablet")
    assert access.may_publish(PHONE, "ispine/extra/a/b")
    assert not access.may_publish(Identity("tablet", "device"), "ispine/extra/a/b")
    assert access.may_subscribe(PHONE, "ispine/queues/phone/+")
    assert not access.may_subscribe(PHONE, "ispine/queues/phone/#")
    assert access.may_receive(PHONE, "ispine/queues/phone/detect")
    assert access.may_receive(NOBODY, "ispine/hub")
    assert not access.may_receive(NOBODY, "ispine/results//x")


def test_own_name_is_nobodys_without_a_name() -> None:
    access = Access(BrokerConfig(rules=RULES))
    assert not access.may_subscribe(NOBODY, "ispine/results//+")
    assert not access.may_subscribe(NOBODY, "ispine/results/{id}/+")


def test_changed_rules_hold_at_once() -> None:
    access = Access(BrokerConfig(rules=RULES))
    assert access.may_publish(PHONE, "ispine/replies/phone")
    access.replace((), RULES[1:])
    assert not access.may_publish(PHONE, "ispine/replies/phone")


def test_secrets() -> None:
    secret = new_secret()
    hashed = hash_secret(secret)
    assert secret not in hashed
    assert is_secret(secret, hashed)
    assert not is_secret(secret + "x", hashed)
    assert not is_secret("", hashed)
    assert not is_secret(secret, "not a hash")
    assert hash_secret(secret) != hashed


def test_a_hash_never_shows() -> None:
    user = User(name="a", role="device", secret_hash=hash_secret("s"))
    assert "$7$" not in repr(user)
    assert "$7$" not in repr(BrokerConfig(users=(user,)))


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "#a", "a\0"])
def test_a_rule_needs_a_filter(topic_filter: str) -> None:
    with pytest.raises(ValidationError, match="topic filter"):
        Rule(action="publish", topic_filter=topic_filter)


def test_a_user_is_there_once() -> None:
    user = User(name="a", role="device", secret_hash=hash_secret("s"))
    with pytest.raises(ValidationError, match="twice"):
        BrokerConfig(users=(user, user))


@pytest.mark.skipif(
    shutil.which("mosquitto_passwd") is None, reason="needs mosquitto_passwd (mosquitto)"
)
def test_mosquitto_reads_and_writes_the_same_hashes(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.touch()
    subprocess.run(
        ["mosquitto_passwd", "-b", str(path), "theirs", "a secret"], check=True, timeout=10
    )
    theirs = path.read_text().strip().split(":", 1)[1]
    assert is_secret("a secret", theirs)
    assert not is_secret("another", theirs)
    assert re.sub(r"[^$]+", "x", theirs) == re.sub(r"[^$]+", "x", hash_secret("a secret"))


def test_mosquitto_files() -> None:
    user = User(name="phone", role="device", secret_hash=hash_secret("s"))
    config = BrokerConfig(users=(user,), rules=RULES)
    assert mosquitto_passwords([user]) == f"phone:{user.secret_hash}\n"
    assert mosquitto_rules(config, [user]).splitlines() == [
        "topic read ispine/hub",
        "user phone",
        "topic write ispine/replies/phone",
        "topic write ispine/extra/#",
        "topic read ispine/queues/phone/+",
        "topic read ispine/hub",
    ]


def test_emqx_files() -> None:
    user = User(name="phone", role="device", secret_hash=hash_secret("s"))
    config = BrokerConfig(users=(user,), rules=RULES)
    assert emqx_rules(config).splitlines() == [
        '{allow, {user, "phone"}, publish, ["ispine/replies/phone", "ispine/extra/#"]}.',
        '{allow, {user, "phone"}, subscribe, ["ispine/queues/phone/+", "ispine/hub"]}.',
        '{allow, {ipaddrs, ["127.0.0.1", "::1"]}, subscribe, ["ispine/hub"]}.',
        "{deny, all}.",
    ]
    (row,) = json.loads(emqx_users([user]))
    assert row["user_id"] == "phone"
    assert len(row["password_hash"]) == 128
    assert emqx_rules(BrokerConfig()) == "{allow, all}.\n"
