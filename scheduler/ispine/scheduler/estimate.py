"""Moving estimates of times, from samples that are not trusted.

All times are nanoseconds as floats. A single wild sample (a stall of the machine, a lost packet)
moves an estimate only as far as a sample four times the mean would; if it was no accident, the next
ones move it the rest of the way.
"""

from collections import deque
from math import isfinite

ALPHA = 0.2
BETA = 0.25
_OUTLIER = 4.0
_LEAST_NS = 50_000.0


class TimeEstimate:
    """Fading mean (`ALPHA`) and mean deviation (`BETA`) of a time.

    Attributes:
        mean_ns: expected time.
        deviation_ns: expected absolute error.
        count: samples so far.
        sampled_ns: when the last one was taken, 0 before any.
    """

    __slots__ = ("count", "deviation_ns", "mean_ns", "prior_ns", "sampled_ns")

    def __init__(self, prior_ns: float) -> None:
        self.prior_ns = max(prior_ns, _LEAST_NS)
        self.mean_ns = self.prior_ns
        self.deviation_ns = self.prior_ns / 4
        self.count = 0
        self.sampled_ns = 0

    def add(self, sample_ns: float, now_ns: int) -> None:
        """Take one sample; the first ones count more, so that a prior is soon forgotten."""
        if not isfinite(sample_ns) or sample_ns < 0:
            return
        self.count += 1
        self.sampled_ns = now_ns
        sample = min(max(sample_ns, _LEAST_NS), _OUTLIER * self.mean_ns)
        error = sample - self.mean_ns
        self.mean_ns += max(ALPHA, 1 / (self.count + 1)) * error
        self.deviation_ns += BETA * (abs(error) - self.deviation_ns)

    def is_doubtful(self, now_ns: int, stale_ns: int) -> bool:
        """Whether it is old and was never steady, so that a refusal on its ground is unsafe."""
        if self.count == 0 or now_ns - self.sampled_ns < stale_ns:
            return False
        return self.mean_ns > 1.5 * self.prior_ns or self.deviation_ns > 0.5 * self.mean_ns


class LinkEstimate:
    """Time outside the capability as a line over the size: n + bytes / B.

    The slope is the regression over exponentially fading sums; while all sizes are alike it is
    unknown and taken as 0, and n holds the whole.
    """

    __slots__ = ("_product", "_size", "_square", "base", "count", "slope")

    def __init__(self) -> None:
        self.base = TimeEstimate(_LEAST_NS)
        self.slope = 0.0
        self.count = 0
        self._size = 0.0
        self._square = 0.0
        self._product = 0.0

    def at(self, size_bytes: int) -> float:
        """Expected time for a payload of this size, nanoseconds."""
        if self.slope == 0.0:
            return self.base.mean_ns
        return max(self.base.mean_ns + self.slope * (size_bytes - self._size), 0.0)

    @property
    def deviation_ns(self) -> float:
        """Expected absolute error, nanoseconds."""
        return self.base.deviation_ns

    def seed(self, round_trip_ns: float) -> None:
        """Take the round trip of an empty message as the prior, until there is a sample."""
        if self.count == 0:
            self.base = TimeEstimate(round_trip_ns)

    def add(self, size_bytes: int, sample_ns: float, now_ns: int) -> None:
        """Take one sample."""
        if not isfinite(sample_ns) or sample_ns < 0:
            return
        self.count += 1
        alpha = max(0.05, 1 / self.count)
        offset = size_bytes - self._size
        residual = min(sample_ns, 10 * self.base.mean_ns + 1e6) - self.base.mean_ns
        self._size += alpha * offset
        self._square = (1 - alpha) * (self._square + alpha * offset * offset)
        self._product = (1 - alpha) * (self._product + alpha * offset * residual)
        if self.count >= 8 and self._square > (1024.0 + 0.1 * self._size) ** 2:
            self.slope = max(self._product / self._square, 0.0)
        self.base.add(max(sample_ns - self.slope * (size_bytes - self._size), 0.0), now_ns)
        if self.count == 1:
            self.base.mean_ns = max(sample_ns, _LEAST_NS)
            self.base.deviation_ns = self.base.mean_ns / 2


class Calibration:
    """How good the predictions for one device were: actual / predicted."""

    __slots__ = ("_ratios",)

    def __init__(self, window: int = 64) -> None:
        self._ratios: deque[float] = deque(maxlen=window)

    def add(self, actual_ns: float, predicted_ns: float) -> None:
        """Take one answer."""
        self._ratios.append(actual_ns / max(predicted_ns, _LEAST_NS))

    def clear(self) -> None:
        """Forget all answers."""
        self._ratios.clear()

    @property
    def count(self) -> int:
        """Answers in the window."""
        return len(self._ratios)

    def quantile(self, share: float) -> float | None:
        """A quantile of actual / predicted, None before the first answer."""
        if not self._ratios:
            return None
        ordered = sorted(self._ratios)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    def latest(self, count: int) -> float | None:
        """Median of the last `count` answers, None while there are fewer."""
        if len(self._ratios) < count:
            return None
        return sorted(list(self._ratios)[-count:])[count // 2]
