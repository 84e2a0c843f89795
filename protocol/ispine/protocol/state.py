"""The retained JSON messages: device state, hub, catalogue, and the admin requests.

JSON, so that `mosquitto_sub` and Home Assistant can read them. Checked with pydantic: they are not
on the hot path. Unknown keys are ignored, so that devices of different versions work together.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ispine.protocol.errors import RemoteProtocolError
from ispine.protocol.messages import PROTOCOL_VERSION

ONLINE = b"online"
OFFLINE = b"offline"
MAX_STATE_BYTES = 64 * 1024

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Name = Annotated[str, Field(max_length=128)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class VariantState(_Wire):
    """One model variant as it runs on one device.

    Attributes:
        name: such as `int8`; "" for a capability without variants.
        model: id of the model.
        quality: 0 to 1, higher is better, comparable within one label set.
        label_set: variants with the same label set can stand in for each other.
        size_bytes: what must be loaded.
        service_ms: measured time of one run on this device, the scheduler's prior.
        load_ms: time to load it, 0 when it is loaded.
        usable: false where its answers deviated from the reference on this device.
    """

    name: Name = ""
    model: Name = ""
    quality: Share = 1.0
    label_set: Name = ""
    size_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0
    service_ms: Milliseconds
    load_ms: Milliseconds = 0.0
    usable: bool = True


class CapabilityState(_Wire):
    """One capability that a device really has."""

    name: Id
    variants: Annotated[tuple[VariantState, ...], Field(min_length=1, max_length=16, strict=False)]
    idempotent: bool = True
    max_batch: Annotated[int, Field(ge=1, le=1024)] = 1
    max_input_bytes: Annotated[int, Field(ge=1)] = 8 * 1024 * 1024


class DeviceState(_Wire):
    """What a device says about itself, retained.

    Attributes:
        device_id: equals the topic.
        boot: random number of this run.
        kind: `laptop`, `phone`, `board`, … in the device's own words.
        slots: tasks it runs at once.
        battery_pct: 0 to 100, None without a battery.
        is_charging: on mains power; true without a battery.
        temp_c: hottest relevant sensor in degrees Celsius, None when unknown.
        temp_soft_c: above it the device begins to slow down.
        temp_hard_c: at it the owner's rule refuses work.
        cpu_load: share of the whole CPU in use, 0 to 1, None when unknown.
        accepts: false while an owner's rule refuses work.
        refusal: that rule in words.
        is_draining: finishes what it holds, takes nothing new.
        rules: the owner's rules by name, for display.
        runtimes: execution providers that onnxruntime offers here.
    """

    device_id: Id
    boot: Annotated[int, Field(ge=0, lt=2**31)] = 0
    name: Name = ""
    kind: Name = ""
    owner: Name = ""
    version: Name = ""
    protocol: Annotated[tuple[int, ...], Field(max_length=8, strict=False)] = (PROTOCOL_VERSION,)
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    capabilities: Annotated[tuple[CapabilityState, ...], Field(max_length=256, strict=False)] = ()
    battery_pct: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    is_charging: bool = True
    temp_c: Annotated[float, Field(ge=-60, le=200, allow_inf_nan=False)] | None = None
    temp_soft_c: float = 70.0
    temp_hard_c: float = 85.0
    cpu_load: Share | None = None
    accepts: bool = True
    refusal: Name = ""
    is_draining: bool = False
    rules: dict[str, str | float | bool] = Field(default_factory=dict)
    runtimes: Annotated[tuple[str, ...], Field(max_length=32, strict=False)] = ()


class HubInfo(_Wire):
    """The hub, retained on `ispine/hub`."""

    hub_id: Id
    boot: int = 0
    term: Annotated[int, Field(ge=0, lt=2**31)] = 1
    version: Name = ""
    protocol: Annotated[tuple[int, ...], Field(max_length=8, strict=False)] = (PROTOCOL_VERSION,)
    urls: Annotated[tuple[str, ...], Field(max_length=16, strict=False)] = ()
    standby: Annotated[tuple[str, ...], Field(max_length=16, strict=False)] = ()
    is_serving: bool = True


class ModelEntry(_Wire):
    """One model file of a capability."""

    model: Name
    variant: Name = ""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0)]


class CatalogueEntry(_Wire):
    """The models of one capability, retained on `ispine/catalogue/<capability>`."""

    capability: Id
    models: Annotated[tuple[ModelEntry, ...], Field(max_length=64, strict=False)] = ()


class AdminRequest(_Wire):
    """A question or an order to the scheduler."""

    verb: Id
    args: dict[str, str | int | float | bool | None] = Field(default_factory=dict)


class AdminFailure(_Wire):
    """Why an admin request was refused."""

    code: Name
    message: Annotated[str, Field(max_length=2048)]


class AdminAnswer(_Wire):
    """The answer: `data` is JSON text, its form depends on the verb."""

    status: Literal["ok", "refused"]
    data: str = "null"
    error: AdminFailure | None = None


Wire = TypeVar("Wire", bound=_Wire)


def parse(cls: type[Wire], payload: bytes) -> Wire:
    """Read one JSON message from an untrusted peer.

    Raises:
        RemoteProtocolError: not JSON of that form, or above 64 KiB.
    """
    if len(payload) > MAX_STATE_BYTES:
        raise RemoteProtocolError(
            f"expected {cls.__name__} of at most {MAX_STATE_BYTES} bytes; got {len(payload)}"
        )
    try:
        return cls.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the message"
        raise RemoteProtocolError(
            f"expected {cls.__name__}: {where}: {first['msg'][:120]}"
        ) from error


def dump(message: _Wire) -> bytes:
    """The JSON of one message."""
    return message.model_dump_json().encode()
