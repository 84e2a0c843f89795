"""A pipe that tells a child process that its parent has gone, however suddenly."""

import os

VARIABLE = "ISPINE_LIFELINE"
"""Set to `stdin` by a parent that holds the other end of the child's standard input."""


def is_given() -> bool:
    """Whether the parent holds a lifeline. Asked once: the next generation has none."""
    return os.environ.pop(VARIABLE, "") == "stdin"


def is_cut() -> bool:
    """Whether the pipe, which can be read now, is at its end."""
    return not os.read(0, 1024)
