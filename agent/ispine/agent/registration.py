"""What this device really can do: load, warm and time each capability once."""

import logging
from collections.abc import Callable, Iterable
from typing import cast

from ispine.agent.config import AgentConfig
from ispine.models.capability import (
    CallableCapability,
    CapabilityImpl,
    Factory,
    RuntimeConfig,
    batch_of,
    discover,
    load_callable,
)
from ispine.protocol.errors import ConfigError, IspineError
from ispine.protocol.ids import check_id
from ispine.protocol.state import CapabilityState, VariantState

log = logging.getLogger(__name__)

MAX_BATCH = 64
"""More in one run only makes the first wait for the last."""


def make_capabilities(config: AgentConfig) -> list[CapabilityImpl]:
    """Load everything that the configuration names; blocks for some seconds.

    Raises:
        ConfigError: a capability that was named cannot be made, or none is left.
    """
    runtime = RuntimeConfig(threads=config.threads, model_dir=config.model_dir)
    known = discover()
    made = [_named(name, known, runtime) for name in config.capabilities]
    made += [_extra(spec, runtime) for spec in config.extra]
    if not config.capabilities and not config.extra:
        made = list(_all_that_load(known, runtime))
    if not made:
        raise ConfigError(
            "expected at least one capability on this device; none could be loaded;"
            " install the models with: pip install 'ispine[agent]'"
        )
    return made


def _named(name: str, known: dict[str, Factory], runtime: RuntimeConfig) -> CapabilityImpl:
    if name not in known:
        raise ConfigError(
            f"expected a capability out of {', '.join(sorted(known))}; got {name!r};"
            " for your own code write NAME=module:function"
        )
    capability = known[name](runtime)
    capability.load()
    return capability


def _extra(spec: str, runtime: RuntimeConfig) -> CapabilityImpl:
    name, equals, target = spec.partition("=")
    if not equals:
        raise ConfigError(f"expected NAME=module:function; got {spec!r}")
    check_id(name, "capability")
    capability = _of_target(name, load_callable(target), runtime)
    capability.load()
    return capability


def _of_target(
    name: str, target: Callable[[bytes], bytes], runtime: RuntimeConfig
) -> CapabilityImpl:
    """A function `bytes -> bytes`, or a class that is made with a RuntimeConfig."""
    if not isinstance(target, type):
        return CallableCapability(name, target)
    capability = cast("Factory", target)(runtime)
    if capability.name != name:
        raise ConfigError(
            f"expected {target.__name__} to be called {name!r}; its name is {capability.name!r};"
            f" write {capability.name}=…"
        )
    return capability


def _all_that_load(known: dict[str, Factory], runtime: RuntimeConfig) -> Iterable[CapabilityImpl]:
    for name, factory in known.items():
        try:
            capability = factory(runtime)
            capability.load()
        except (IspineError, ImportError) as error:
            log.warning("capability left out", extra={"capability": name, "why": str(error)})
            continue
        yield capability


def describe(capability: CapabilityImpl, slowdown: float = 1.0) -> CapabilityState:
    """What the device says about a loaded capability, with its own measurement as the prior."""
    measured = capability.benchmark()
    variants = tuple(
        VariantState(
            name=variant.name,
            model=variant.model,
            quality=variant.quality,
            label_set=variant.label_set,
            size_bytes=variant.size_bytes,
            service_ms=measured.get(variant.name, 1.0) * slowdown,
            usable=variant.usable,
        )
        for variant in capability.variants
    )
    return CapabilityState(
        name=capability.name,
        variants=variants,
        idempotent=capability.idempotent,
        max_batch=min(capability.max_batch, MAX_BATCH) if batch_of(capability) else 1,
    )
