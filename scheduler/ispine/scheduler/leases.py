"""Leases: who may answer which attempt.

A lease is a keyed hash of the attempt, so nothing has to be remembered to check one, and with the
key in the journal an attempt that an earlier run of the hub made can still answer.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode


class Leases:
    """Makes and checks leases.

    Args:
        secret: 16 to 32 random bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._keyed = hashlib.blake2s(key=secret, digest_size=9)

    def make(self, client_id: str, task_id: str, attempt: int, device_id: str) -> str:
        """The lease of one attempt on one device: 12 characters."""
        keyed = self._keyed.copy()
        keyed.update(f"{client_id}/{task_id}/{attempt}/{device_id}".encode())
        return urlsafe_b64encode(keyed.digest()).decode()

    def is_valid(
        self, lease: str, client_id: str, task_id: str, attempt: int, device_id: str
    ) -> bool:
        """Whether the lease was made for exactly this."""
        made = self.make(client_id, task_id, attempt, device_id)
        return hmac.compare_digest(made.encode(), lease.encode())
