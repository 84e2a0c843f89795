"""From the core's actions to publishes."""

import logging
from dataclasses import replace

from ispine.protocol.chunks import Stamper
from ispine.protocol.errors import ConnectionLost
from ispine.protocol.ids import Capability, ClientId, TaskId
from ispine.protocol.link import Link
from ispine.protocol.messages import Cancel
from ispine.protocol.topics import Topics
from ispine.sdk.pending import SendTask

log = logging.getLogger(__name__)


class TaskSender:
    """Publishes tasks and cancels of one client.

    A task in chunks keeps its frames until the hub has it: pieces that are sent again must be cut
    from the same bytes as the first, and the head differs with every encoding.
    """

    def __init__(self, link: Link, topics: Topics, client_id: ClientId, stamper: Stamper) -> None:
        self._link = link
        self._topics = topics
        self._client_id = client_id
        self._stamper = stamper
        self._chunks: dict[str, list[bytes]] = {}

    def send(self, action: SendTask) -> None:
        """Publish a task, or some of its chunks.

        Raises:
            LocalProtocolError: it cannot be encoded.
            TooLarge: it is above 8 MiB with its options.
        """
        task = action.task
        frames = self._chunks.get(task.task_id)
        if frames is None:
            left = replace(task, ttl_ms=action.left_ms) if action.is_again else task
            frames = self._stamper.frames(left)
            if len(frames) > 1:
                self._chunks[task.task_id] = frames
        if action.only:
            frames = [frames[index] for index in action.only if index < len(frames)]
        topic = self._topics.task(
            Capability(task.capability), self._client_id, TaskId(task.task_id)
        )
        self._publish(topic, frames, 1 if task.mode == "durable" else 0)

    def cancel(self, task_id: str) -> None:
        """Tell the hub that a task was taken back."""
        frames = self._stamper.frames(Cancel(task_id, self._client_id))
        self._publish(self._topics.cancel(self._client_id, TaskId(task_id)), frames, 1)

    def forget(self, task_id: str) -> None:
        """The hub has the task, or it ended: its frames are not needed any more."""
        self._chunks.pop(task_id, None)

    def _publish(self, topic: str, frames: list[bytes], qos: int) -> None:
        try:
            for frame in frames:
                self._link.publish(topic, frame, qos=qos)
        except ConnectionLost:
            # Open tasks are sent again on the next connection, or end with their deadline.
            log.debug("not sent, the link is down", extra={"topic": topic})
