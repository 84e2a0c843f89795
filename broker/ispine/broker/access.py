"""Who may publish and read what: rules as data."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from ispine.broker.config import Action, BrokerConfig, Rule
from ispine.protocol.topics import matches


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is connected.

    Attributes:
        name: user name; "" for an anonymous client.
        role: which rules apply.
    """

    name: str
    role: str


def covers(allowed: str, wanted: str) -> bool:
    """Whether everything that the filter `wanted` matches is matched by the filter `allowed` too.

    So `low/#` covers `low/+`, and `low/+` does not cover `low/#`.
    """
    have, want = allowed.split("/"), wanted.split("/")
    if want[0][:1] in ("+", "#") and have[0][:1] == "$":
        return False
    for index, level in enumerate(have):
        if level == "#":
            return True
        if index >= len(want) or want[index] == "#":
            return False
        if level != "+" and level != want[index]:
            return False
    return len(have) == len(want)


class Access:
    """Decides who may connect, and what an identity may do.

    Args:
        config: users, rules and the treatment of clients without a name.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._users = {user.name: user for user in config.users}
        self._rules = tuple(config.rules)
        self._anonymous = config.anonymous
        self._anonymous_role = config.anonymous_role
        self._cache: dict[tuple[Identity, str], tuple[str, ...]] = {}

    @property
    def has_rules(self) -> bool:
        """Whether anything is forbidden to anybody."""
        return bool(self._rules)

    def admit(self, username: str | None, secret: str | None, address: str) -> Identity | None:
        """The identity of a client that connects, None when it is refused."""
        if username is None:
            return Identity("", self._anonymous_role) if self._may_be_nameless(address) else None
        user = self._users.get(username)
        digest = hashlib.sha256((secret or "").encode()).hexdigest()
        if user is None or not hmac.compare_digest(digest, user.secret_sha256):
            return None
        return Identity(user.name, user.role)

    def _may_be_nameless(self, address: str) -> bool:
        if self._anonymous == "everybody":
            return True
        if self._anonymous == "nobody":
            return False
        try:
            return ipaddress.ip_address(address).is_loopback
        except ValueError:
            return False

    def may_publish(self, who: Identity, topic: str) -> bool:
        """Whether `who` may publish to a topic."""
        return not self._rules or any(
            matches(allowed, topic) for allowed in self._filters(who, "publish")
        )

    def may_subscribe(self, who: Identity, topic_filter: str) -> bool:
        """Whether `who` may read everything that a filter matches."""
        return not self._rules or any(
            covers(allowed, topic_filter) for allowed in self._filters(who, "subscribe")
        )

    def may_receive(self, who: Identity, topic: str) -> bool:
        """Whether `who` may read a topic."""
        return not self._rules or any(
            matches(allowed, topic) for allowed in self._filters(who, "subscribe")
        )

    def _filters(self, who: Identity, action: Action) -> tuple[str, ...]:
        known = self._cache.get((who, action))
        if known is None:
            if len(self._cache) > 4096:
                self._cache.clear()
            known = self._cache[who, action] = tuple(_filters(self._rules, who, action))
        return known


def _filters(rules: Iterable[Rule], who: Identity, action: Action) -> Iterable[str]:
    for rule in rules:
        if rule.role == who.role and rule.action == action:
            if "{id}" not in rule.topic_filter:
                yield rule.topic_filter
            elif who.name:
                yield rule.topic_filter.replace("{id}", who.name)
