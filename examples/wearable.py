"""Glasses that say what they see: pictures go to the fleet as a stream, answers come back in order.

    python examples/wearable.py photo1.jpg photo2.jpg …

The hub is found by itself; ISPINE_URL names it where it is not.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ispine.sdk import ConnectionLost, Spine, TooBusy
from ispine.sdk.answers import detections

FRAMES_PER_S = 10
WITHIN_MS = 1000


def camera(files: list[Path]) -> Iterator[bytes]:
    """Stands for a camera: one JPEG every tenth of a second."""
    for file in files:
        yield file.read_bytes()
        time.sleep(1 / FRAMES_PER_S)


def main() -> int:
    """Stream the files, print what is in them."""
    files = [Path(name) for name in sys.argv[1:]]
    if not files:
        print(__doc__)
        return 2
    try:
        spine = Spine.connect()
    except ConnectionLost as error:
        print(error)
        return 1
    with spine:
        for outcome in spine.stream("detect", camera(files), within_ms=WITHIN_MS):
            name = files[outcome.index].name
            if outcome.value is not None:
                seen = ", ".join(f"{d.label} {d.score:.2f}" for d in detections(outcome.value))
                print(f"{name}: {seen or 'nothing'} ({outcome.value.device})")
            elif isinstance(outcome.error, TooBusy):
                print(f"{name}: the fleet is busy; {outcome.error.suggestion}")
            else:
                print(f"{name}: {outcome.error or 'skipped, a newer frame was there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
