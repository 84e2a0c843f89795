"""Time that counts sleep, and delays without a shared clock.

Clocks of phones are wrong, so no message carries a time of day. A sender adds its own monotonic
send time; the receiver takes the smallest difference it has seen as "no delay" and reads every
later one as delay above it.
"""

import time
from collections import deque

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Nanoseconds since boot, sleep included where the system can tell."""
    return time.clock_gettime_ns(_CLOCK)


class DelayGauge:
    """One-way delay above the smallest one seen, for one sender and boot.

    The smallest difference is taken over the last two windows, so that two clocks that drift apart
    (50 ppm is 3 ms a minute) do not look like a link that gets slower.

    Args:
        window_s: length of one window in seconds.
    """

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_ns = int(window_s * 1e9)
        self._minima: deque[int] = deque(maxlen=2)
        self._opened_ns: int | None = None

    def delay_ms(self, sent_ns: int, received_ns: int) -> float:
        """Delay of one message above the smallest, in milliseconds, never negative.

        Args:
            sent_ns: the sender's `boot_ns` in the message.
            received_ns: this machine's `boot_ns` when it arrived.
        """
        difference = received_ns - sent_ns
        if self._opened_ns is None or received_ns - self._opened_ns > self._window_ns:
            self._opened_ns = received_ns
            self._minima.append(difference)
        elif difference < self._minima[-1]:
            self._minima[-1] = difference
        return (difference - min(self._minima)) / 1e6
