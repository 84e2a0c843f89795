"""Secrets of users: kept as salted hashes in mosquitto's own format.

One format serves every engine: the embedded broker checks it, mosquitto reads it from its password
file, and EMQX takes the same PBKDF2 parameters. Few iterations suffice because secrets are random
(128 bits and more), never chosen by people.
"""

import base64
import hashlib
import hmac
import re
import secrets

ITERATIONS = 101
FORMAT = r"^\$7\$[1-9][0-9]{0,6}\$[A-Za-z0-9+/]{11,64}={0,2}\$[A-Za-z0-9+/]{86}==$"
_PARTS = re.compile(FORMAT)


def new_secret() -> str:
    """A fresh random secret: 192 bits, URL-safe."""
    return secrets.token_urlsafe(24)


def hash_secret(secret: str, *, salt: bytes | None = None) -> str:
    """The hash of a secret: `$7$iterations$salt$hash`, PBKDF2 with HMAC-SHA-512.

    Args:
        secret: random, at least 128 bits; never logged.
        salt: 12 bytes, as mosquitto wants, of ASCII, as EMQX wants; random when not given.
    """
    salt = secrets.token_urlsafe(9).encode() if salt is None else salt
    digest = hashlib.pbkdf2_hmac("sha512", secret.encode(), salt, ITERATIONS)
    encoded = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"$7${ITERATIONS}${'$'.join(encoded)}"


def is_secret(secret: str, hashed: str) -> bool:
    """Whether `secret` is the one that was hashed; takes the same time either way."""
    if _PARTS.fullmatch(hashed) is None:
        return False
    _, _, iterations, salt, digest = hashed.split("$")
    found = hashlib.pbkdf2_hmac("sha512", secret.encode(), base64.b64decode(salt), int(iterations))
    return hmac.compare_digest(found, base64.b64decode(digest))
