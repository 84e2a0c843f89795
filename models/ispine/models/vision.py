"""What the built-in capabilities share: models loaded once, variants, options, checks, timing."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from threading import Lock

from ispine.models.capability import NO_OPTIONS, Output, RuntimeConfig, VariantInfo, measure
from ispine.models.catalogue import Catalogue, Model
from ispine.models.images import DecodedImage, decode_image
from ispine.models.options import known, text
from ispine.models.photos import sample_photo
from ispine.models.results import JSON_TYPE, CapabilityResult, Source, encode_result
from ispine.models.runtime import CPU, Session, candidate_providers
from ispine.protocol.errors import ModelUnavailable, TaskError, TaskRejected


class VisionCapability:
    """One built-in capability: an image in, JSON out.

    Args:
        config: threads, providers, further models.

    Attributes:
        name: of the capability.
        option_names: options beside `model`.
        variants: of the default model.
        providers: execution providers in use, chosen by `load`.
    """

    name = ""
    option_names: tuple[str, ...] = ()
    idempotent = True
    max_batch = 1
    is_instant = False

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        models = Catalogue.default(config.model_dir).of(self.name)
        self._models: dict[str, Model] = {model.id: model for model in models}
        self._default = models[0]
        self._labels: dict[str, tuple[str, ...]] = {}
        self._sessions: dict[tuple[str, str, str], Session] = {}
        self._loading = Lock()
        self.providers: tuple[str, ...] = (CPU,)
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

    def load(self) -> None:
        """Load and warm the default model, choose providers, check the answers.

        A provider other than the CPU is used only where its answers agree with the reference and
        it is faster; a variant that deviates is marked as not usable.

        Raises:
            ModelUnavailable: a file is missing or damaged, or no variant agrees.
        """
        self._warm()
        for provider in candidate_providers(self._config.providers):
            self._try_provider(provider)
        problems = {variant.name: self._deviation(variant.name) for variant in self.variants}
        self.variants = tuple(
            replace(variant, usable=not problems[variant.name]) for variant in self.variants
        )
        if all(problems.values()):
            name, problem = next(iter(problems.items()))
            raise ModelUnavailable(
                f"expected {self._default.id} to answer as its reference; {name}: {problem};"
                " see: ispine models verify"
            )

    def _warm(self) -> None:
        sample = self.sample()
        for variant in self.variants:
            self.run(sample, variant=variant.name)

    def _deviation(self, variant: str) -> str:
        from ispine.models.verifying import compare

        return compare(self, self._default.id, variant)

    def _try_provider(self, provider: str) -> None:
        """Change to a provider if it agrees with the reference and is faster."""
        before, before_sessions = self.providers, self._sessions
        before_ms = sum(self.benchmark().values())
        self.providers, self._sessions = (provider, CPU), {}
        try:
            self._warm()
            agrees = not any(self._deviation(variant.name) for variant in self.variants)
            if agrees and sum(self.benchmark().values()) < before_ms:
                return
        except TaskError:
            # A provider that cannot run the model is no fault: the one before stays.
            agrees = False
        self.providers, self._sessions = before, before_sessions

    def session(self, model: Model, variant: str, stage: str) -> Session:
        """A loaded stage; loaded on first use.

        Raises:
            ModelUnavailable: it is missing, damaged, or does not load.
        """
        key = (model.id, variant, stage)
        known_session = self._sessions.get(key)
        if known_session is not None:
            return known_session
        with self._loading:
            if key not in self._sessions:
                self._sessions[key] = Session(
                    model.read(variant, stage),
                    f"{model.id} {variant} {stage}",
                    threads=self._config.threads,
                    providers=self.providers,
                )
            return self._sessions[key]

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
        known(options, "model", *self.option_names)
        model, name = self._choose(variant, options)
        image = decode_image(data, model.manifest.decode_side or None)
        source = Source(image.width, image.height, model.id, name)
        result = self.answer(model, name, image, source, options)
        return Output(encode_result(result), JSON_TYPE, name)

    def _choose(self, variant: str, options: Mapping[str, object]) -> tuple[Model, str]:
        wanted = text(options, "model", self._default.id)
        if wanted not in self._models:
            raise TaskRejected(
                f"expected a model for {self.name} out of {', '.join(self._models)};"
                f" got {wanted!r}; see: ispine models list"
            )
        if wanted == self._default.id:
            return self._default, self._usable(variant)
        # The scheduler names variants of the default model; another model has its own.
        model = self._models[wanted]
        names = [other.name for other, _ in model.variants]
        return model, variant if variant in names else names[-1]

    def _usable(self, variant: str) -> str:
        names = [info.name for info in self.variants if info.usable]
        if variant in names or (not variant and names):
            return variant or names[0]
        raise ModelUnavailable(
            f"expected a variant of {self._default.id} out of {', '.join(names) or 'none'};"
            f" got {variant[:64]!r}; see: ispine models verify"
        )

    @abstractmethod
    def answer(
        self,
        model: Model,
        variant: str,
        image: DecodedImage,
        source: Source,
        options: Mapping[str, object],
    ) -> CapabilityResult:
        """Run the model on a decoded picture.

        Raises:
            TaskRejected: an option is wrong.
            ExecutionFailed: the model failed.
        """

    def benchmark(self) -> Mapping[str, float]:
        """Median milliseconds by usable variant on the sample, decoding included."""
        return measure(self)

    def sample(self) -> bytes:
        """A picture of the package."""
        return sample_photo()
