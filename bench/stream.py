"""One stream over 1, 2 and 4 agents that need 50 ms per frame; the baseline is the single agent.

python bench/stream.py --json
"""

import time

from fleet import arguments_of, running_fleet, show, warm_up

from ispine.sdk import Spine


def frame_rate(spine: Spine, seconds: int) -> float:
    """Answered frames per second of a source that is always faster than the fleet."""
    frames = [b"x" * 1000] * (seconds * 100)
    answered = 0
    started = time.perf_counter()
    for outcome in spine.stream("work", frames, within_ms=5000, drop=False):
        answered += outcome.value is not None
        if time.perf_counter() - started > seconds:
            break
    return answered / (time.perf_counter() - started)


def main() -> None:
    """Print the numbers."""
    arguments = arguments_of(__doc__, seconds=6)
    rates: dict[int, float] = {}
    for count in (1, 2, 4):
        workers = {f"w{number}": "work_50" for number in range(count)}
        with running_fleet(**workers) as (_, spine):
            warm_up(spine, 8 * count)
            rates[count] = frame_rate(spine, arguments.seconds)
    numbers: dict[str, object] = {
        "fps": {str(count): round(rate, 2) for count, rate in rates.items()},
        "speedup": {str(count): round(rates[count] / rates[1], 3) for count in (2, 4)},
    }
    show(numbers, as_json=arguments.json)


if __name__ == "__main__":
    main()
