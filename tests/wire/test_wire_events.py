from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from peen.execution.blocks import Blocks
from peen.model.stream import CallDelta, CallStarted, CallStopped, TextDelta, ThinkingDelta
from peen.session.ending import Ending, interrupted, terminal_event
from peen.store.feed import LOG_TYPES
from peen.wire.events import EVENTS, check_event
from peen.wire.publish import golden


def payload(name: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(golden.EVENTS[name]))
    return decoded


def check(name: str, data: object) -> str | None:
    return check_event(name, json.dumps(data).encode())


@pytest.mark.parametrize("name", EVENTS)
def test_a_payload_as_published_passes(name: str) -> None:
    assert check(name, payload(name)) is None


@pytest.mark.parametrize("name", EVENTS)
def test_an_unknown_member_is_a_mistake_of_ours(name: str) -> None:
    problem = check(name, {**payload(name), "surprise": 1})

    assert problem == "surprise: is not a known field"


@pytest.mark.parametrize("name", EVENTS)
def test_a_missing_member_is_named(name: str) -> None:
    for member in payload(name):
        rest = {key: value for key, value in payload(name).items() if key != member}
        is_optional = member in {"finishReason", "error"} or (name, member) == ("notice.created", "data")
        assert (check(name, rest) is None) == is_optional
        if not is_optional:
            assert member in str(check(name, rest))


def test_what_is_no_event_or_no_json_is_said_and_nothing_is_raised() -> None:
    assert check("turn.exploded", {}) == "type: turn.exploded is not an event of this release"
    assert str(check_event("turn.cancelled", b"{")).startswith("data: is not one valid JSON value")
    assert str(check_event("turn.cancelled", b'{"reason":"\xff"}')) != "None"
    assert check("turn.cancelled", []) == "data: expected `object`, got `array`"
    deep = b'{"callId":"c","name":"n","arguments":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert check_event("tool.use", deep) is not None


def test_a_frame_of_one_block_type_does_not_pass_as_another() -> None:
    assert check("content_block_stop", payload("content_block_start")) is not None
    assert check("content_block_start", {**payload("content_block_start"), "content_block": {"type": "image"}})
    assert check("content_block_stop", {"type": "content_block_stop", "index": -1}) is not None


def test_arguments_that_are_no_object_are_passed_on_as_the_model_wrote_them() -> None:
    assert check("tool.use", {"callId": "c", "name": "readFile", "arguments": "hello.txt"}) is None


def test_blocks_of_every_kind_are_as_published() -> None:
    blocks = Blocks()
    for item in (
        ThinkingDelta("hm"),
        TextDelta("so"),
        CallStarted(0, "call_0_0", "readFile"),
        CallDelta(0, '{"path":'),
        CallStopped(0),
    ):
        blocks.feed(item)
    blocks.close()
    records = [*blocks.take(), *blocks.tool_result("call_0_0", "hello", is_error=True)]

    kinds = {record.type for record in records}
    assert kinds == {"content_block_start", "content_block_delta", "content_block_stop"}
    assert [check_event(record.type, bytes(record.data)) for record in records] == [None] * len(records)


@pytest.mark.parametrize(
    "ending",
    [
        Ending(state="failed", reason="agentRun", error="e" * 5000, classification="agentRun"),
        Ending(state="failed", reason="timeout", error="", classification="timeout"),
        Ending(state="cancelled", reason="stopped", error="", classification="cancelled"),
        interrupted("interrupted", "lost"),
        interrupted("shutdown", "stopping"),
    ],
    ids=lambda ending: f"{ending.state}-{ending.reason}",
)
def test_every_end_that_is_no_answer_is_as_published(ending: Ending) -> None:
    event = terminal_event(ending)

    assert check_event(event.type, event.data) is None


def test_types_that_the_session_log_refers_to_are_events() -> None:
    assert LOG_TYPES.keys() - {"turn.resumed"} <= EVENTS.keys()
