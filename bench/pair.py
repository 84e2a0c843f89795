"""A 10 ms and a 40 ms worker: makespan, latency under load, and what a fault costs.

The baseline is arithmetic: the sum of the two rates, and after a fault the survivor's own rate.

    python bench/pair.py --json
"""

import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

from fleet import Fleet, arguments_of, duplicates_of, running_fleet, show, submit, warm_up

from ispine.cli.asking import ask
from ispine.sdk import Spine
from ispine.sdk.sync import Future

FAST_S, SLOW_S = 0.010, 0.040
RATE = 1 / FAST_S + 1 / SLOW_S


class Cable:
    """A TCP relay that can be cut silently: no FIN, no RST, nothing comes through."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listening.getsockname()[1]}"
        self._port = port
        self._is_cut = threading.Event()
        self._is_over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        inner, _ = self._listening.accept()
        outer = socket.create_connection(("127.0.0.1", self._port))
        for end in (inner, outer):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not self._is_over.is_set():
            ready, _, _ = select.select([inner, outer], [], [], 0.2)
            if self._is_cut.is_set():
                self._is_over.wait(60)
                break
            for end in ready:
                if not self._pass_on(end, outer if end is inner else inner):
                    self._is_over.set()
                    break
        inner.close()
        outer.close()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> bool:
        """Whether there was something to pass on; an end that is gone ends the cable."""
        try:
            data = source.recv(262_144)
            target.sendall(data)
        except OSError:
            return False
        return bool(data)

    def cut(self) -> None:
        """From now on silence."""
        self._is_cut.set()

    def close(self) -> None:
        """Let go."""
        self._is_over.set()
        self._listening.close()


def makespan(spine: Spine, count: int) -> float:
    """200 at once against the ideal."""
    started = time.perf_counter()
    for future in submit(spine, count):
        future.result(60)
    return (time.perf_counter() - started) / (count / RATE)


def poisson(spine: Spine, seconds: float, seed: int) -> float:
    """99th percentile of latency, open loop at 70 % of both, in milliseconds."""
    chance = random.Random(seed)
    times: list[float] = []
    futures: list[Future] = []
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        due += chance.expovariate(0.7 * RATE)
        time.sleep(max(due - time.perf_counter(), 0))
        future = submit(spine, 1)[0]
        future.add_done_callback(_timer(times))
        futures.append(future)
    for future in futures:
        future.result(60)
    return sorted(times)[int(0.99 * len(times))] * 1e3


def _timer(times: list[float]) -> Callable[[object], None]:
    begun = time.perf_counter()
    return lambda _: times.append(time.perf_counter() - begun)


def rescue_ms(url: str, sent: dict[str, float], fault_s: float, victim: str) -> float:
    """Longest time from the fault until a task that the victim held was given to another."""
    longest = 0.0
    for task_id, sent_s in sent.items():
        steps = ask(url, "why", {"task": task_id})["steps"]
        given = [s for s in steps if s["what"] in ("assigned", "hedged") and "device" in s]
        held_ms = [s["at_ms"] for s in given if s["device"] == victim]
        others = [s["at_ms"] for s in given if s["device"] != victim]
        later = [at_ms for at_ms in others if held_ms and at_ms > held_ms[-1]]
        if later:
            at_s = sent_s + later[0] / 1e3
            if at_s > fault_s:
                longest = max(longest, at_s - fault_s)
    return longest * 1e3


def fault(kind: str, count: int) -> dict[str, float | int]:
    """One fault of the fast worker while 200 tasks wait."""
    with running_fleet(slow="work_40") as (fleet, spine):
        cable = Cable(int(fleet.url.rsplit(":", 1)[1]))
        victim = fleet.start("fast", "work_10", url=cable.url)
        warm_up(spine)
        strike: dict[str, Callable[[], object]] = {
            "sigkill": victim.kill,
            "sigstop": lambda: os.kill(victim.pid, signal.SIGSTOP),
            "partition": cable.cut,
        }
        answered_before = spine.stats.answered
        sent: dict[str, float] = {}
        futures: list[Future] = []
        for _ in range(count):
            futures.append(submit(spine, 1)[0])
            sent[futures[-1].task_id] = time.perf_counter()
        while sum(future.done() for future in futures) < count // 4:
            time.sleep(0.001)
        strike[kind]()
        fault_s = time.perf_counter()
        left = sum(not future.done() for future in futures)
        for future in futures:
            future.result(60)
        took_s = time.perf_counter() - fault_s
        time.sleep(0.3)
        numbers = {
            "answered": spine.stats.answered - answered_before,
            "duplicated": duplicates_of(spine),
            "rescue_ms": round(rescue_ms(fleet.url, sent, fault_s, "fast"), 1),
            "makespan_ratio": round(took_s / (left * SLOW_S), 3),
        }
        if kind == "sigstop":
            os.kill(victim.pid, signal.SIGCONT)
        cable.close()
        return numbers


def measure(fleet: Fleet, spine: Spine, count: int, seconds: int) -> dict[str, object]:
    """Everything without a fault."""
    del fleet
    warm_up(spine)
    return {
        "makespan_ratio": round(makespan(spine, count), 3),
        "poisson_p99_ms": round(poisson(spine, seconds, seed=1), 1),
    }


def main() -> None:
    """Print the numbers."""
    arguments = arguments_of(__doc__, count=200, seconds=8)
    with running_fleet(fast="work_10", slow="work_40") as (fleet, spine):
        numbers = measure(fleet, spine, arguments.count, arguments.seconds)
    for kind in ("sigkill", "sigstop", "partition"):
        numbers[kind] = fault(kind, arguments.count)
    show(numbers, as_json=arguments.json)


if __name__ == "__main__":
    main()
