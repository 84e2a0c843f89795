"""10,000 tasks while a random agent is killed every two seconds; each comes back at once.

The baseline of `work_ratio` is one assignment per task.

    python bench/kills.py --json
"""

import random
import threading
import time

from fleet import Fleet, arguments_of, duplicates_of, running_fleet, show, submit, warm_up

from ispine.cli.asking import ask

AGENTS = 6
IN_FLIGHT = 400


def kill_now_and_then(fleet: Fleet, is_over: threading.Event, kills: list[str]) -> None:
    """SIGKILL and restart, until told to stop."""
    chance = random.Random(1)
    while not is_over.wait(2.0):
        name = chance.choice(sorted(fleet.agents))
        fleet.agents[name].kill()
        fleet.agents[name].close()
        kills.append(name)
        fleet.start(name, "work_10", wait=False)


def main() -> None:
    """Print the numbers."""
    arguments = arguments_of(__doc__, count=10_000)
    workers = {f"w{number}": "work_10" for number in range(AGENTS)}
    with running_fleet(**workers) as (fleet, spine):
        warm_up(spine, 100)
        before = ask(fleet.url, "stats")
        is_over, kills = threading.Event(), []
        killer = threading.Thread(target=kill_now_and_then, args=(fleet, is_over, kills))
        killer.start()
        started = time.perf_counter()
        answered = sent = 0
        open_tasks = []
        while sent < arguments.count or open_tasks:
            batch = min(IN_FLIGHT - len(open_tasks), arguments.count - sent)
            open_tasks += submit(spine, batch)
            sent += batch
            done = [future for future in open_tasks if future.done()]
            answered += sum(future.exception() is None for future in done)
            open_tasks = [future for future in open_tasks if not future.done()]
            time.sleep(0.005)
        took_s = time.perf_counter() - started
        is_over.set()
        killer.join()
        time.sleep(0.5)
        after = ask(fleet.url, "stats")
        numbers: dict[str, object] = {
            "sent": sent,
            "answered": answered,
            "duplicated": duplicates_of(spine),
            "work_ratio": round((after["assigned"] - before["assigned"]) / sent, 4),
            "kills": len(kills),
            "seconds": round(took_s, 1),
        }
    show(numbers, as_json=arguments.json)


if __name__ == "__main__":
    main()
