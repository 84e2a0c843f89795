"""Capabilities that the tests' agents import."""

import time


def sleep_10(data: bytes) -> bytes:
    """Takes 10 ms."""
    time.sleep(0.01)
    return data[:16]


def sleep_40(data: bytes) -> bytes:
    """Takes 40 ms."""
    time.sleep(0.04)
    return data[:16]


def sleep_300(data: bytes) -> bytes:
    """Takes 300 ms."""
    time.sleep(0.3)
    return data[:16]


def fail(data: bytes) -> bytes:
    """Always raises."""
    raise ValueError(f"no good: {len(data)} bytes")


def leave(_data: bytes) -> bytes:
    """Tries to end the process."""
    raise SystemExit(3)


def enormous(_data: bytes) -> bytes:
    """Answers more than a message may hold."""
    return bytes(20_000_000)


def wrong(_data: bytes) -> bytes:
    """Does not return bytes."""
    return 7  # type: ignore[return-value]


def large(_data: bytes) -> bytes:
    """Answers three megabytes."""
    return b"x" * 3_000_000
