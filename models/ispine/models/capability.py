"""What a device can do for others: the contract, and how capabilities are found.

A capability takes bytes and answers bytes. The built-in ones run ONNX models; any Python callable
`bytes -> bytes` can be one too, by entry point or by name. Nothing heavy is imported here.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from time import perf_counter
from typing import Protocol, cast

from ispine.protocol.errors import ConfigError, ExecutionFailed, TaskError

GROUP = "ispine.capabilities"
BYTES_TYPE = "application/octet-stream"
NO_OPTIONS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How a device runs models.

    Attributes:
        threads: for one run of one model.
        providers: execution providers in order of preference, None for the device's own choice.
        model_dir: folder with further models and variants; None for the user's data folder.
    """

    threads: int = 1
    providers: tuple[str, ...] | None = None
    model_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """One variant of a capability.

    Attributes:
        name: such as `int8`; "" for a capability without variants.
        model: id of the model.
        size_bytes: of its files.
        quality: 0 to 1, agreement with the reference; comparable within one label set.
        label_set: variants with the same label set can stand in for each other.
        usable: false where its answers deviated from the reference on this device.
    """

    name: str
    model: str = ""
    size_bytes: int = 0
    quality: float = 1.0
    label_set: str = ""
    usable: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """Answer of one run: the bytes, what they are, and which variant made them."""

    data: bytes
    content_type: str = BYTES_TYPE
    variant: str = ""


class CapabilityImpl(Protocol):
    """What an agent runs."""

    @property
    def name(self) -> str:
        """The capability's name in topics."""

    @property
    def variants(self) -> tuple[VariantInfo, ...]:
        """Best quality first; after `load`, `usable` says which agree with the reference here.

        A plain capability has one variant "".
        """

    @property
    def idempotent(self) -> bool:
        """False when running a task twice does harm; such tasks are never hedged."""

    @property
    def max_batch(self) -> int:
        """Tasks that one run can take together; above 1 it is a `BatchCapability`."""

    @property
    def is_instant(self) -> bool:
        """Whether a run takes so little that handing it to another thread would cost more."""

    def load(self) -> None:
        """Load and warm every variant that will be served. Blocks.

        Raises:
            ModelUnavailable: a model is missing, damaged, or wrong on this device.
        """

    def run(
        self, data: bytes, *, variant: str = "", options: Mapping[str, object] = NO_OPTIONS
    ) -> Output:
        """Answer one task. Blocks; safe for as many callers at once as the agent has slots.

        Args:
            data: the task's payload, untrusted.
            variant: which variant, "" for the first usable one.
            options: the task's options, untrusted.

        Raises:
            TaskRejected: the payload or an option is wrong.
            ModelUnavailable: no such variant here.
            ExecutionFailed: it ran and failed.
        """

    def benchmark(self) -> Mapping[str, float]:
        """Median milliseconds of one run by variant, measured now in under a second."""

    def sample(self) -> bytes:
        """A small valid payload."""


