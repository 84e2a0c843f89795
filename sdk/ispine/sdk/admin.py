"""Questions to the scheduler from a client."""

import asyncio
import base64
import json
from collections.abc import Mapping

from ispine.protocol.errors import ConnectionLost, RemoteProtocolError, task_error
from ispine.protocol.ids import new_task_id
from ispine.protocol.link import Link, Message
from ispine.protocol.plain import BYTES_TYPE, JSON_TYPE
from ispine.protocol.state import AdminAnswer, AdminRequest, dump, parse
from ispine.protocol.topics import Topics
from ispine.sdk.answers import Answer


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
        TaskError: it is not done, or nobody knows it.
    """
    args = {"task": task_id, "client": client_id}
    found = await ask_hub(link, topics, client_id, "outcome", args, within_s=within_ms / 1e3)
    if not isinstance(found, dict):
        raise RemoteProtocolError("expected an outcome; the scheduler sent something else")
    device = str(found.get("device", ""))
    if found.get("status") != "done":
        error = found.get("error")
        told = error if isinstance(error, dict) else {}
        status = str(found.get("status"))
        message = str(told.get("message") or f"expected a finished task; this one is {status}")
        raise task_error(str(told.get("code") or status), message, task_id=task_id)
    if "result" in found:
        return Answer(json.dumps(found["result"]).encode(), JSON_TYPE, task_id, device)
    if "text" in found:
        return Answer(str(found["text"]).encode(), "text/plain", task_id, device)
    data = base64.b64decode(str(found.get("data", "")))
    return Answer(data, str(found.get("content_type", BYTES_TYPE)), task_id, device)


__all__ = ["ask_hub", "ask_outcome"]
