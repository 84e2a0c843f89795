"""Settings of an agent."""

import os
import re
import socket
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ispine.agent.rules import Rules
from ispine.protocol.topics import DEFAULT_ROOT


def default_device_id() -> str:
    """This machine's name, made fit to stand in a topic."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().split(".")[0]).strip("-")
    return name[:48] or "device"


class AgentConfig(BaseModel):
    """How an agent runs.

    Attributes:
        url: of the broker.
        device_id: unique in the fleet.
        name: for people.
        kind: `laptop`, `phone`, `board`, … for people.
        owner: whose device it is.
        slots: tasks at once; with 0, one for each `threads` cores that the rules allow.
        threads: of one model run.
        capabilities: names of built-in or installed capabilities; empty offers all that load.
        extra: further capabilities, `NAME=module:function`.
        model_dir: folder with further models.
        sensors_dir: a folder shaped like `/sys/class`, instead of the device's own sensors.
        rules: the owner's.
        slowdown: a test aid: makes every run take this many times longer, by sleeping.
        drain_s: how long a stop waits for running tasks.
        root: of the topics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    device_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = Field(
        default_factory=default_device_id
    )
    name: Annotated[str, Field(max_length=128)] = ""
    kind: Annotated[str, Field(max_length=128)] = ""
    owner: Annotated[str, Field(max_length=128)] = ""
    slots: Annotated[int, Field(ge=0, le=256)] = 0
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    capabilities: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    model_dir: Path | None = None
    sensors_dir: Path | None = None
    rules: Rules = Rules()
    slowdown: Annotated[float, Field(ge=1, le=1000)] = 1.0
    drain_s: Annotated[float, Field(ge=0, le=600)] = 5.0
    root: str = DEFAULT_ROOT

    @property
    def effective_slots(self) -> int:
        """`slots`, or what the cores and the owner's share allow."""
        if self.slots:
            return self.slots
        cores = (os.cpu_count() or 1) * self.rules.max_cpu_share
        return max(1, int(cores / self.threads))

    @property
    def duty(self) -> float:
        """Share of the time that a slot may work, so that all together keep the owner's share."""
        if self.rules.max_cpu_share == 1:
            return 1.0
        cores = os.cpu_count() or 1
        used = min(self.effective_slots * self.threads, cores)
        return min(cores * self.rules.max_cpu_share / used, 1.0)
