"""Topics: built and read by one class, and what they refuse."""

import pytest

from ispine.protocol.clock import DelayGauge
from ispine.protocol.errors import BadId, RemoteProtocolError
from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.protocol.topics import TOPICS, Topics, matches

TOPIC = Topics()


def test_a_task_topic_reads_back() -> None:
    topic = TOPIC.task(Capability("detect"), ClientId("c1"), TaskId("t1"))
    address = TOPIC.read_task(topic)
    assert (address.capability, address.client_id, address.task_id) == ("detect", "c1", "t1")
    assert TOPIC.read_task("ispine/tasks/detect/c1").task_id is None


@pytest.mark.parametrize(
    "topic",
    [
        "ispine/tasks/detect",
        "ispine/tasks/detect/c1/t1/more",
        "ispine/tasks/detect/c 1/t1",
        "ispine/tasks//c1/t1",
        "ispine/tasks/detect/c1/a\0b",
        "other/tasks/detect/c1/t1",
        "ispine/results/detect/c1",
    ],
)
def test_a_topic_of_another_shape_is_refused(topic: str) -> None:
    with pytest.raises(RemoteProtocolError):
        TOPIC.read_task(topic)


def test_the_client_of_a_faulty_topic_can_still_be_told() -> None:
    assert TOPIC.client_of("ispine/tasks/de tect/c1/t1") == "c1"
    assert TOPIC.client_of("ispine/tasks/detect/c 1/t1") is None


def test_the_root_is_a_setting() -> None:
    topics = Topics("home/ispine")
    assert topics.status(DeviceId("pi")) == "home/ispine/devices/pi/status"
    assert topics.read_device("home/ispine/devices/pi/status") == "pi"
    assert topics.read_pair("home/ispine/cancel/c/t", "cancel") == ("c", "t")
    with pytest.raises(BadId):
        Topics("a/#")


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("a/+/c", "a//c", True),
        ("a", "a/b", False),
    ],
)
def test_filters_match_as_the_standard_says(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


def test_only_state_is_retained_and_frames_never_are() -> None:
    retained = {spec.name for spec in TOPICS if spec.retained}
    assert retained == {"status", "state", "hub", "catalogue"}


def test_a_delay_is_what_exceeds_the_smallest_one() -> None:
    gauge = DelayGauge()
    offset = 10**15
    assert gauge.delay_ms(0, offset) == 0
    assert gauge.delay_ms(1_000_000, offset + 6_000_000) == 5
    assert gauge.delay_ms(2_000_000, offset + 1_000_000) == 0
    assert gauge.delay_ms(3_000_000, offset + 3_000_000) == 1


def test_a_slow_drift_is_forgotten_after_two_windows() -> None:
    gauge = DelayGauge(window_s=1)
    for second in range(10):
        last = gauge.delay_ms(second * 10**9, second * 1_001_000_000)
    assert last <= 2
