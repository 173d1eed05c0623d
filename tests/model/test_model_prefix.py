"""What a provider may cache: each request begins, byte for byte, as the one before it ended its conversation."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from peen.model.chatbody import ChatBodies
from peen.model.dialects import Bodies
from peen.model.responsesbody import ResponsesBodies
from peen.model.stream import ModelRequest
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, ToolCallRecord

TOOLS = (ToolDefinition(name="look", description="Looks.", parameters=Raw(b'{"type":"object"}')),)
ROUNDS = 6

DIALECTS: dict[str, Bodies] = {
    "chat": ChatBodies(),
    "chat, in one piece": ChatBodies(stream=False),
    "responses": ResponsesBodies("up"),
}


def conversation(rounds: int) -> list[MessageRecord]:
    """A turn after so many rounds with a tool each."""
    said = [MessageRecord(role="user", content="What is in there?\n“quoted” \u00e9")]
    for number in range(rounds):
        call = ToolCallRecord(id=f"c{number}", name="look", arguments=Raw(b'{"at": %d}' % number))
        said.append(MessageRecord(role="assistant", content=f"Looking {number}.", tool_calls=[call]))
        said.append(MessageRecord(role="tool", content=f"line {number}\n" * 9, tool_call_id=call.id))
    return said


def body(bodies: Bodies, rounds: int) -> bytes:
    request = ModelRequest(model_id="m", system="Be brief.", messages=conversation(rounds), tools=TOOLS)
    return bodies.body(request, None)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_request_begins_as_the_one_before_it_did_up_to_its_last_message(name: str) -> None:
    bodies = DIALECTS[name]
    for rounds in range(ROUNDS):
        before, after = body(bodies, rounds), body(bodies, rounds + 1)
        said = msgspec.json.encode(conversation(rounds)[-1].content)
        end = before.rindex(said) + len(said)

        assert after[:end] == before[:end]


@pytest.mark.parametrize("name", DIALECTS)
def test_a_worker_that_has_just_begun_sends_the_same_bytes(name: str) -> None:
    fresh: Bodies = ResponsesBodies("up") if name == "responses" else ChatBodies(stream="piece" not in name)

    assert body(fresh, ROUNDS) == body(DIALECTS[name], ROUNDS)