class BatchCapability(CapabilityImpl, Protocol):
    """One that answers several tasks in one run, up to `max_batch`."""

    def run_batch(
        self,
        items: Sequence[bytes],
        *,
        variant: str = "",
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> Sequence[Output | TaskError]:
        """Answer tasks of the same variant and options, in order. Blocks; may be called at once.

        An error in a task's place fails that task alone. If the run raises, the tasks are run one
        by one.
        """


def batch_of(capability: CapabilityImpl) -> BatchCapability | None:
    """The capability as one that runs batches, None where it does not."""
    has_batch = capability.max_batch > 1 and callable(getattr(capability, "run_batch", None))
    return cast("BatchCapability", capability) if has_batch else None


Factory = Callable[[RuntimeConfig], CapabilityImpl]


class CallableCapability:
    """A plain Python callable `bytes -> bytes` as a capability."""

    idempotent = True
    max_batch = 1
    is_instant = False

    def __init__(self, name: str, function: Callable[[bytes], bytes], sample: bytes = b"") -> None:
        self.name = name
        self.variants: tuple[VariantInfo, ...] = (VariantInfo(""),)
        self._function = function
        self._sample = sample

    def load(self) -> None:
        """Nothing to load."""

    def run(
        self, data: bytes, *, variant: str = "", options: Mapping[str, object] = NO_OPTIONS
    ) -> Output:
        """Call the function.

        Raises:
            TaskError: whatever typed error the function raised.
            ExecutionFailed: it raised anything else, or did not return bytes.
        """
        del variant, options
        try:
            answer = self._function(data)
        except TaskError:
            raise
        except Exception as error:  # task boundary: foreign code may raise anything
            raise ExecutionFailed(
                f"expected {self.name} to answer; it raised {type(error).__name__}:"
                f" {str(error)[:200]}; look at the capability's own code"
            ) from error
        if not isinstance(answer, bytes | bytearray | memoryview):
            raise ExecutionFailed(
                f"expected {self.name} to return bytes; it returned {type(answer).__name__};"
                " encode the answer"
            )
        return Output(bytes(answer))

    def benchmark(self) -> Mapping[str, float]:
        """One call on the sample; 1 ms where there is no sample to call it with."""
        if not self._sample:
            return {"": 1.0}
        return measure(self, runs=3)

    def sample(self) -> bytes:
        """The sample given at construction."""
        return self._sample


class EchoCapability(CallableCapability):
    """Answers what it got; option `reply_bytes` cuts the answer."""

    is_instant = True

    def __init__(self) -> None:
        super().__init__("echo", bytes, b"ispine")

    def run(
        self, data: bytes, *, variant: str = "", options: Mapping[str, object] = NO_OPTIONS
    ) -> Output:
        """The payload, or its first `reply_bytes` bytes."""
        from ispine.models.options import whole

        del variant
        return Output(data[: whole(options, "reply_bytes", 0, 2**31, len(data))])


def measure(
    capability: CapabilityImpl, *, runs: int = 5, budget_s: float = 0.8
) -> Mapping[str, float]:
    """Median milliseconds by usable variant, on the capability's sample.

    Variants take turns, so that a busy moment hits all of them. At least one run each is made;
    no further round begins after `budget_s`.
    """
    names = [variant.name for variant in capability.variants if variant.usable]
    sample = capability.sample()
    times: dict[str, list[float]] = {name: [] for name in names}
    started = perf_counter()
    for _ in range(runs):
        for name in names:
            before = perf_counter()
            capability.run(sample, variant=name)
            times[name].append((perf_counter() - before) * 1000)
        if perf_counter() - started > budget_s:
            break
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def load_callable(spec: str) -> Callable[[bytes], bytes]:
    """Import `module:function`.

    Raises:
        ConfigError: no such module, no such name in it, or not callable.
    """
    module_name, colon, path = spec.partition(":")
    if not (module_name and colon and path):
        raise ConfigError(
            f"expected a capability as module:function; got {spec!r};"
            " write for example --capability blur=my_module:blur"
        )
    try:
        target: object = importlib.import_module(module_name)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"expected to import {spec!r}; {type(error).__name__}: {error};"
            " check the spelling and that the module is on PYTHONPATH"
        ) from error
    if not callable(target):
        raise ConfigError(
            f"expected {spec!r} to be a function bytes -> bytes; it is {type(target).__name__}"
        )
    return cast("Callable[[bytes], bytes]", target)


def discover() -> dict[str, Factory]:
    """Every capability that can be made here, by name.

    The built-in ones, and the entry points of group `ispine.capabilities`. An entry point names a
    function `bytes -> bytes`, or a class that is made with a RuntimeConfig and fulfils
    CapabilityImpl. It is imported only when its factory is called. Built-in names win.
    """
    found: dict[str, Factory] = {
        point.name: partial(from_entry_point, point) for point in entry_points(group=GROUP)
    }
    found.update(detect=_detect, gesture=_gesture, classify=_classify, echo=_echo)
    return found


def from_entry_point(point: EntryPoint, config: RuntimeConfig) -> CapabilityImpl:
    """Make what an entry point names.

    Raises:
        ConfigError: it cannot be imported.
    """
    target = load_callable(point.value)
    if isinstance(target, type):
        return cast("Factory", target)(config)
    return CallableCapability(point.name, target)


def _detect(config: RuntimeConfig) -> CapabilityImpl:
    from ispine.models.detect import DetectCapability

    return DetectCapability(config)


def _gesture(config: RuntimeConfig) -> CapabilityImpl:
    from ispine.models.gesture import GestureCapability

    return GestureCapability(config)


def _classify(config: RuntimeConfig) -> CapabilityImpl:
    from ispine.models.classify import ClassifyCapability

    return ClassifyCapability(config)


def _echo(config: RuntimeConfig) -> CapabilityImpl:
    del config
    return EchoCapability()
