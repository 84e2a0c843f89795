"""What the built-in capabilities share: models loaded once, variants, options, timing."""

from collections.abc import Mapping
from typing import Any

from ispine.models.capability import (
    NO_OPTIONS,
    Output,
    RuntimeConfig,
    VariantInfo,
    measure,
)
from ispine.models.catalogue import Catalogue, Model
from ispine.models.images import DecodedImage, decode_image
from ispine.models.photos import sample_photo
from ispine.models.results import CapabilityResult, Source, encode_result
from ispine.models.runtime import CPU, Session, available_providers
from ispine.protocol.errors import ModelUnavailable, TaskRejected

JSON_TYPE = "application/json"


class VisionCapability:
    """One built-in capability: an image in, JSON out.

    Args:
        config: threads, providers, further models.

    Attributes:
        name: of the capability.
        stages: the files that one variant needs.
    """

    name = ""
    stages: tuple[str, ...] = ()
    option_names: tuple[str, ...] = ()
    idempotent = True
    max_batch = 1

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        models = Catalogue.default(config.model_dir).of(self.name)
        self._models: dict[str, Model] = {model.id: model for model in models}
        self._default = models[0]
        self._labels: dict[str, tuple[str, ...]] = {}
        self._sessions: dict[tuple[str, str, str], Session] = {}
        self.variants: tuple[VariantInfo, ...] = tuple(
            VariantInfo(
                variant.name,
                self._default.id,
                sum(stage.size_bytes for stage in variant.stages.values()),
                variant.quality,
                self._default.manifest.label_set,
            )
            for variant, _ in self._default.variants
        )

    def _providers(self) -> tuple[str, ...]:
        if self._config.providers is None:
            return (CPU,)
        offered = available_providers()
        wanted = tuple(name for name in self._config.providers if name in offered)
        return (*(name for name in wanted if name != CPU), CPU)

    def load(self) -> None:
        """Load and warm every variant of the default model.

        Raises:
            ModelUnavailable: a file is missing or damaged.
        """
        sample = self.sample()
        for variant in self.variants:
            self.run(sample, variant=variant.name)

    def session(self, model: Model, variant: str, stage: str) -> Session:
        """A loaded stage; loaded on first use."""
        key = (model.id, variant, stage)
        known = self._sessions.get(key)
        if known is None:
            data = model.read(variant, stage)
            name = f"{model.id} {variant} {stage}"
            known = self._sessions[key] = Session(
                data, name, threads=self._config.threads, providers=self._providers()
            )
        return known

    def label(self, model: Model, number: int) -> str:
        """The name of a class."""
        if model.id not in self._labels:
            self._labels[model.id] = model.labels()
        names = self._labels[model.id]
        return names[number] if 0 <= number < len(names) else f"class {number}"

    def run(
        self, data: bytes, *, variant: str = "", options: Mapping[str, object] = NO_OPTIONS
    ) -> Output:
        """See `CapabilityImpl.run`."""
        self.check_options(options)
        model, name = self._choose(variant, options)
        image = decode_image(data, model.manifest.decode_side or None)
        source = Source(image.width, image.height, model.id, name)
        result = self.answer(model, name, image, source, options)
        return Output(encode_result(result), JSON_TYPE, name)

    def _choose(self, variant: str, options: Mapping[str, object]) -> tuple[Model, str]:
        wanted = options.get("model")
        if wanted is None or wanted == self._default.id:
            usable = [v.name for v in self.variants if v.usable]
            if not usable:
                raise ModelUnavailable(f"expected a usable variant of {self._default.id}")
            return self._default, variant or usable[0]
        if not isinstance(wanted, str) or wanted not in self._models:
            raise TaskRejected(
                f"expected a model for {self.name} out of {', '.join(self._models)};"
                f" got {str(wanted)[:40]!r}"
            )
        model = self._models[wanted]
        names = [v.name for v, _ in model.variants]
        return model, variant if variant in names else names[-1]

    def check_options(self, options: Mapping[str, object]) -> None:
        """Refuse options that this capability does not know.

        Raises:
            TaskRejected: it got one.
        """
        from ispine.models.options import known

        known(options, "model", *self.option_names)

    def answer(
        self,
        model: Model,
        variant: str,
        image: DecodedImage,
        source: Source,
        options: Mapping[str, object],
    ) -> CapabilityResult:
        """Run the model on a decoded picture."""
        raise NotImplementedError

    def benchmark(self) -> Mapping[str, float]:
        """Median milliseconds by variant on the sample, decoding included."""
        return measure(self)

    def sample(self) -> bytes:
        """A photograph of the package."""
        return sample_photo()


def rounded(values: Any) -> list[float]:
    """Floats of an array."""
    return [float(value) for value in values]
