"""Plain capabilities, options, and how capabilities are found."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ispine.models import options
from ispine.models.capability import (
    CallableCapability,
    CapabilityImpl,
    Output,
    RuntimeConfig,
    discover,
    from_entry_point,
    load_callable,
)
from ispine.protocol.errors import ConfigError, ExecutionFailed, TaskRejected


def reverse(data: bytes) -> bytes:
    return data[::-1]


class Shout(CallableCapability):
    def __init__(self, config: RuntimeConfig) -> None:
        super().__init__("shout", bytes.upper, b"hello")
        self.threads = config.threads


def test_a_callable_is_a_capability() -> None:
    capability: CapabilityImpl = CallableCapability("reverse", reverse, b"abc")
    capability.load()
    assert capability.run(b"abc") == Output(b"cba")
    assert [variant.name for variant in capability.variants] == [""]
    assert set(capability.benchmark()) == {""}
    assert CallableCapability("reverse", reverse).benchmark() == {"": 1.0}


def test_what_a_callable_raises_is_told() -> None:
    def broken(data: bytes) -> bytes:
        raise KeyError("no such colour")

    def refusing(data: bytes) -> bytes:
        raise TaskRejected("expected a colour; got none")

    with pytest.raises(ExecutionFailed, match="KeyError: 'no such colour'"):
        CallableCapability("paint", broken).run(b"")
    with pytest.raises(TaskRejected, match="expected a colour"):
        CallableCapability("paint", refusing).run(b"")
    with pytest.raises(ExecutionFailed, match="returned str"):
        CallableCapability("paint", lambda data: "red").run(b"")  # type: ignore[arg-type, return-value]


def test_echo_answers_what_it_got() -> None:
    echo = discover()["echo"](RuntimeConfig())
    assert echo.run(b"x" * 1000).data == b"x" * 1000
    assert echo.run(b"x" * 1000, options={"reply_bytes": 300}).data == b"x" * 300
    with pytest.raises(TaskRejected, match="reply_bytes"):
        echo.run(b"x", options={"reply_bytes": -1})


def test_built_in_capabilities_are_found() -> None:
    assert {"detect", "gesture", "classify", "echo"} <= set(discover())


def test_an_entry_point_is_a_function_or_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "entry_for_test.py").write_text(
        "def upper(data):\n    return data.upper()\n"
        "class Loud:\n"
        "    name = 'loud'\n"
        "    def __init__(self, config):\n        self.threads = config.threads\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plain = from_entry_point(EntryPoint("up", "entry_for_test:upper", "g"), RuntimeConfig())
    assert (plain.name, plain.run(b"a").data) == ("up", b"A")
    loud = from_entry_point(
        EntryPoint("loud", "entry_for_test:Loud", "g"), RuntimeConfig(threads=3)
    )
    assert loud.threads == 3  # type: ignore[attr-defined]
    del sys.modules["entry_for_test"]


def test_a_callable_is_loaded_by_name() -> None:
    assert load_callable("zlib:crc32")(b"") == 0  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    "spec", ["", "zlib", "zlib:", ":crc32", "no_such_module:f", "zlib:no_such", "sys:path", "..:f"]
)
def test_a_wrong_name_says_what_to_do(spec: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        load_callable(spec)


def test_options_are_checked() -> None:
    given = {"n": 3, "share": 0.5, "model": "m"}
    assert options.whole(given, "n", 0, 5, 1) == 3
    assert options.whole(given, "other", 0, 5, 1) == 1
    assert options.share(given, "share", 0.1) == 0.5
    assert options.text(given, "model", "") == "m"
    options.known(given, "n", "share", "model")
    for wrong in ("3", True, 9, -1, 2.5, None, [1]):
        with pytest.raises(TaskRejected, match="option n"):
            options.whole({"n": wrong}, "n", 0, 5, 1)
    for wrong in ("0.5", True, 1.5, float("nan"), None):
        with pytest.raises(TaskRejected, match="option s"):
            options.share({"s": wrong}, "s", 0.1)
    for wrong in (5, None, "x" * 65):
        with pytest.raises(TaskRejected, match="option m"):
            options.text({"m": wrong}, "m", "")
    with pytest.raises(TaskRejected, match="'nn'"):
        options.known({"nn": 1}, "n")
