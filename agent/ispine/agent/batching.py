"""How many waiting tasks one run takes.

Theory of operation. A run of b tasks takes lat(b) = a + m·b; a and m are fitted to the runs so far
by least squares, older runs counting less. The size is the largest b at which the run still ends
before the earliest deadline in it. It grows by one with each full batch that ended in time, and
halves when one did not (additive increase, multiplicative decrease, as in Clipper, NSDI 2017), so
that the line is never trusted far beyond what was tried. Where a is so small that a batch saves
nothing, tasks run one by one: a batch would only make the first of them wait for the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_MEMORY = 0.98
"""Weight of the past at each run: about fifty runs count."""
_LEAST_SPREAD = 0.01
"""Variance of the sizes below which the slope is unknown."""
_LEAST_GAIN = 1.05
_DEVIATIONS = 2.0
_NO_DEADLINE = 2**63 - 1


@dataclass(slots=True)
class BatchCurve:
    """Run time over batch size of one group of tasks.

    Attributes:
        most: tasks that one run can take.
        cap: tasks that it takes at present.
    """

    most: int
    cap: int = 2
    _weight: float = 0.0
    _size: float = 0.0
    _time: float = 0.0
    _size_size: float = 0.0
    _size_time: float = 0.0
    _deviation_ns: float = 0.0

    def observe(self, size: int, took_ns: int, *, is_in_time: bool) -> None:
        """Learn from one run.

        Args:
            size: tasks in it.
            took_ns: its computing time.
            is_in_time: it ended before the deadline that its size was chosen for.
        """
        if self._weight:
            error = abs(took_ns - self.predict_ns(size))
            self._deviation_ns += 0.25 * (error - self._deviation_ns)
        self._weight = _MEMORY * self._weight + 1
        share = 1 / self._weight
        self._size += share * (size - self._size)
        self._time += share * (took_ns - self._time)
        self._size_size += share * (size * size - self._size_size)
        self._size_time += share * (size * took_ns - self._size_time)
        if size > 1 and not is_in_time:
            self.cap = max(size // 2, 1)
        elif size >= self.cap and is_in_time:
            self.cap = min(self.cap + 1, self.most)

    def line(self) -> tuple[float, float] | None:
        """(a, m) in nanoseconds, neither negative; None while only one size was seen."""
        spread = self._size_size - self._size * self._size
        if spread < _LEAST_SPREAD:
            return None
        slope = (self._size_time - self._size * self._time) / spread
        slope = min(max(slope, 0.0), self._time / self._size)
        return max(self._time - slope * self._size, 0.0), slope

    def predict_ns(self, size: int) -> float:
        """Expected time of a run; without knowing better, a batch saves nothing."""
        line = self.line()
        if line is None:
            return self._time * size / self._size if self._weight else 0.0
        return line[0] + line[1] * size

    def choose(self, deadlines_ns: Sequence[int], now_ns: int) -> tuple[int, int]:
        """How many of the waiting tasks to run together.

        Args:
            deadlines_ns: of the tasks in the order in which they would run, at least one.
            now_ns: the run begins now.

        Returns:
            The size, at least 1, and the deadline it was chosen for.
        """
        single_ns = now_ns + self.predict_ns(1)
        for size in range(min(len(deadlines_ns), self._worthwhile()), 0, -1):
            # A task that cannot be in time even alone must not keep the others from being so.
            hopeful = (due for due in deadlines_ns[:size] if due >= single_ns)
            due_ns = min(hopeful, default=_NO_DEADLINE)
            needed_ns = self.predict_ns(size) + _DEVIATIONS * self._deviation_ns
            if size == 1 or now_ns + needed_ns <= due_ns:
                return size, due_ns
        raise AssertionError("choose needs at least one task")

    def _worthwhile(self) -> int:
        size = min(self.cap, self.most)
        if self.line() is None:
            return size
        return size if self.predict_ns(1) * size >= _LEAST_GAIN * self.predict_ns(size) else 1
