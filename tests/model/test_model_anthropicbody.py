"""What is sent to the Messages API, and that it stays the same from round to round."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from anthropic_kit import (
    STOP,
    TOOL,
    FakeReply,
    FakeTransport,
    ask,
    begun,
    called,
    ended,
    reply,
    request,
    result,
    sse,
    text,
    thinking,
    tool_use,
    upstream,
    user,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from peen.errors import ModelError
from peen.model.anthropicbody import KEPT, MessageBodies
from peen.model.anthropicmodels import ASSUMED_OUTPUT_TOKENS
from peen.model.fold import Answer, Fold
from peen.model.reasoning import kept_reasoning
from peen.wire.records import MessageRecord

MARK = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "h\u00e9", "signature": "s/+="}


def reasoning(*items: Any, upstream: str = "up", model: str = "m") -> msgspec.Raw:
    raw = [msgspec.Raw(msgspec.json.encode(item)) for item in items]
    return kept_reasoning(raw, upstream=upstream, model=model)


def system(content: str) -> MessageRecord:
    return MessageRecord(role="system", content=content)


async def sent(*messages: MessageRecord, **fields: Any) -> dict[str, Any]:
    transport = FakeTransport(FakeReply(whole()))
    await ask(upstream(transport), request(*messages, **fields))
    return transport.body()


async def contents(*messages: MessageRecord, **fields: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """Role and blocks of every message that is sent, without the cache marks."""
    found = (await sent(*messages, **fields))["messages"]
    return [(m["role"], [{k: v for k, v in b.items() if k != "cache_control"} for b in m["content"]]) for m in found]


async def test_a_request_holds_everything_in_the_providers_words() -> None:
    transport = FakeTransport(FakeReply(whole()))
    messages = (user("go"), reply("I look.", called("c1")), result("c1", "out"), user("and?"))
    await ask(upstream(transport, key="k"), request(*messages, tools=(TOOL,), model_id="claude-sonnet-4-5"))

    ((method, url, headers),) = transport.asked
    assert (method, url) == ("POST", "http://p:1/v1/messages")
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("k", "2023-06-01")
    assert "authorization" not in headers
    assert transport.body() == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 50_000,
        "stream": True,
        "tools": [
            {"name": "readFile", "description": "Read.", "input_schema": {"type": "object"}, "cache_control": MARK}
        ],
        "system": [{"type": "text", "text": "be good", "cache_control": MARK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": MARK}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "readFile", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "out"},
                    {"type": "text", "text": "and?", "cache_control": MARK},
                ],
            },
        ],
    }


async def test_what_is_missing_is_not_sent() -> None:
    body = await sent(system=" ", tools=())

    assert set(body) == {"model", "max_tokens", "stream", "messages"}


async def test_all_results_of_an_answer_are_in_one_message_before_anything_else() -> None:
    found = await contents(
        user("go"),
        reply("", called("a"), called("b")),
        result("a", "1"),
        result("b", "", is_error=True),
        system("note"),
        user("more"),
    )

    assert [role for role, _ in found] == ["user", "assistant", "user"]
    assert found[2][1] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
        {"type": "text", "text": "<system>\nnote\n</system>"},
        {"type": "text", "text": "more"},
    ]


async def test_a_conversation_that_begins_or_ends_with_an_answer_gets_the_message_that_is_missing() -> None:
    found = await contents(reply("hello"), user("go"), reply("done"))

    assert [role for role, _ in found] == ["user", "assistant", "user", "assistant", "user"]


async def test_arguments_and_names_that_the_provider_refuses_are_sent_as_it_takes_them() -> None:
    long = "x" * 200
    found = await contents(
        user("go"),
        reply("", called("functions.a:0", b'"text"', "read file"), called("ok-1", b"[1]", long)),
        result("functions.a:0"),
        result("ok-1"),
    )

    first, second = found[1][1]
    assert re.fullmatch("[a-zA-Z0-9_-]+", first["id"])
    assert (first["name"], first["input"]) == ("read_file", {"invalid": "text"})
    assert (second["id"], second["name"], second["input"]) == ("ok-1", long[:128], {"invalid": [1]})
    assert [block["tool_use_id"] for block in found[2][1]] == [first["id"], "ok-1"]


async def test_calls_without_a_result_are_refused_before_anything_is_sent() -> None:
    transport = FakeTransport()
    with pytest.raises(ModelError, match="no result for the call 'c'"):
        await ask(upstream(transport), request(user("go"), reply("", called("c"))))

    assert transport.asked == []


TEXTS = st.text("ab \n\u00e9", max_size=4)


@st.composite
def conversations(draw: st.DrawFn) -> list[list[MessageRecord]]:
    """What each round adds: whatever a conversation may hold, paired as the projection pairs it."""
    rounds: list[list[MessageRecord]] = []
    for turn in range(draw(st.integers(1, 6))):
        added = [draw(st.sampled_from([user("u"), system("s"), user("x", injected=True)]))]
        calls = [called(f"c{turn}_{index}") for index in range(draw(st.integers(0, 3)))]
        said = draw(TEXTS)
        if calls or said.strip():
            kept = reasoning(THOUGHT) if draw(st.booleans()) else msgspec.Raw(b"null")
            added = [*added, reply(said, *calls, provider_reasoning=kept)] if draw(st.booleans()) else added
            if added[-1].role == "assistant":
                added += [result(call.id, draw(TEXTS)) for call in calls]
        rounds.append(added)
    return rounds


@given(conversations())
def test_any_conversation_alternates_and_has_no_empty_block(rounds: list[list[MessageRecord]]) -> None:
    messages = [message for added in rounds for message in added]
    asked = request(*messages)
    bodies = MessageBodies("up")

    found = msgspec.json.decode(bodies.body(asked, bodies.conversation(asked), {"model": "m"}))["messages"]

    assert [message["role"] for message in found] == ["user", "assistant"] * (len(found) // 2) + ["user"]
    for message in found:
        assert message["content"]
        kinds = [block["type"] for block in message["content"]]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
        assert all(block["text"].strip() for block in message["content"] if block["type"] == "text")
    marked = [block for message in found for block in message["content"] if "cache_control" in block]
    assert len(marked) <= 2
    assert found[-1]["content"][-1]["cache_control"] == MARK


@given(conversations())
def test_what_was_sent_before_is_the_beginning_of_what_is_sent_next_but_for_the_marks(
    rounds: list[list[MessageRecord]],
) -> None:
    bodies = MessageBodies("up")
    messages: list[MessageRecord] = []
    before = b""
    for added in rounds:
        if messages and messages[-1].role != "assistant":
            messages.append(reply("answered"))
        messages += added
        if messages[-1].role == "assistant":
            messages.append(user("on"))
        asked = request(*messages, tools=[TOOL])
        body = bodies.body(asked, bodies.conversation(asked), {"model": "m"})

        assert body == whole_at_once_body(asked)
        plain = body.replace(b',"cache_control":{"type":"ephemeral"}', b"")
        assert plain.startswith(before)
        before = plain.removesuffix(b"]}]}")


def whole_at_once_body(asked: Any) -> bytes:
    bodies = MessageBodies("up")
    return bodies.body(asked, bodies.conversation(asked), {"model": "m"})


async def test_the_place_of_the_last_mark_is_marked_again_in_the_next_round() -> None:
    transport = FakeTransport(FakeReply(whole()), FakeReply(whole()))
    source = upstream(transport)
    first = [user("go"), reply("", called("a")), result("a")]
    await ask(source, request(*first))
    await ask(source, request(*first, reply("", called("b")), result("b")))

    def marks(index: int) -> set[tuple[int, int]]:
        return {
            (at, place)
            for at, message in enumerate(transport.body(index)["messages"])
            for place, block in enumerate(message["content"])
            if "cache_control" in block
        }

    assert marks(0) == {(0, 0), (2, 0)}
    assert marks(1) == {(2, 0), (4, 0)}


def test_a_conversation_that_is_continued_costs_only_its_new_messages() -> None:
    bodies = MessageBodies("up")
    messages = [user("go")]
    conversation = bodies.conversation(request(*messages))

    for index in range(KEPT):
        messages += [reply(f"a{index}"), user(f"u{index}")]
        assert bodies.conversation(request(*messages)) is conversation
    assert bodies.conversation(request(*messages, model_id="other")) is not conversation


# --- reasoning


async def round_trip(*events: Any, taken: Sequence[str] = ()) -> tuple[Answer, list[dict[str, Any]]]:
    """An answer, and the assistant message that is sent for it in the next round."""
    transport = FakeTransport(FakeReply(sse(begun(), *events, ended("tool_use"), STOP)), FakeReply(whole()))
    found = await ask(upstream(transport), fold=Fold("call_0", taken=taken))
    kept = reply(found.text, *found.calls, provider_reasoning=kept_reasoning(found.reasoning, upstream="up", model="m"))
    # Another client of the same upstream, as after a restart.
    await ask(upstream(transport), request(user("go"), kept, *(result(call.id) for call in found.calls)))
    blocks: list[dict[str, Any]] = transport.body()["messages"][1]["content"]
    return found, blocks


async def test_reasoning_comes_back_as_it_was_and_where_it_was() -> None:
    events = [*thinking(0, "o", "ne"), *text(1, "I look"), *tool_use(2, "{}"), *thinking(3, "two"), *text(4, "so")]

    found, blocks = await round_trip(*events, *tool_use(5, '{"a":1}', call_id="t2"))

    assert found.text == "I lookso"
    assert blocks == [
        {"type": "thinking", "thinking": "one", "signature": "sig"},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "toolu_1", "name": "readFile", "input": {}},
        {"type": "thinking", "thinking": "two", "signature": "sig"},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "t2", "name": "readFile", "input": {"a": 1}},
    ]


@pytest.mark.parametrize("ids", [("a", "a", "a"), ("", "", ""), ("used", "b", "b"), ("", "call_0_0", "used")])
async def test_reasoning_stays_in_its_place_where_ids_of_calls_were_replaced(ids: tuple[str, str, str]) -> None:
    events = [piece for at, call_id in enumerate(ids) for piece in (
        *thinking(2 * at, f"thought {at}"), *tool_use(2 * at + 1, f'{{"n":{at}}}', call_id=call_id)
    )]  # fmt: skip

    found, blocks = await round_trip(*events, taken=["used"])

    assert len({call.id for call in found.calls} | {"used"}) == 4
    assert [block.get("thinking") or (block["id"], block["input"]) for block in blocks] == [
        "thought 0", (found.calls[0].id, {"n": 0}), "thought 1", (found.calls[1].id, {"n": 1}),
        "thought 2", (found.calls[2].id, {"n": 2}),
    ]  # fmt: skip


async def test_unsigned_thinking_is_not_sent_and_never_becomes_text() -> None:
    _, blocks = await round_trip(*thinking(0, "loud", signature=()), *text(1, "so"), *tool_use(2))

    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert "loud" not in str(blocks)


@pytest.mark.parametrize(("name", "model"), [("other", "m"), ("up", "other"), ("up/m", "")])
async def test_reasoning_of_another_upstream_or_model_stays_away(name: str, model: str) -> None:
    message = reply("so", provider_reasoning=reasoning(THOUGHT, upstream=name, model=model))

    found = await contents(user("go"), message, user("on"))

    assert found[1] == ("assistant", [{"type": "text", "text": "so"}])


@pytest.mark.parametrize(
    "items", [["message", {"type": "reasoning", "encrypted_content": "x"}], [{"type": "reasoning"}]]
)
async def test_reasoning_from_before_the_upstream_spoke_this_dialect_stays_away(items: list[Any]) -> None:
    found = await contents(user("go"), reply("so", provider_reasoning=reasoning(*items)), user("on"))

    assert found[1] == ("assistant", [{"type": "text", "text": "so"}])


async def test_reasoning_behind_a_call_that_never_returned_is_left_out_with_it() -> None:
    later = {"type": "thinking", "thinking": "two", "signature": "s"}
    kept = reasoning(THOUGHT, {"type": "tool_use", "id": "gone"}, later)

    found = await contents(user("go"), reply("so", called("c"), provider_reasoning=kept), result("c"))

    assert [block["type"] for block in found[1][1]] == ["thinking", "text", "tool_use"]


BOUND = (
    b'{"type":"error","error":{"type":"invalid_request_error","message":"'
    b"messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to another conversation."
    b'"}}'
)


async def test_a_request_whose_reasoning_is_refused_says_so_and_goes_out_once() -> None:
    transport = FakeTransport(*[FakeReply(BOUND, status=400, content_type="application/json") for _ in range(2)])
    source = upstream(transport)
    messages = [user("go"), reply("so", called("c"), provider_reasoning=reasoning(THOUGHT)), result("c")]

    with pytest.raises(ModelError, match="bound to another conversation") as failed:
        await ask(source, request(*messages))
    assert (failed.value.kind, failed.value.retryable, failed.value.http_status) == ("reasoning_refused", False, 400)
    assert len(transport.bodies) == 1

    messages[1] = reply("so", called("c"))  # there is no reasoning to leave out
    with pytest.raises(ModelError) as failed:
        await ask(source, request(*messages))
    assert failed.value.kind == "invalid_request"


async def test_a_refusal_that_is_not_about_reasoning_is_told_at_once() -> None:
    told = BOUND.replace(b"Invalid `signature` in `thinking` block.", b"messages: too odd.")
    transport = FakeTransport(FakeReply(told, status=400, content_type="application/json"))
    message = reply("so", provider_reasoning=reasoning(THOUGHT))

    with pytest.raises(ModelError, match="too odd"):
        await ask(upstream(transport), request(user("go"), message, user("on")))


# --- levels and limits


def effort_of(body: dict[str, Any]) -> tuple[Any, Any]:
    return body.get("thinking"), body.get("output_config", {}).get("effort")


SUMMARY = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("model", "level", "expected", "used", "reason"),
    [
        ("claude-sonnet-4-5", None, (None, None), None, None),
        ("claude-sonnet-4-5", "high", ({"type": "enabled", "budget_tokens": 16_384}, None), "high", None),
        ("claude-opus-4-1", "max", ({"type": "enabled", "budget_tokens": 16_000}, None), "max", None),
        ("claude-haiku-4-5", "minimal", ({"type": "enabled", "budget_tokens": 1024}, None), "minimal", None),
        ("claude-3-5-haiku-latest", "high", (None, None), None, "model_does_not_take_reasoning_effort"),
        ("claude-opus-4-6", "high", ({"type": "adaptive"}, "high"), "high", None),
        ("claude-opus-4-6", "xhigh", ({"type": "adaptive"}, "high"), "high", "not_a_model_level"),
        ("claude-opus-4-8", "minimal", ({"type": "adaptive"}, "low"), "low", "below_model_minimum"),
        ("anthropic/claude-opus-4.8", "max", ({"type": "adaptive"}, "max"), "max", None),
        ("claude-opus-5-5", None, (SUMMARY, None), None, None),
        ("claude-opus-5-5", "medium", (SUMMARY, "medium"), "medium", None),
        ("claude-unheard-of-9", "max", ({"type": "adaptive"}, "high"), "high", "above_model_maximum"),
        ("m", "low", (None, None), None, "model_does_not_take_reasoning_effort"),
    ],
)
async def test_a_level_is_told_as_the_model_takes_it_and_a_change_is_logged(
    model: str, level: str | None, expected: tuple[Any, Any], used: str | None, reason: str | None
) -> None:
    with capture_logs() as logs:
        body = await sent(model_id=model, reasoning_effort=level)

    assert effort_of(body) == expected
    told = [(entry["requested"], entry["used"], entry["reason"]) for entry in logs if "effort" in entry["event"]]
    assert told == ([] if level is None else [(level, used, reason)])


async def test_a_short_answer_leaves_no_room_for_a_budget() -> None:
    body = await sent(model_id="claude-sonnet-4-5", reasoning_effort="low", max_output_tokens=2000)

    assert effort_of(body) == (None, None)
    assert body["max_tokens"] == 2000


async def test_a_turn_that_began_without_thinking_goes_on_without_it() -> None:
    """The provider refuses a budget for a turn whose first answer does not begin with reasoning."""
    model = "claude-sonnet-4-5"
    thought = reasoning(THOUGHT, model=model)
    began = [user("go"), reply("", called("a"), provider_reasoning=thought), result("a")]
    plain = [user("go"), reply("", called("a")), result("a")]

    async def budget(*messages: MessageRecord) -> Any:
        return (await sent(*messages, model_id=model, reasoning_effort="low")).get("thinking")

    assert await budget(*began, reply("", called("b")), result("b"))
    assert await budget(*plain, reply("", called("b"), provider_reasoning=thought), result("b")) is None
    assert await budget(*plain, reply("done"), user("next"))


@pytest.mark.parametrize(
    ("model", "wanted", "limit"),
    [
        ("m", None, ASSUMED_OUTPUT_TOKENS),
        ("m", 40_000, 40_000),
        ("claude-opus-5-5", None, 128_000),
        ("claude-opus-5-5", 4000, 4000),
        ("claude-3-haiku-20240307", 50_000, 4096),
        ("claude-haiku-4-5", None, 50_000),
    ],
)
async def test_the_limit_of_an_answer_is_the_models_or_the_reserve(model: str, wanted: int | None, limit: int) -> None:
    assert (await sent(model_id=model, max_output_tokens=wanted))["max_tokens"] == limit
