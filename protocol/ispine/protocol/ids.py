"""Identifiers that may stand in a topic.

Every identifier matches `[A-Za-z0-9_-]{1,64}`, so none can hold a topic separator, a wildcard or a
NUL byte. Anything else is refused here, before it reaches a topic.
"""

import re
import secrets
from typing import NewType

from ispine.protocol.errors import BadId

DeviceId = NewType("DeviceId", str)
ClientId = NewType("ClientId", str)
TaskId = NewType("TaskId", str)
LeaseId = NewType("LeaseId", str)
Capability = NewType("Capability", str)

MAX_ID_CHARS = 64

_VALID = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


def is_id(text: str) -> bool:
    """Whether `text` may stand in a topic."""
    return _VALID(text) is not None


def check_id(text: str, kind: str) -> str:
    """Return `text` unchanged when it is a valid identifier.

    Args:
        text: the identifier as it was received or typed.
        kind: what it names, for the message: "task id", "device id", "capability".

    Raises:
        BadId: it is empty, longer than 64 characters, or holds a character outside
            `[A-Za-z0-9_-]`.
    """
    if _VALID(text) is None:
        raise BadId(kind=kind, seen=text)
    return text


def new_task_id() -> TaskId:
    """A fresh random task id: 96 bits, URL-safe."""
    return TaskId(secrets.token_urlsafe(12))


def new_lease_id() -> LeaseId:
    """A fresh random lease id: 72 bits, URL-safe."""
    return LeaseId(secrets.token_urlsafe(9))


def new_boot_id() -> int:
    """A random number that tells one run of a process from the next: 1 to 2**31 - 1."""
    return secrets.randbelow(2**31 - 1) + 1
