"""What pre- and post-processing inside the graph costs, and what int8 gains.

    python bench/models.py [--json] [--runs 40] [--models models/optional] [--threads 1]

For every file of the catalogue: the bare net (the graph without the nodes that iSpine added)
against the whole graph on a photograph, in turns; and for detectors the same steps before the net
in Pillow and numpy, which the graph replaces. For every capability: one whole run, from JPEG bytes
to JSON bytes. Needs the extra `models`.
"""

import argparse
import json
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

from ispine.models.capability import RuntimeConfig, discover
from ispine.models.catalogue import Catalogue, Model
from ispine.models.images import decode_rgb
from ispine.models.photos import demo_photos, drawn_hand
from ispine.models.runtime import Session

ADDED = "ispine/"
SHAPES = {
    ("nanodet-g", "detect"): (1, 3, 416, 416),
    ("ssd-mobilenet-v2", "detect"): (1, 300, 300, 3),
    ("efficientnet-lite0", "classify"): (1, 3, 224, 224),
    ("mediapipe-hands", "palm"): (1, 192, 192, 3),
    ("mediapipe-hands", "hand"): (1, 224, 224, 3),
}
CROP = np.array([[1.5, 0.3, 20], [-0.3, 1.5, 40]], np.float32)


def bare_net(data: bytes, shape: Sequence[int]) -> onnx.ModelProto:
    """The net inside a finished graph, with an input of that shape."""
    model = onnx.load_model_from_string(data)
    own = [node for node in model.graph.node if not node.name.startswith(ADDED)]
    made = {name for node in own for name in node.output}
    weights = {tensor.name for tensor in model.graph.initializer}
    needed = {name for node in own for name in node.input if name}
    read = {
        name
        for node in model.graph.node
        if node.name.startswith(ADDED)
        for name in node.input
        if name in made
    }
    (entry,) = needed - made - weights
    inputs = [onnx.helper.make_tensor_value_info(entry, onnx.TensorProto.FLOAT, shape)]
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in sorted(read)
    ]
    graph = onnx.helper.make_graph(own, "bare", inputs, outputs, model.graph.initializer)
    return onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )


def in_turns(runs: int, **functions: Callable[[], object]) -> dict[str, list[float]]:
    """Milliseconds of each call, one after the other in every round, after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_number in range(runs + 1):
        for name, function in functions.items():
            before = perf_counter()
            function()
            if round_number:
                times[name].append((perf_counter() - before) * 1000)
    return times


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds."""
    values = np.percentile(times, [50, 95, 99])
    return {f"p{p}_ms": round(float(v), 2) for p, v in zip((50, 95, 99), values, strict=True)}


def by_hand(rgb: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    """Resize, normalise and lay out in Pillow and numpy, as one would without the graph."""
    is_nchw = shape[1] == 3
    height, width = shape[2:4] if is_nchw else shape[1:3]
    small = np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BILINEAR))
    pixels = (small.astype(np.float32) - np.float32(127.5)) * np.float32(1 / 127.5)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1) if is_nchw else pixels)[None]


def measure_file(
    model: Model, variant: str, stage: str, rgb: NDArray[np.uint8], runs: int, threads: int
) -> dict[str, object]:
    """One ONNX file: bare net, net with hand-made preparation, whole graph."""
    data = model.read(variant, stage)
    shape = SHAPES[model.id, stage]
    net = bare_net(data, shape)
    entry = net.graph.input[0]
    bare = Session(net.SerializeToString(), "bare net", threads=threads)
    whole = Session(data, "graph", threads=threads)
    inputs: dict[str, NDArray[np.generic]] = {"image": rgb}
    if stage == "hand":
        inputs["crop"] = CROP
    ready = by_hand(rgb, shape)
    times = in_turns(
        runs,
        net=lambda: bare.run({entry.name: ready}),
        prepared=lambda: bare.run({entry.name: by_hand(rgb, shape)}),
        graph=lambda: whole.run(inputs),
    )
    middle = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "model": model.id,
        "variant": variant,
        "stage": stage,
        "net_ms": round(middle["net"], 2),
        "net_with_pillow_numpy_ms": round(middle["prepared"], 2),
        "graph_ms": round(middle["graph"], 2),
        "x_net": round(middle["graph"] / middle["net"], 2),
        "x_pillow_numpy": round(middle["graph"] / middle["prepared"], 2),
    }


def measure_capability(name: str, config: RuntimeConfig, runs: int) -> list[dict[str, object]]:
    """Whole runs by variant, in turns."""
    capability = discover()[name](config)
    data = drawn_hand().data if name == "gesture" else demo_photos()[0].data
    functions: Mapping[str, Callable[[], object]] = {
        variant.name: lambda v=variant.name: capability.run(data, variant=v)  # type: ignore[misc]
        for variant in capability.variants
    }
    times = in_turns(runs, **functions)
    slowest = max(float(np.median(values)) for values in times.values())
    return [
        {
            "capability": name,
            "variant": variant,
            **percentiles(values),
            "per_second": round(1000 / float(np.mean(values)), 1),
            "gain": round(slowest / float(np.median(values)), 2),
        }
        for variant, values in times.items()
    ]


def commit() -> str:
    """Short id of the commit, "" outside a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", type=Path, default=Path("models/optional"))
    arguments = parser.parse_args()
    rgb = decode_rgb(next(photo.data for photo in demo_photos() if photo.name == "rocket"))
    files = [
        measure_file(model, variant.name, stage, rgb, arguments.runs, arguments.threads)
        for model in Catalogue.default(arguments.models)
        for variant, _ in model.variants
        for stage in variant.stages
        if (model.id, stage) in SHAPES
    ]
    config = RuntimeConfig(threads=arguments.threads, model_dir=arguments.models)
    whole = [
        row
        for name in ("detect", "classify", "gesture")
        for row in measure_capability(name, config, arguments.runs)
    ]
    report = {
        "machine": f"{platform.machine()} {platform.system()} python {platform.python_version()}",
        "commit": commit(),
        "threads": arguments.threads,
        "picture": list(rgb.shape),
        "files": files,
        "capabilities": whole,
    }
    if arguments.json:
        print(json.dumps(report))
        return
    for row in (*files, *whole):
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
