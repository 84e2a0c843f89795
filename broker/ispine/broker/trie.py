"""Which subscriptions match a topic, without looking at all of them."""

from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class _Node(Generic[Owner]):
    __slots__ = ("children", "owners")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Owner]] = {}
        self.owners: dict[Owner, int] = {}


class TopicTrie(Generic[Owner]):
    """Subscriptions by topic level.

    A lookup takes time with the number of levels and of matches, not with that of subscriptions.
    """

    def __init__(self) -> None:
        self._root: _Node[Owner] = _Node()

    def add(self, topic_filter: str, owner: Owner, qos: int) -> None:
        """Subscribe, or change the QoS of a subscription."""
        node = self._root
        for level in topic_filter.split("/"):
            node = node.children.setdefault(level, _Node())
        node.owners[owner] = qos

    def remove(self, topic_filter: str, owner: Owner) -> bool:
        """Unsubscribe; whether there was such a subscription."""
        path: list[tuple[_Node[Owner], str]] = []
        node = self._root
        for level in topic_filter.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return False
            node = child
        was_there = node.owners.pop(owner, None) is not None
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.owners or child.children:
                break
            del parent.children[level]
        return was_there

    def match(self, topic: str) -> dict[Owner, int]:
        """Every owner with a filter that matches, once, with the highest QoS of those filters."""
        levels = topic.split("/")
        found: dict[Owner, int] = {}
        nodes = [self._root]
        is_system = topic[:1] == "$"
        for depth, level in enumerate(levels):
            nodes = self._step(nodes, level, found, wild=not (is_system and depth == 0))
            if not nodes:
                return found
        for node in nodes:
            _collect(node, found)
            below = node.children.get("#")
            if below is not None:
                _collect(below, found)
        return found

    def _step(
        self, nodes: list[_Node[Owner]], level: str, found: dict[Owner, int], *, wild: bool
    ) -> list[_Node[Owner]]:
        following: list[_Node[Owner]] = []
        for node in nodes:
            children = node.children
            exact = children.get(level)
            if exact is not None:
                following.append(exact)
            if not wild:
                continue
            plus = children.get("+")
            if plus is not None:
                following.append(plus)
            rest = children.get("#")
            if rest is not None:
                _collect(rest, found)
        return following


def _collect(node: _Node[Owner], found: dict[Owner, int]) -> None:
    for owner, qos in node.owners.items():
        if found.get(owner, -1) < qos:
            found[owner] = qos
