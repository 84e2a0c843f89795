"""How many frames of a stream may be on their way: DESIGN's window, newest frame wins."""

import math
from dataclasses import dataclass

START = 2
LARGEST = 64


@dataclass(slots=True)
class Window:
    """`ceil(rate · RTT) + 1` places, at least two.

    One lost frame never blocks a stream: its place comes back when it expires.
    """

    in_flight: int = 0
    _interval_s: float = 0.0
    _rtt_s: float = 0.0
    _last_frame_s: float | None = None

    @property
    def size(self) -> int:
        """Places, 2 to 64."""
        if not self._interval_s or not self._rtt_s:
            return START
        return min(max(math.ceil(self._rtt_s / self._interval_s) + 1, START), LARGEST)

    @property
    def has_place(self) -> bool:
        """Whether one more frame may be sent."""
        return self.in_flight < self.size

    def frame_came(self, now_s: float) -> None:
        """The source made a frame."""
        if self._last_frame_s is not None:
            gap = max(now_s - self._last_frame_s, 1e-4)
            self._interval_s += 0.2 * (gap - self._interval_s) if self._interval_s else gap
        self._last_frame_s = now_s

    def sent(self) -> None:
        """A frame took a place."""
        self.in_flight += 1

    def ended(self, took_s: float, *, is_answered: bool) -> None:
        """A frame gave its place back, answered or not."""
        self.in_flight -= 1
        if is_answered:
            self._rtt_s += 0.2 * (took_s - self._rtt_s) if self._rtt_s else took_s
