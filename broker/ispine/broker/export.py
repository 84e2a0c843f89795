"""The same users, rules and limits, written for other brokers: mosquitto and EMQX."""

import base64
import json
from collections.abc import Iterable, Iterator

from ispine.broker.access import Identity, filters_of, is_loopback
from ispine.broker.config import Action, BrokerConfig, Limits, Rule, User
from ispine.broker.credentials import ITERATIONS

_NOT_TEXT = ("\r", "\n", "\0")


def is_anonymous_possible(config: BrokerConfig) -> bool:
    """Whether mosquitto can be told to admit the anonymous clients that `config` allows.

    It knows listeners, not addresses: so "loopback" works where it listens on loopback.
    """
    if config.anonymous == "loopback":
        return is_loopback(config.host)
    return config.anonymous == "everybody"


def mosquitto_settings(config: BrokerConfig, port: int, folder: str, *, user: str | None) -> str:
    """A configuration file for mosquitto 2.

    Args:
        config: address and limits.
        port: where it really listens.
        folder: where the files `passwords` and `rules` are.
        user: whom it runs as when it starts as root.
    """
    limits = config.limits
    lines = [
        *([f"user {user}"] if user else []),
        "persistence false",
        "set_tcp_nodelay true",
        f"allow_anonymous {'true' if is_anonymous_possible(config) else 'false'}",
        f"password_file {folder}/passwords",
        *([f"acl_file {folder}/rules"] if config.rules else []),
        f"max_packet_size {limits.packet_bytes}",
        f"max_queued_messages {limits.queue_messages}",
        f"max_queued_bytes {limits.queue_bytes}",
        f"max_inflight_messages {limits.inflight}",
        "persistent_client_expiration 7d",
        "retain_available true",
        "sys_interval 5",
        "log_dest stderr",
        "log_timestamp false",
        "log_type error",
        "log_type warning",
        "log_type notice",
        *_listener(config, port, "mqtt"),
    ]
    if config.ws_port is not None:
        lines += _listener(config, config.ws_port, "websockets")
    return "\n".join(lines) + "\n"


def _listener(config: BrokerConfig, port: int, protocol: str) -> list[str]:
    # With "::" mosquitto would take IPv6 only; without an address it takes all.
    address = "" if config.host == "::" else config.host
    return [
        f"listener {port} {address}".rstrip(),
        f"protocol {protocol}",
        f"max_connections {config.limits.connections}",
    ]


def mosquitto_passwords(users: Iterable[User]) -> str:
    """A password file for mosquitto."""
    return "".join(f"{user.name}:{user.secret_hash}\n" for user in users)


def mosquitto_rules(config: BrokerConfig, users: Iterable[User]) -> str:
    """An ACL file for mosquitto: what no line allows is forbidden."""
    lines = list(_grants(config.rules, Identity("", config.anonymous_role)))
    for user in users:
        lines.append(f"user {user.name}")
        lines += _grants(config.rules, Identity(user.name, user.role))
    return "\n".join(lines) + "\n"


def _grants(rules: Iterable[Rule], who: Identity) -> Iterator[str]:
    words: tuple[tuple[str, Action], ...] = (("write", "publish"), ("read", "subscribe"))
    for word, action in words:
        for topic_filter in _filters(rules, who, action):
            yield f"topic {word} {topic_filter}"


def _filters(rules: Iterable[Rule], who: Identity, action: Action) -> Iterator[str]:
    for topic_filter in filters_of(rules, who, action):
        if not any(mark in topic_filter for mark in _NOT_TEXT):
            yield topic_filter


def emqx_rules(config: BrokerConfig) -> str:
    """An `acl.conf` for EMQX 5: first match decides, the last line forbids the rest."""
    if not config.rules:
        return "{allow, all}.\n"
    lines: list[str] = []
    for user in config.users:
        who = f"{{user, {json.dumps(user.name)}}}"
        lines += _emqx_lines(config.rules, Identity(user.name, user.role), who)
    anonymous = {
        "nobody": None,
        "loopback": '{ipaddrs, ["127.0.0.1", "::1"]}',
        "everybody": "all",
    }[config.anonymous]
    if anonymous is not None:
        nameless = Identity("", config.anonymous_role)
        lines += _emqx_lines(config.rules, nameless, anonymous)
    return "\n".join([*lines, "{deny, all}."]) + "\n"


def _emqx_lines(rules: Iterable[Rule], who: Identity, whom: str) -> Iterator[str]:
    actions: tuple[Action, ...] = ("publish", "subscribe")
    for action in actions:
        filters = list(_filters(rules, who, action))
        if filters:
            yield f"{{allow, {whom}, {action}, {json.dumps(filters)}}}."


def emqx_users(users: Iterable[User]) -> str:
    """A JSON file for EMQX's built-in database.

    Its authenticator is to be set to `password_hash_algorithm {name = pbkdf2, mac_fun = sha512,
    iterations = 101, dk_length = 64}`.
    """
    rows = []
    for user in users:
        _, _, iterations, salt, digest = user.secret_hash.split("$")
        if int(iterations) != ITERATIONS:
            continue
        rows.append(
            {
                "user_id": user.name,
                "password_hash": base64.b64decode(digest).hex(),
                "salt": base64.b64decode(salt).decode("ascii", "strict"),
                "is_superuser": False,
            }
        )
    return json.dumps(rows, indent=1) + "\n"


def nats_settings(
    name: str, port: int, cluster_port: int, routes: Iterable[int], folder: str
) -> str:
    """A configuration file for one node of a NATS cluster on this machine, with an MQTT listener.

    On several machines replace 127.0.0.1 by the addresses of the nodes.

    Args:
        name: unique in the cluster.
        port: of its MQTT listener.
        cluster_port: where the other nodes reach it.
        routes: cluster ports of all nodes.
        folder: for what NATS keeps: sessions and retained messages.
    """
    limits = Limits()
    nodes = ", ".join(f"nats-route://127.0.0.1:{route}" for route in routes)
    return "\n".join(
        [
            f"server_name: {name}",
            "host: 127.0.0.1",
            "port: -1",
            f"max_payload: {limits.packet_bytes}",
            f"max_pending: {4 * limits.packet_bytes}",
            f"jetstream {{ store_dir: {json.dumps(folder)}, max_file_store: 1GB }}",
            "mqtt {",
            "  host: 127.0.0.1",
            f"  port: {port}",
            f"  max_ack_pending: {limits.inflight}",
            "}",
            f"cluster {{ name: ispine, listen: 127.0.0.1:{cluster_port}, routes: [{nodes}] }}",
            "",
        ]
    )
