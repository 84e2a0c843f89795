"""docs/protocol.md says what the code does."""

import re
from pathlib import Path

from pydantic import BaseModel

from ispine.protocol import state
from ispine.protocol.chunks import CHUNK_BYTES
from ispine.protocol.codec import HEAD_SCHEMA, MAX_MESSAGE_BYTES, SCHEMAS
from ispine.protocol.link import MAX_PACKET_BYTES
from ispine.protocol.topics import TOPICS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells[1:] if not set(row[0]) <= {"-"}]


def section(title: str, level: str = "###") -> str:
    return PAGE.split(f"\n{level} {title}\n", 1)[1].split("\n#", 1)[0]


def test_every_topic_stands_in_the_table() -> None:
    documented = [(r[0], r[1].strip("`"), r[2], r[3], r[4]) for r in rows(section("Topics", "##"))]
    assert documented == [
        (t.name, t.pattern, t.message, str(t.qos), "yes" if t.retained else "no") for t in TOPICS
    ]


def test_every_field_of_every_message_stands_in_its_table() -> None:
    for name, schema in {"head": HEAD_SCHEMA, **SCHEMAS}.items():
        documented = {row[0].strip("`"): row[3] for row in rows(section(f"`{name}`"))}
        expected = {field: "no" if field in schema.defaults else "yes" for field in schema.checks}
        assert documented == expected, name


def test_every_message_type_has_a_section() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.M) == ["head", *SCHEMAS]


def test_the_json_messages_list_their_keys() -> None:
    for row in rows(section("JSON messages", "##")):
        cls: type[BaseModel] = getattr(state, row[0].strip("`"))
        assert re.findall(r"`(\w+)`(?=,|$| \()", row[1])[: len(cls.model_fields)]
        for field in cls.model_fields:
            assert f"`{field}`" in row[1], (row[0], field)


def test_the_limits_are_those_of_the_code() -> None:
    limits = section("Payloads", "##")
    for number in (CHUNK_BYTES, MAX_MESSAGE_BYTES, MAX_PACKET_BYTES, state.MAX_STATE_BYTES):
        assert f"{number:,}" in limits
