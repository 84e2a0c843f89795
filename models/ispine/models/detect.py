"""`detect`: objects in a picture."""

from collections.abc import Mapping

from ispine.models.catalogue import Model
from ispine.models.images import DecodedImage
from ispine.models.options import share, whole
from ispine.models.results import Detection, DetectResult, Source
from ispine.models.vision import VisionCapability

DEFAULT_MIN_SCORE = 0.4
MOST = 300


class DetectCapability(VisionCapability):
    """Boxes, labels and scores. Options: `min_score` (0 to 1), `max_results`, `model`."""

    name = "detect"
    option_names = ("min_score", "max_results")

    def answer(
        self,
        model: Model,
        variant: str,
        image: DecodedImage,
        source: Source,
        options: Mapping[str, object],
    ) -> DetectResult:
        """Run the detector; boxes in pixels of the submitted picture."""
        floor = share(options, "min_score", DEFAULT_MIN_SCORE)
        most = whole(options, "max_results", 1, MOST, 100)
        found = self.session(model, variant, "detect").run({"image": image.rgb})
        across, down = image.scale
        rows = zip(found["boxes"], found["labels"], found["scores"], strict=True)
        items = [
            Detection(
                self.label(model, int(label)),
                float(score),
                (
                    float(box[0]) * across,
                    float(box[1]) * down,
                    float(box[2]) * across,
                    float(box[3]) * down,
                ),
            )
            for box, label, score in rows
            if score >= floor
        ]
        items.sort(key=lambda item: -item.score)
        return DetectResult(tuple(items[:most]), source)
