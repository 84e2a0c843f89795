"""Write the reference answers: every model's fp32 variant on the pictures of the package.

python models/tools/make_golden.py models/optional models/ispine/models/data/golden.json
"""

import json
import sys
from pathlib import Path

from ispine.models.capability import RuntimeConfig, discover
from ispine.models.catalogue import Catalogue
from ispine.models.photos import reference_pictures


def main() -> None:
    """Write them."""
    optional, target = Path(sys.argv[1]), Path(sys.argv[2])
    answers: dict[str, dict[str, object]] = {}
    for model in Catalogue.default(optional):
        capability = discover()[model.manifest.capability](RuntimeConfig(model_dir=optional))
        answers[model.id] = {
            photo.name: json.loads(
                capability.run(photo.data, variant="fp32", options={"model": model.id}).data
            )
            for photo in reference_pictures()
        }
    target.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
