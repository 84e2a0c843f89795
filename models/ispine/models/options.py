"""Reading a task's options, which are untrusted."""

from collections.abc import Mapping

from ispine.protocol.errors import TaskRejected


def whole(options: Mapping[str, object], name: str, low: int, high: int, default: int) -> int:
    """A whole number from low to high.

    Raises:
        TaskRejected: anything else.
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, f"a whole number from {low} to {high}", value)
    return value


def share(options: Mapping[str, object], name: str, default: float) -> float:
    """A number from 0 to 1.

    Raises:
        TaskRejected: anything else.
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _wrong(name, "a number from 0 to 1", value)
    return float(value)


def text(options: Mapping[str, object], name: str, default: str) -> str:
    """A short text.

    Raises:
        TaskRejected: anything else.
    """
    value = options.get(name, default)
    if not isinstance(value, str) or len(value) > 64:
        raise _wrong(name, "text of at most 64 characters", value)
    return value


def known(options: Mapping[str, object], *names: str) -> None:
    """Refuse an option that is not one of `names`, so that a slip of the pen is noticed.

    Raises:
        TaskRejected: there is one.
    """
    for name in options:
        if name not in names:
            raise TaskRejected(
                f"expected options out of {', '.join(names)}; got {str(name)[:40]!r};"
                " check the spelling"
            )


def _wrong(name: str, expected: str, value: object) -> TaskRejected:
    return TaskRejected(
        f"expected option {name} to be {expected}; got {str(value)[:40]!r}; correct the option"
    )
