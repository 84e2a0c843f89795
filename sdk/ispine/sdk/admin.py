"""Questions to the scheduler from a client."""

import asyncio
import base64
import json
from collections.abc import Mapping

from ispine.protocol.errors import (
    BadId,
    ConnectionLost,
    RemoteProtocolError,
    TaskError,
    TaskRejected,
    task_error,
)
from ispine.protocol.ids import check_id, new_task_id
from ispine.protocol.link import Link, Message
from ispine.protocol.plain import BYTES_TYPE, JSON_TYPE
from ispine.protocol.state import AdminAnswer, AdminRequest, dump, parse
from ispine.protocol.topics import Topics
from ispine.sdk.answers import Answer

LONGEST_MS = 3_600_000


async def ask_hub(
    link: Link,
    topics: Topics,
    asker: str,
    verb: str,
    args: Mapping[str, str | int | float | bool | None] | None = None,
    *,
    within_s: float = 2.0,
) -> object:
    """Ask the scheduler; the answer as plain JSON values.

    Raises:
        ConnectionLost: no scheduler answers.
        TaskError: it refuses; the class says why.
    """
    request = new_task_id()
    answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def on_answer(message: Message) -> None:
        if not answered.done():
            answered.set_result(message)

    topic = topics.answer(asker, request)
    await link.subscribe(topic, on_answer, qos=1)
    try:
        body = dump(AdminRequest(verb=verb, args=dict(args or {})))
        link.publish(topics.admin(asker, request), body, qos=1)
        async with asyncio.timeout(within_s):
            message = await answered
    except TimeoutError as error:
        raise ConnectionLost(
            f"expected the scheduler at {link.endpoint} to answer within {within_s:g} s;"
            " it did not; is a hub running there? 'ispine doctor' tells more"
        ) from error
    finally:
        await link.unsubscribe(topic)
    answer = parse(AdminAnswer, message.payload)
    if answer.error is not None:
        raise task_error(answer.error.code, answer.error.message)
    try:
        return json.loads(answer.data)
    except ValueError as error:
        raise RemoteProtocolError("expected JSON from the scheduler; it sent none") from error


async def ask_outcome(
    link: Link, topics: Topics, client_id: str, task_id: str, within_ms: float
) -> Answer:
    """The outcome of an earlier task of this client.

    Raises:
        TaskError: it is not done, or nobody knows it; `fields["code"]` is `open` while it waits.
        ConnectionLost: no scheduler answers.
    """
    try:
        check_id(task_id, "task id")
    except BadId as error:
        raise TaskRejected(str(error), fields={"code": error.code}) from error
    if not 1 <= within_ms <= LONGEST_MS:
        raise TaskRejected(f"expected within_ms from 1 to {LONGEST_MS:,}; got {within_ms!r}")
    args = {"task": task_id, "client": client_id}
    found = await ask_hub(link, topics, client_id, "outcome", args, within_s=within_ms / 1e3)
    if not isinstance(found, dict):
        raise RemoteProtocolError("expected an outcome; the scheduler sent something else")
    if found.get("status") != "done":
        raise _error_of(found, task_id)
    data, content_type = _data_of(found)
    return Answer(
        data,
        content_type,
        task_id,
        str(found.get("device", "")),
        str(found.get("variant", "")),
        compute_ms=_number(found, "compute_ms"),
        total_ms=_number(found, "total_ms"),
    )


def _error_of(found: Mapping[str, object], task_id: str) -> TaskError:
    error = found.get("error")
    told = error if isinstance(error, dict) else {}
    status = str(found.get("status"))
    message = str(told.get("message") or f"expected a finished task; this one is {status}")
    return task_error(str(told.get("code") or status), message, task_id=task_id, fields=told)


def _data_of(found: Mapping[str, object]) -> tuple[bytes, str]:
    if "result" in found:
        return json.dumps(found["result"]).encode(), JSON_TYPE
    if "text" in found:
        return str(found["text"]).encode(), "text/plain"
    try:
        data = base64.b64decode(str(found.get("data", "")), validate=True)
    except ValueError as error:
        raise RemoteProtocolError(f"expected base64 from the scheduler; {error}") from error
    return data, str(found.get("content_type", BYTES_TYPE))


def _number(found: Mapping[str, object], name: str) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


__all__ = ["ask_hub", "ask_outcome"]
