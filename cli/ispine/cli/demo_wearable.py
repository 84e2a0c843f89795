"""The demo's wearable, a process of its own: streams photographs and reports what it sees.

Prints one JSON object a line: a `frame` for each outcome, at the end one `stats`.
"""

import argparse
import json
import queue
import threading
import time
from concurrent.futures import wait
from dataclasses import asdict

from ispine.models.photos import Photo, demo_photos
from ispine.models.results import parse_detections, parse_labels
from ispine.protocol.errors import TaskError
from ispine.sdk import Answer, Spine
from ispine.sdk.sync import Future

STREAMS = (("detect", 15.0), ("classify", 9.0))
"""Capability and frames per second."""


def report_of(
    capability: str, photo: Photo, future: Future, sent_s: float, answered_s: float
) -> dict[str, object]:
    """One line about one outcome."""
    line: dict[str, object] = {
        "event": "frame",
        "capability": capability,
        "photo": photo.name,
        "task": future.task_id,
        "ms": (answered_s - sent_s) * 1e3,
        "at_s": answered_s,
    }
    try:
        answer = future.result()
    except TaskError as error:
        return line | {"status": error.code, "device": "", "found": []}
    return line | {"status": "done", "device": answer.device, "found": found_in(capability, answer)}


def found_in(capability: str, answer: Answer) -> list[dict[str, object]]:
    """What an answer says."""
    if capability == "detect":
        return [asdict(item) for item in parse_detections(answer.data)]
    return [asdict(item) for item in parse_labels(answer.data)[:1]]


class Stream(threading.Thread):
    """One camera stream at a steady rate; never waits for answers."""

    def __init__(
        self,
        spine: Spine,
        capability: str,
        rate: float,
        seconds: float,
        within_ms: float,
        lines: "queue.Queue[dict[str, object]]",
    ) -> None:
        super().__init__(name=f"stream-{capability}")
        self._spine, self._capability, self._rate = spine, capability, rate
        self._seconds, self._within_ms, self._lines = seconds, within_ms, lines
        self.futures: list[Future] = []

    def run(self) -> None:
        """Send every frame at its time."""
        photos = demo_photos()
        start_s = time.monotonic()
        for number in range(int(self._seconds * self._rate)):
            delay_s = start_s + number / self._rate - time.monotonic()
            if delay_s > 0:
                time.sleep(delay_s)
            self._send(photos[number % len(photos)])

    def _send(self, photo: Photo) -> None:
        sent_s = time.time()
        future = self._spine.submit(self._capability, photo.data, within_ms=self._within_ms)
        self.futures.append(future)

        def done(_: object) -> None:
            line = report_of(self._capability, photo, future, sent_s, time.time())
            self._lines.put(line)

        future.add_done_callback(done)


def main() -> None:
    """Stream, then say what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=14.0)
    parser.add_argument("--within-ms", type=float, default=1000.0)
    arguments = parser.parse_args()
    lines: queue.Queue[dict[str, object]] = queue.Queue()
    with Spine.connect(arguments.url, client_id="demo-glasses") as spine:
        print(json.dumps({"event": "ready"}), flush=True)
        streams = [
            Stream(spine, name, rate, arguments.seconds, arguments.within_ms, lines)
            for name, rate in STREAMS
        ]
        for stream in streams:
            stream.start()
        while any(stream.is_alive() for stream in streams) or not lines.empty():
            _print_one(lines)
        futures = [future for stream in streams for future in stream.futures]
        wait(futures, timeout=arguments.within_ms / 1e3 + 2)
        while not lines.empty():
            _print_one(lines)
        time.sleep(0.3)  # what comes twice would come now
        stats = spine.stats
        unanswered = sum(not future.done() for future in futures)
        told = {"event": "stats", "unanswered": unanswered, **asdict(stats)}
        print(json.dumps(told), flush=True)


def _print_one(lines: "queue.Queue[dict[str, object]]") -> None:
    try:
        print(json.dumps(lines.get(timeout=0.1)), flush=True)
    except queue.Empty:
        return


if __name__ == "__main__":
    main()
