"""`ispine models`: what this device can run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import REFUSED, guarded, print_json, print_table, tracked, working

if TYPE_CHECKING:
    from ispine.models.catalogue import Model

app = typer.Typer(no_args_is_help=True, help="Models on this device.")
Folder = Annotated[Path | None, typer.Option("--models", help="Folder with further models.")]


def _row(model: "Model") -> dict[str, Any]:
    return {
        "model": model.id,
        "capability": model.manifest.capability,
        "default": model.manifest.is_default,
        "label_set": model.manifest.label_set,
        "licence": model.manifest.licence,
        "source": model.manifest.source,
        "input": model.manifest.input,
        "output": model.manifest.output,
        "variants": [
            {
                "name": variant.name,
                "quality": variant.quality,
                "size_bytes": sum(stage.size_bytes for stage in variant.stages.values()),
            }
            for variant, _ in model.variants
        ],
    }


@app.command("list")
@guarded
def list_models(models: Folder = None, as_json: AsJson = False) -> None:
    """All models and their variants."""
    from ispine.models.catalogue import Catalogue

    catalogue = Catalogue.default(models)
    rows = [_row(model) for model in catalogue]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("model", "capability", "variants", "size", "labels", "licence"),
        (
            (
                row["model"] + (" (default)" if row["default"] else ""),
                row["capability"],
                ", ".join(v["name"] for v in row["variants"]),
                ", ".join(f"{v['size_bytes'] / 1e6:.1f} MB" for v in row["variants"]),
                row["label_set"],
                row["licence"],
            )
            for row in rows
        ),
    )
    for name, why in catalogue.broken.items():
        typer.echo(f"left out: {name}: {why}", err=True)


@app.command()
@guarded
def show(
    model: Annotated[str, typer.Argument(help="Model id.")],
    models: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Everything about one model."""
    from ispine.models.catalogue import Catalogue

    row = _row(Catalogue.default(models).get(model))
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        print(f"{name:12} {value}")


@app.command()
@guarded
def add(
    file: Annotated[Path, typer.Argument(help="An ONNX file.")],
    task: Annotated[str, typer.Option(help="detect or classify.")],
    labels: Annotated[Path, typer.Option(help="Text file, one label a line.")],
    name: Annotated[str, typer.Option(help="Model id; the file's name without it.")] = "",
    licence: Annotated[str, typer.Option(help="Of the weights, for the record.")] = "unknown",
    models: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Add a model: NanoDet, YOLOX, SSD and classifier layouts are recognised."""
    from ispine.models.adding import add_model

    with working(f"trying out {file.name}"):
        manifest = add_model(file, task, labels, name, licence, models)
    if as_json:
        print_json({"model": manifest.id, "capability": manifest.capability})
    else:
        print(
            f"added {manifest.id} for {manifest.capability}; ask for it with --model {manifest.id}"
        )


@app.command()
@guarded
def bench(
    capability: Annotated[str, typer.Argument(help="detect, gesture or classify.")],
    threads: Annotated[int, typer.Option(min=1, max=64, help="Of one run.")] = 1,
    models: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Time every variant of a capability on this machine."""
    from ispine.models.capability import RuntimeConfig, discover
    from ispine.protocol.errors import ModelUnavailable

    factory = discover().get(capability)
    if factory is None:
        raise ModelUnavailable(f"expected a capability of this machine; got {capability!r}")
    made = factory(RuntimeConfig(threads=threads, model_dir=models))
    with working(f"timing {capability}"):
        made.load()
        times = dict(made.benchmark())
    if as_json:
        print_json({"capability": capability, "threads": threads, "ms": times})
    else:
        print_table(("variant", "median ms"), ((n, f"{ms:.1f}") for n, ms in times.items()))


@app.command()
@guarded
def verify(models: Folder = None, as_json: AsJson = False) -> None:
    """Check every file's digest and every model's answers on the photographs of the package."""
    from ispine.models.verifying import verify_all

    rows = [
        {"model": r.model, "variant": r.variant, "ok": not r.problem, "problem": r.problem}
        for r in tracked(verify_all(models), "checking models")
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("model", "variant", "result"),
            ((r["model"], r["variant"], r["problem"] or "as it should be") for r in rows),
        )
    if not all(row["ok"] for row in rows):
        raise typer.Exit(REFUSED)
