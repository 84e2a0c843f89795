"""Capabilities that the benchmarks' agents import: they sleep, since there are only two cores."""

import time


def work_10(data: bytes) -> bytes:
    """10 ms."""
    time.sleep(0.010)
    return data[:8]


def work_40(data: bytes) -> bytes:
    """40 ms."""
    time.sleep(0.040)
    return data[:8]


def work_50(data: bytes) -> bytes:
    """50 ms."""
    time.sleep(0.050)
    return data[:8]
