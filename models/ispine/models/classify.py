"""`classify`: what is in the scene."""

from collections.abc import Mapping

from ispine.models.catalogue import Model
from ispine.models.images import DecodedImage
from ispine.models.options import whole
from ispine.models.results import ClassifyResult, Label, Source
from ispine.models.vision import VisionCapability


class ClassifyCapability(VisionCapability):
    """The most likely labels. Options: `top` (1 to 5), `model`."""

    name = "classify"
    option_names = ("top",)

    def answer(
        self,
        model: Model,
        variant: str,
        image: DecodedImage,
        source: Source,
        options: Mapping[str, object],
    ) -> ClassifyResult:
        """Run the classifier on the central square."""
        top = whole(options, "top", 1, 5, 5)
        found = self.session(model, variant, "classify").run({"image": image.rgb})
        rows = zip(found["labels"], found["scores"], strict=True)
        items = [Label(self.label(model, int(label)), float(score)) for label, score in rows]
        return ClassifyResult(tuple(items[:top]), source)
