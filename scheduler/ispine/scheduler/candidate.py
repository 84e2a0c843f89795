"""One device as it looks for one task."""

from functools import partial
from typing import NamedTuple

from ispine.scheduler.device import Device, Rung, Skill


class Candidate(NamedTuple):
    """One device as it looks for one task. Times are nanoseconds from now.

    Sorts by cost; `order` makes that unique.

    Attributes:
        cost_ns: `finish_ns` with heat and battery counted in.
        finish_ns: expected completion.
        wait_ns: until a place runs free.
        pace_ns: device time per task when it has many.
        deviation_ns: expected error of `finish_ns`.
    """

    cost_ns: float
    order: int
    finish_ns: float
    wait_ns: float
    link_ns: float
    service_ns: float
    pace_ns: float
    deviation_ns: float
    has_place: bool
    device: Device
    skill: Skill
    rung: Rung


make_candidate = partial(tuple.__new__, Candidate)
"""A candidate from a tuple of its values: a third of the time of calling the class."""
