"""Rows and lines for people: devices, tasks, and the story of a task."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

DEVICE_COLUMNS = (
    "device",
    "standing",
    "load",
    "battery",
    "temp",
    "does (ms)",
    "link ms",
    "answers",
    "actual/predicted p50 p95",
)
TASK_COLUMNS = ("task", "client", "capability", "status", "device", "variant", "total ms")
_WIDTHS = (17, 20, 11, 18, 14, 8, 9)


def device_row(row: Row) -> Sequence[object]:
    """The cells of one device."""
    skills = ", ".join(
        f"{skill['capability']} {skill['variants'][0]['service_ms']}"
        for skill in row["capabilities"]
        if skill["variants"]
    )
    return (
        row["device"],
        row["standing"],
        f"{row['held']}/{row['slots']}",
        _battery(row),
        "" if row["temp_c"] is None else f"{row['temp_c']:.0f} °C",
        skills,
        row["link_ms"],
        row["answered"],
        f"{row['calibration_p50'] or '-'} {row['calibration_p95'] or '-'}",
    )


def _battery(row: Row) -> str:
    if row["battery_pct"] is None:
        return "mains" if row["charging"] else ""
    return f"{row['battery_pct']:.0f} %" + (" charging" if row["charging"] else "")


def task_row(row: Row) -> Sequence[object]:
    """The cells of one task."""
    return (
        row["task"],
        row["client"],
        row["capability"],
        row["code"] or row["status"],
        row["device"],
        row["variant"],
        row["total_ms"],
    )


def task_line(cells: Sequence[object]) -> str:
    """The cells of one task as a line, for a list that grows."""
    padded = zip(cells, _WIDTHS, strict=True)
    return " ".join(
        str("-" if cell in ("", None) else cell).ljust(width) for cell, width in padded
    ).rstrip()


def story_lines(story: Row) -> Iterator[str]:
    """Why a task went where it went."""
    by = f" by {_who(story)}" if story["device"] else ""
    yield (
        f"{story['task']}: {story['capability']} for {story['client']}, {story['bytes']} bytes,"
        f" within {story['within_ms']} ms → {story['code'] or story['status']}{by}"
    )
    for step in story["steps"]:
        detail = " ".join(str(step[k]) for k in ("device", "attempt", "detail") if k in step)
        yield f"  {step['at_ms']:>9} ms  {step['what']}  {detail}".rstrip()
        yield from map(_candidate_line, step.get("candidates", ()))
    parts = ", ".join(f"{name} {value} ms" for name, value in story["parts_ms"].items())
    yield f"  where the time went: {parts or 'nothing ran'}"
    if story.get("actual_to_predicted"):
        yield (
            f"  predicted {story['predicted_ms']} ms, took {story['total_ms']} ms:"
            f" {story['actual_to_predicted']} times as long"
        )
    if story["message"]:
        yield f"  {story['message']}"


def _who(row: Row) -> str:
    return f"{row['device']} {row['variant']}".rstrip()


def _candidate_line(candidate: Row) -> str:
    return (
        f"               {_who(candidate)}: queue"
        f" {candidate['queue_ms']} + link {candidate['link_ms']} + compute"
        f" {candidate['compute_ms']} ms, cost {candidate['cost_ms']}"
        + ("" if candidate["had_place"] else ", full")
    )
