"""`ispine run`: files through the fleet."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ispine.cli.options import DEFAULT_ROOT, AsJson, Root
from ispine.cli.output import REFUSED, error_json, guarded, print_json, tracked
from ispine.protocol.errors import ConfigError, TaskError, TaskRejected

if TYPE_CHECKING:
    from ispine.sdk import Answer, Spine

MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Order:
    """What is wanted for every file."""

    capability: str
    within_ms: float
    model: str
    save: Path | None
    as_json: bool


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
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Send files to the fleet and print what it finds, a line of JSON for each with --json."""
    from ispine.sdk import Spine

    order = Order(capability, within_ms, model, _folder(save), as_json)
    failures = 0
    with Spine.connect(url or None, fallback="local" if local else None, root=root) as spine:
        # In a terminal the results themselves show how far it is.
        for path in files if sys.stdout.isatty() else tracked(files, capability):
            try:
                _one(spine, order, path)
            except TaskError as error:
                failures += 1
                _say_failed(path, error, as_json)
    if failures:
        raise typer.Exit(REFUSED)


def _folder(save: Path | None) -> Path | None:
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"expected a folder at {save}; {error.strerror}") from error
    return save


def _say_failed(path: Path, error: TaskError, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(path), "error": error_json(error)})
    else:
        typer.echo(f"{path}: {error}", err=True)


def _one(spine: "Spine", order: Order, path: Path) -> None:
    from ispine.sdk.media import IMAGE_CAPABILITIES, image_bytes

    is_image = order.capability in IMAGE_CAPABILITIES
    data = image_bytes(path) if is_image else _read(path)
    options = {"model": order.model} if order.model else {}
    answer = spine.call(order.capability, data, within_ms=order.within_ms, options=options)
    if not is_image:
        _print_raw(path, answer, order.as_json)
        return
    items = _typed(order.capability, answer)
    if order.save is not None:
        _save(data, items, order.save / f"{path.stem}.jpg")
    if order.as_json:
        found = [asdict(item) for item in items]
        print_json({"file": str(path), "found": found, **_about(answer)})
    else:
        where = answer.device or "this machine"
        print(f"{path} ({where}, {answer.variant}, {answer.total_ms:.0f} ms)")
        for item in items:
            print(f"  {_line(item)}")


def _about(answer: "Answer") -> dict[str, object]:
    return {
        "task": answer.task_id,
        "device": answer.device,
        "variant": answer.variant,
        "total_ms": answer.total_ms,
    }


def _save(data: bytes, items: list[Any], path: Path) -> None:
    from ispine.models.annotate import annotate

    try:
        annotate(data, items, path)
    except OSError as error:
        raise ConfigError(
            f"expected to save {path}; {error.strerror or error};"
            " free some space or choose another --save"
        ) from error


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
    readable = _readable(answer)
    if as_json:
        told = {"file": str(path), "content_type": answer.content_type}
        print_json({**told, **(readable or _packed(answer)), **_about(answer)})
        return
    print(f"{path}: {len(answer.data)} bytes of {answer.content_type} from {answer.device}")
    for value in readable.values():
        print(f"  {value if isinstance(value, str) else json.dumps(value)}")


def _readable(answer: "Answer") -> dict[str, object]:
    """JSON or text as such; nothing where the answer is neither."""
    try:
        if answer.content_type.startswith("application/json"):
            return {"result": json.loads(answer.data)}
        if answer.content_type.startswith("text/"):
            return {"text": answer.data.decode()}
    except ValueError:
        return {}  # it is not what it says it is
    return {}


def _packed(answer: "Answer") -> dict[str, object]:
    import base64

    return {"data": base64.b64encode(answer.data).decode()}
