"""`ispine run`: files through the fleet."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import REFUSED, guarded, print_json
from ispine.protocol.errors import ConfigError, TaskError, TaskRejected

if TYPE_CHECKING:
    from ispine.sdk import Answer, Spine

MOST_BYTES = 64 * 1024 * 1024


@guarded
def run(
    capability: Annotated[str, typer.Argument(help="detect, gesture, classify, or your own.")],
    files: Annotated[list[Path], typer.Argument(help="Images, or any files.")],
    url: Annotated[
        str, typer.Option("--url", envvar="ISPINE_URL", help="The hub; found by itself if empty.")
    ] = "",
    within_ms: Annotated[float, typer.Option(help="Deadline of each file.")] = 2000.0,
    model: Annotated[str, typer.Option(help="A model other than the default.")] = "",
    save: Annotated[Path | None, typer.Option(help="Folder for annotated pictures.")] = None,
    local: Annotated[bool, typer.Option(help="Run here when no hub answers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send files to the fleet and print what it finds."""
    from ispine.sdk import Spine

    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"expected a folder at {save}; {error.strerror}") from error
    failures = 0
    with Spine.connect(url or None, fallback="local" if local else None) as spine:
        for path in files:
            try:
                _one(spine, capability, path, within_ms, model, save, as_json)
            except TaskError as error:
                failures += 1
                _say_failed(path, error, as_json)
    if failures:
        raise typer.Exit(REFUSED)


def _say_failed(path: Path, error: TaskError, as_json: bool) -> None:
    if as_json:
        told = {"code": error.code, "message": str(error), **dict(error.fields)}
        print_json({"file": str(path), "error": told})
    else:
        typer.echo(f"{path}: {error}", err=True)


def _one(
    spine: "Spine",
    capability: str,
    path: Path,
    within_ms: float,
    model: str,
    save: Path | None,
    as_json: bool,
) -> None:
    from ispine.sdk.request import IMAGE_CAPABILITIES, image_bytes

    is_image = capability in IMAGE_CAPABILITIES
    data = image_bytes(path) if is_image else _read(path)
    options = {"model": model} if model else {}
    answer = spine.call(capability, data, within_ms=within_ms, options=options)
    if not is_image:
        _print_raw(path, answer, as_json)
        return
    items = _typed(capability, answer)
    if save is not None:
        from ispine.models.annotate import annotate

        annotate(data, items, save / f"{path.stem}.jpg")
    if as_json:
        told = {"device": answer.device, "variant": answer.variant, "total_ms": answer.total_ms}
        print_json({"file": str(path), "found": [asdict(item) for item in items], **told})
    else:
        where = answer.device or "this machine"
        print(f"{path} ({where}, {answer.variant}, {answer.total_ms:.0f} ms)")
        for item in items:
            print(f"  {_line(item)}")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TaskRejected(f"expected a file of at most {MOST_BYTES:,} bytes at {path}")
        return path.read_bytes()
    except OSError as error:
        raise TaskRejected(f"expected a file at {path}; {error.strerror}") from error


def _typed(capability: str, answer: "Answer") -> list[Any]:
    from ispine.sdk import answers

    if capability == "detect":
        return list(answers.detections(answer))
    if capability == "gesture":
        return list(answers.hands(answer))
    return list(answers.labels(answer))


def _line(item: Any) -> str:
    from ispine.models.results import Detection, Hand

    if isinstance(item, Detection):
        box = ", ".join(f"{value:.0f}" for value in item.box_xyxy)
        return f"{item.label} {item.score:.2f} at ({box})"
    if isinstance(item, Hand):
        return f"{item.handedness} hand, {item.gesture or 'no known gesture'} {item.score:.2f}"
    return f"{item.label} {item.score:.2f}"


def _print_raw(path: Path, answer: "Answer", as_json: bool) -> None:
    import base64

    if as_json:
        print_json(
            {
                "file": str(path),
                "content_type": answer.content_type,
                "data": base64.b64encode(answer.data).decode(),
                "device": answer.device,
                "total_ms": answer.total_ms,
            }
        )
    else:
        print(f"{path}: {len(answer.data)} bytes of {answer.content_type} from {answer.device}")
