"""Every topic on one screen, and the only code that builds or reads a topic string.

`TOPICS` is the table; `docs/protocol.md` shows the same one and a test holds them together.
"""

from dataclasses import dataclass

from ispine.protocol.errors import RemoteProtocolError
from ispine.protocol.ids import (
    Capability,
    ClientId,
    DeviceId,
    TaskId,
    check_id,
    is_id,
)

DEFAULT_ROOT = "ispine"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One row of the table: what travels on a topic and how."""

    name: str
    pattern: str
    message: str
    qos: int
    retained: bool
    sender: str
    receiver: str


TOPICS: tuple[TopicSpec, ...] = (
    TopicSpec("status", "devices/<device>/status", "text", 1, True, "agent", "all"),
    TopicSpec("state", "devices/<device>/state", "DeviceState", 1, True, "agent", "all"),
    TopicSpec("heartbeat", "devices/<device>/heartbeat", "Heartbeat", 0, False, "agent", "hub"),
    TopicSpec("task", "tasks/<capability>/<client>/<task>", "Task", 0, False, "wearable", "hub"),
    TopicSpec("queue", "queues/<device>/<capability>", "Assignment", 0, False, "hub", "agent"),
    TopicSpec("reply", "replies/<device>", "Reply", 1, False, "agent", "hub"),
    TopicSpec("result", "results/<client>/<task>", "Result", 1, False, "hub", "wearable"),
    TopicSpec("event", "events/<client>/<task>", "TaskEvent", 0, False, "hub", "wearable"),
    TopicSpec("cancel", "cancel/<client>/<task>", "Cancel", 1, False, "wearable", "hub"),
    TopicSpec("admin", "admin/<admin>/<request>", "AdminRequest", 1, False, "admin", "hub"),
    TopicSpec("answer", "answers/<admin>/<request>", "AdminAnswer", 1, False, "hub", "admin"),
    TopicSpec("control", "control/<device>", "Control", 1, False, "hub", "agent"),
    TopicSpec("hub", "hub", "HubInfo", 1, True, "hub", "all"),
    TopicSpec("catalogue", "catalogue/<capability>", "CatalogueEntry", 1, True, "hub", "all"),
)


@dataclass(frozen=True, slots=True)
class TaskAddress:
    """What the topic of a task says; `task_id` is None where a plain client left it out."""

    capability: Capability
    client_id: ClientId
    task_id: TaskId | None


class Topics:
    """Builds and reads the topics below one root.

    Args:
        root: first levels of every topic; each level must be a valid id.
    """

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        for level in root.split("/"):
            check_id(level, "topic root level")
        self.root = root
        self._depth = root.count("/") + 1
        self.any_task = f"{root}/tasks/#"
        self.any_reply = f"{root}/replies/+"
        self.any_status = f"{root}/devices/+/status"
        self.any_state = f"{root}/devices/+/state"
        self.any_heartbeat = f"{root}/devices/+/heartbeat"
        self.any_cancel = f"{root}/cancel/+/+"
        self.any_admin = f"{root}/admin/+/+"
        self.any_catalogue = f"{root}/catalogue/+"
        self.hub = f"{root}/hub"

    def status(self, device: DeviceId) -> str:
        """Text `online` or `offline`, retained."""
        return f"{self.root}/devices/{device}/status"

    def state(self, device: DeviceId) -> str:
        """JSON `DeviceState`, retained."""
        return f"{self.root}/devices/{device}/state"

    def heartbeat(self, device: DeviceId) -> str:
        """`Heartbeat` once a second."""
        return f"{self.root}/devices/{device}/heartbeat"

    def task(self, capability: Capability, client: ClientId, task: TaskId) -> str:
        """`Task` from a wearable."""
        return f"{self.root}/tasks/{capability}/{client}/{task}"

    def queue(self, device: DeviceId, capability: Capability) -> str:
        """`Assignment` to one device."""
        return f"{self.root}/queues/{device}/{capability}"

    def reply(self, device: DeviceId) -> str:
        """`Reply` from one device."""
        return f"{self.root}/replies/{device}"

    def result(self, client: ClientId, task: TaskId) -> str:
        """`Result` to one client."""
        return f"{self.root}/results/{client}/{task}"

    def results_of(self, client: ClientId) -> str:
        """Filter for all results of one client."""
        return f"{self.root}/results/{client}/+"

    def event(self, client: ClientId, task: TaskId) -> str:
        """`TaskEvent` to one client."""
        return f"{self.root}/events/{client}/{task}"

    def events_of(self, client: ClientId) -> str:
        """Filter for all events of one client."""
        return f"{self.root}/events/{client}/+"

    def cancel(self, client: ClientId, task: TaskId) -> str:
        """`Cancel` from a wearable."""
        return f"{self.root}/cancel/{client}/{task}"

    def control(self, device: DeviceId) -> str:
        """`Control` to one device."""
        return f"{self.root}/control/{device}"

    def admin(self, admin: str, request: str) -> str:
        """`AdminRequest` from an admin."""
        return f"{self.root}/admin/{admin}/{request}"

    def answer(self, admin: str, request: str) -> str:
        """`AdminAnswer` to an admin."""
        return f"{self.root}/answers/{admin}/{request}"

    def answers_of(self, admin: str) -> str:
        """Filter for all answers to one admin."""
        return f"{self.root}/answers/{admin}/+"

    def catalogue(self, capability: Capability) -> str:
        """JSON `CatalogueEntry`, retained."""
        return f"{self.root}/catalogue/{capability}"

    def _levels(self, topic: str, kind: str, fewest: int, most: int) -> list[str]:
        levels = topic.split("/")[self._depth :]
        count = len(levels)
        if not topic.startswith(self.root + "/") or levels[0] != kind:
            raise RemoteProtocolError(f"expected a topic below {self.root}/{kind}; got {topic!r}")
        if not fewest <= count - 1 <= most:
            raise RemoteProtocolError(
                f"expected {fewest} to {most} levels below {self.root}/{kind}; got {count - 1}"
            )
        return levels[1:]

    def read_task(self, topic: str) -> TaskAddress:
        """What `tasks/<capability>/<client>[/<task>]` says.

        Raises:
            RemoteProtocolError: another shape; `BadId` for a level that is not an id.
        """
        levels = self._levels(topic, "tasks", 2, 3)
        check_id(levels[0], "capability")
        check_id(levels[1], "client id")
        if len(levels) == 3:
            check_id(levels[2], "task id")
        return TaskAddress(
            Capability(levels[0]),
            ClientId(levels[1]),
            TaskId(levels[2]) if len(levels) == 3 else None,
        )

    def client_of(self, topic: str) -> ClientId | None:
        """The client a faulty task topic can be answered to, None where it names none."""
        levels = topic.split("/")[self._depth :]
        return ClientId(levels[2]) if len(levels) > 2 and is_id(levels[2]) else None

    def read_device(self, topic: str) -> DeviceId:
        """The device in `devices/<device>/…`, `replies/<device>` or `control/<device>`."""
        levels = topic.split("/")[self._depth :]
        if len(levels) < 2:
            raise RemoteProtocolError(f"expected a device topic below {self.root}; got {topic!r}")
        return DeviceId(check_id(levels[1], "device id"))

    def read_pair(self, topic: str, kind: str) -> tuple[str, str]:
        """The two ids of `results|events|cancel|admin|answers/<a>/<b>`."""
        first, second = self._levels(topic, kind, 2, 2)
        check_id(first, f"{kind} id")
        check_id(second, f"{kind} id")
        return first, second


def matches(topic_filter: str, topic: str) -> bool:
    """Whether an MQTT filter matches a topic (MQTT 3.1.1, section 4.7)."""
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    if topic[:1] == "$" and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)
