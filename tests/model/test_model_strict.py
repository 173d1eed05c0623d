from __future__ import annotations

import msgspec
import pytest

from peen.errors import ModelError
from peen.model.stream import ModelRequest
from peen.model.strict import strict_request_check
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, ToolCallRecord

USER = MessageRecord(role="user", content="go")
SYSTEM = MessageRecord(role="system", content="the turn before was stopped")


def calls(*ids: str, text: str = "", name: str = "readFile") -> MessageRecord:
    records = [ToolCallRecord(id=call_id, name=name, arguments=msgspec.Raw(b"{}")) for call_id in ids]
    return MessageRecord(role="assistant", content=text, tool_calls=records)


def result(call_id: str, content: str = "") -> MessageRecord:
    return MessageRecord(role="tool", content=content, tool_call_id=call_id)


def check(*messages: MessageRecord, tools: tuple[ToolDefinition, ...] = ()) -> None:
    strict_request_check(ModelRequest(model_id="m", system="", messages=messages, tools=tools))


def test_a_conversation_with_paired_calls_passes() -> None:
    check(
        USER, calls("a", "b"), result("b"), result("a", "text"), USER, calls("c", text="Now this."), result("c"), SYSTEM
    )


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "must not be empty"),
        ([USER, calls("a")], "no result for the call 'a'"),
        ([USER, calls("a", "b"), result("a")], "no result for the call 'b'"),
        ([USER, calls("a"), USER, result("a")], "messages[2]: a user message where the result of the call 'a' belongs"),
        ([USER, calls("a"), SYSTEM, result("a")], "messages[2]: a system message"),
        ([USER, result("a")], "messages[1]: a result for the call 'a', which is not open"),
        ([USER, calls("a"), result("a"), result("a")], "messages[3]: a result for the call 'a'"),
        ([USER, calls("a", "a"), result("a")], "messages[1]: the call id 'a' was used before"),
        ([USER, calls("a"), result("a"), calls("a"), result("a")], "messages[3]: the call id 'a' was used before"),
        ([USER, calls(""), result("")], "a call without an id or a name"),
        ([USER, calls("a", name=""), result("a")], "a call without an id or a name"),
        ([MessageRecord(role="user", content=" \n")], "messages[0]: an empty user message"),
        ([USER, MessageRecord(role="assistant", content="")], "messages[1]: an empty assistant message"),
        ([USER, MessageRecord(role="assistant", content="", tool_calls=[])], "messages[1]: an empty assistant message"),
    ],
)
def test_what_a_strict_provider_refuses_is_refused_before_it_is_sent(
    messages: list[MessageRecord], problem: str
) -> None:
    with pytest.raises(ModelError) as caught:
        check(*messages)

    assert problem in str(caught.value)
    assert (caught.value.kind, caught.value.http_status, caught.value.retryable) == ("invalid_request", 400, False)


def test_two_tools_of_one_name_are_refused() -> None:
    tool = ToolDefinition(name="readFile", description="", parameters=msgspec.Raw(b"{}"))

    with pytest.raises(ModelError, match="a name occurs twice among readFile, readFile"):
        check(USER, tools=(tool, tool))
