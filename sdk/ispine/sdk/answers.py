"""What the caller gets back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ispine.protocol.errors import (
    ExecutionFailed,
    IspineError,
    TaskCancelled,
    TaskError,
    task_error,
)
from ispine.protocol.messages import Result, ResultStatus, Task

if TYPE_CHECKING:
    import asyncio

    from ispine.models.results import Detection, Hand, Label

Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a task that was done.

    Attributes:
        data: what the capability answered.
        content_type: what `data` is.
        task_id: for `ispine why` and, when durable, `outcome`.
        device: who answered; "" when it ran on the wearable itself.
        variant: the model variant that answered.
        attempts: assignments that were made.
        queue_ms: waiting in the scheduler and on the device.
        compute_ms: running.
        total_ms: from arrival at the scheduler to its decision.
    """

    data: bytes
    content_type: str
    task_id: str
    device: str = ""
    variant: str = ""
    attempts: int = 1
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """What came of one frame of a stream or one item of a map.

    Attributes:
        index: of the frame or item, from 0.
        value: the answer, None when there is none.
        error: why there is none; None also for a frame that was never sent because a newer one
            took its place.
        is_dropped: a newer frame took its place.
    """

    index: int
    value: Value | None = None
    error: TaskError | None = None
    is_dropped: bool = False


def answer_of(result: Result) -> Answer:
    """The answer in a result.

    Raises:
        TaskError: the task was not done; the class says why.
    """
    if result.status != "done":
        raise error_of(result)
    return Answer(
        result.data,
        result.content_type,
        result.task_id,
        result.device,
        result.variant,
        result.attempts,
        result.queue_ms,
        result.compute_ms,
        result.total_ms,
    )


def error_of(result: Result) -> TaskError:
    """The typed error of a result that is not `done`."""
    code = result.code or {"expired": "expired", "cancelled": "cancelled"}.get(
        result.status, "rejected"
    )
    message = result.message or f"the task ended as {result.status}"
    return task_error(code, message, task_id=result.task_id, fields=result.fields)


_STATUS: dict[str, ResultStatus] = {
    "expired": "expired",
    "cancelled": "cancelled",
    "execution_failed": "failed",
    "model_unavailable": "failed",
}


def refusal(task: Task, error: IspineError) -> Result:
    """The outcome of a task that this machine ends with an error."""
    fields = error.fields if isinstance(error, TaskError) else {}
    scalars = {k: v for k, v in fields.items() if v is None or isinstance(v, str | int | float)}
    status = _STATUS.get(error.code, "rejected")
    return Result(task.task_id, task.client_id, status, error.code, str(error), scalars)


def result_here(task: Task, done: "asyncio.Task[Answer]") -> Result:
    """The outcome of a task that ran, or should have run, on this machine."""
    if done.cancelled():
        return refusal(task, TaskCancelled("expected an answer; the client closed first"))
    error = done.exception()
    if error is not None:
        known = (
            error
            if isinstance(error, IspineError)
            else ExecutionFailed(
                f"expected {task.capability} to answer here; {type(error).__name__}: {error}"
            )
        )
        return refusal(task, known)
    answer = done.result()
    return Result(
        task.task_id,
        task.client_id,
        "done",
        data=answer.data,
        content_type=answer.content_type,
        variant=answer.variant,
        attempts=answer.attempts,
        queue_ms=answer.queue_ms,
        compute_ms=answer.compute_ms,
        total_ms=answer.total_ms,
    )


def detections(answer: Answer) -> "list[Detection]":
    """The typed result of `detect`."""
    from ispine.models.results import parse_detections

    return parse_detections(answer.data)


def hands(answer: Answer) -> "list[Hand]":
    """The typed result of `gesture`."""
    from ispine.models.results import parse_hands

    return parse_hands(answer.data)


def labels(answer: Answer) -> "list[Label]":
    """The typed result of `classify`."""
    from ispine.models.results import parse_labels

    return parse_labels(answer.data)
