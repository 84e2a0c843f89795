"""What the demo saw, as numbers."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Frame:
    """One outcome of one frame.

    Attributes:
        capability: what was asked.
        photo: which photograph.
        status: `done` or the code of an error.
        device: who answered.
        ms: from sending to the outcome.
        at_s: when the outcome came, seconds of any one clock.
        labels: what was found.
    """

    capability: str
    photo: str
    status: str
    device: str
    ms: float
    at_s: float
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """Outcomes as they come."""

    within_ms: float
    frames: list[Frame] = field(default_factory=list)
    killed_s: float | None = None
    sent: int = 0
    duplicated: int = 0

    def add(self, frame: Frame) -> None:
        """One more outcome."""
        self.frames.append(frame)

    @property
    def done(self) -> list[Frame]:
        """Frames that were answered."""
        return [frame for frame in self.frames if frame.status == "done"]

    def quantile_ms(self, share: float) -> float:
        """Latency below which `share` of the answers lie; 0 without any."""
        ordered = sorted(frame.ms for frame in self.done)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def shares(self) -> dict[str, float]:
        """Part of the answers by device."""
        counts = Counter(frame.device for frame in self.done)
        total = sum(counts.values()) or 1
        return {device: round(count / total, 3) for device, count in sorted(counts.items())}

    def longest_gap_ms(self) -> float:
        """Longest time without an answer from the kill on; 0 when nothing was killed."""
        if self.killed_s is None:
            return 0.0
        times = [self.killed_s, *sorted(f.at_s for f in self.done if f.at_s >= self.killed_s)]
        gaps = [after - before for before, after in pairwise(times)]
        return max(gaps, default=0.0) * 1e3

    def detections(self) -> dict[str, int]:
        """How often each label was found by `detect`."""
        counts = Counter(
            label for frame in self.done if frame.capability == "detect" for label in frame.labels
        )
        return dict(counts.most_common())

    def summary(self) -> dict[str, object]:
        """The numbers; `lost` is what had no outcome of any kind."""
        done = self.done
        return {
            "sent": self.sent,
            "answered": len(done),
            "on_time": sum(frame.ms <= self.within_ms for frame in done),
            "lost": self.sent - len(self.frames),
            "duplicated": self.duplicated,
            "p50_ms": round(self.quantile_ms(0.50), 1),
            "p95_ms": round(self.quantile_ms(0.95), 1),
            "p99_ms": round(self.quantile_ms(0.99), 1),
            "longest_gap_ms": round(self.longest_gap_ms(), 1),
            "share": self.shares(),
            "detections": self.detections(),
            "within_ms": self.within_ms,
            "failed": dict(Counter(f.status for f in self.frames if f.status != "done")),
        }
