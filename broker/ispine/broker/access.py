"""Who may publish and read what: rules as data."""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ispine.broker.config import Action, BrokerConfig, Rule, User
from ispine.broker.credentials import hash_secret, is_secret
from ispine.protocol.topics import matches

HUB_ROLE = "hub"
_CACHED = 4096
_NOBODY = hash_secret("")


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
    if (want[0][:1] == "$") != (have[0][:1] == "$"):
        return False
    for index, level in enumerate(have):
        if level == "#":
            return True
        if index >= len(want) or want[index] == "#":
            return False
        if level != "+" and level != want[index]:
            return False
    return len(have) == len(want)


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own; also as IPv4 within IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def filters_of(rules: Iterable[Rule], who: Identity, action: Action) -> Iterator[str]:
    """The filters within which `who` may do something, with the identity filled in."""
    for rule in rules:
        is_meant = rule.role in (None, who.role) and rule.identity in (None, who.name)
        if rule.action != action or not is_meant:
            continue
        if "{id}" not in rule.topic_filter:
            yield rule.topic_filter
        elif who.name:
            yield rule.topic_filter.replace("{id}", who.name)


class Access:
    """Decides who may connect, and what an identity may do.

    Args:
        config: users, rules and the treatment of clients without a name.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._anonymous = config.anonymous
        self._anonymous_role = config.anonymous_role
        self.replace(config.users, config.rules)

    def replace(self, users: Iterable[User], rules: Iterable[Rule]) -> None:
        """From now on other users and rules."""
        self._users = {user.name: user for user in users}
        self._rules = tuple(rules)
        self._filters: dict[tuple[Identity, Action], tuple[str, ...]] = {}
        self._verdicts: dict[tuple[Identity, Action, str], bool] = {}
        self.has_rules = bool(self._rules)

    def identity_of(self, name: str) -> Identity | None:
        """The identity of a user, None when there is none of that name."""
        user = self._users.get(name)
        return None if user is None else Identity(user.name, user.role)

    def admit(self, username: str | None, secret: str | None, address: str) -> Identity | None:
        """The identity of a client that connects, None when it is refused."""
        if username is None:
            return Identity("", self._anonymous_role) if self._may_be_nameless(address) else None
        user = self._users.get(username)
        # An unknown name takes as long as a wrong secret, so that names cannot be found out.
        is_right = is_secret(secret or "", _NOBODY if user is None else user.secret_hash)
        return Identity(user.name, user.role) if user is not None and is_right else None

    def _may_be_nameless(self, address: str) -> bool:
        if self._anonymous == "loopback":
            return is_loopback(address)
        return self._anonymous == "everybody"

    def owns(self, who: Identity, client_id: str) -> bool:
        """Whether `who` may use a client id: the name of a user is that user's alone."""
        return client_id == who.name or client_id not in self._users

    def may_publish(self, who: Identity, topic: str) -> bool:
        """Whether `who` may publish to a topic."""
        return not self.has_rules or self._matched(who, "publish", topic)

    def may_receive(self, who: Identity, topic: str) -> bool:
        """Whether `who` may read a topic."""
        return not self.has_rules or self._matched(who, "subscribe", topic)

    def may_subscribe(self, who: Identity, topic_filter: str) -> bool:
        """Whether `who` may read everything that a filter matches."""
        return not self.has_rules or any(
            covers(allowed, topic_filter) for allowed in self._allowed(who, "subscribe")
        )

    def _matched(self, who: Identity, action: Action, topic: str) -> bool:
        key = (who, action, topic)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            verdict = any(matches(allowed, topic) for allowed in self._allowed(who, action))
            self._verdicts[key] = verdict
        return verdict

    def _allowed(self, who: Identity, action: Action) -> tuple[str, ...]:
        known = self._filters.get((who, action))
        if known is None:
            if len(self._filters) >= _CACHED:
                self._filters.clear()
            known = self._filters[who, action] = tuple(filters_of(self._rules, who, action))
        return known
