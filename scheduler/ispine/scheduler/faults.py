"""Messages that broke the protocol: counted by reason and peer, logged once for each."""

import logging
from collections import Counter

from ispine.protocol.errors import ProtocolError

log = logging.getLogger(__name__)

_MAX_PAIRS = 1024
_OTHERS = "others"


class Faults:
    """Counts malformed messages; its memory is bounded, whoever sends them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, peer: str, error: ProtocolError, where: str) -> None:
        """Count one; log it when it is the first of its kind from that peer.

        Args:
            peer: client or device id.
            error: what was wrong; its message holds no payload.
            where: kind of topic, such as "task".
        """
        pair = (error.code, peer)
        if pair not in self._counts and len(self._counts) >= _MAX_PAIRS:
            pair = (error.code, _OTHERS)
        self._counts[pair] += 1
        if self._counts[pair] == 1:
            log.warning(
                "malformed message dropped",
                extra={"peer": pair[1], "where": where, "reason": str(error)},
            )

    def rows(self) -> list[dict[str, str | int]]:
        """Counts, most frequent first."""
        return [
            {"reason": reason, "peer": peer, "count": count}
            for (reason, peer), count in self._counts.most_common()
        ]

    @property
    def total(self) -> int:
        """All malformed messages."""
        return sum(self._counts.values())
