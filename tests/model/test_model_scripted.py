from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.fold import Answer, Fold
from peen.model.script import parse_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import CallDelta, CallStarted, Finished, ModelRequest, StreamEvent, TextDelta, UsageReported
from peen.wire.records import MessageRecord, Usage
from peen.wire.summary import StandsFor, omitted_text, summary_text, transcript_text


def user(text: str) -> MessageRecord:
    return MessageRecord(role="user", content=text)


def injected(text: str, kind: str) -> MessageRecord:
    return MessageRecord(role="user", content=text, injected=True, injected_kind=kind)


def spoken(answer: Answer) -> MessageRecord:
    return MessageRecord(role="assistant", content=answer.text, tool_calls=list(answer.calls) or None)


def spoken_text(text: str) -> MessageRecord:
    return MessageRecord(role="assistant", content=text)


def result(call_id: str, content: str) -> MessageRecord:
    return MessageRecord(role="tool", content=content, tool_call_id=call_id)


def upstream(script: str) -> ScriptedUpstream:
    return ScriptedUpstream("s", parse_script(script, source="s.yaml"), with_demo=False)


def request(*messages: MessageRecord, model: str = "script") -> ModelRequest:
    return ModelRequest(model_id=model, system="be good", messages=messages)


async def collect(source: ScriptedUpstream, asked: ModelRequest, seen: list[StreamEvent]) -> None:
    async with source.stream(asked) as events:
        async for event in events:
            seen.append(event)  # noqa: PERF401 - what came before a failure is kept


async def events_of(source: ScriptedUpstream, asked: ModelRequest) -> list[StreamEvent]:
    seen: list[StreamEvent] = []
    await collect(source, asked, seen)
    return seen


async def ask(source: ScriptedUpstream, *messages: MessageRecord, model: str = "script") -> Answer:
    fold = Fold("made")
    for event in await events_of(source, request(*messages, model=model)):
        fold.add(event)
    return fold.finish()


TWO_TURNS = """
turns:
  - rounds:
      - calls: [{name: runCommand, arguments: {command: "true"}}, {name: readFile, arguments: {path: a}, id: own}]
      - text: "It said {lastResult}."
  - rounds:
      - text: The second turn.
"""


async def test_rounds_and_turns_follow_from_the_messages_alone() -> None:
    messages = [user("first")]

    first = await ask(upstream(TWO_TURNS), *messages)
    messages += [spoken(first), result("call_0_0_0", "one"), result("own", "two"), injected("<events>", "events")]
    second = await ask(upstream(TWO_TURNS), *messages)
    messages += [spoken(second), user("next"), injected("<skill>", "skill")]
    third = await ask(upstream(TWO_TURNS), *messages)

    assert [(call.id, bytes(call.arguments)) for call in first.calls] == [
        ("call_0_0_0", b'{"command":"true"}'),
        ("own", b'{"path":"a"}'),
    ]
    assert first.finish_reason == "tool_calls"
    assert (second.text, second.finish_reason) == ("It said two.", "stop")
    assert third.text == "The second turn."


async def test_a_turn_that_failed_without_an_answer_still_counts() -> None:
    failed = MessageRecord(role="system", content="The turn failed.")

    answer = await ask(upstream(TWO_TURNS), user("first"), failed, user("again"))

    assert answer.text == "The second turn."


async def test_a_handler_that_wakes_the_session_begins_a_turn() -> None:
    answer = await ask(upstream(TWO_TURNS), user("first"), spoken_text("done"), injected("<handler>", "handler"))

    assert answer.text == "The second turn."


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([user("1"), spoken_text("x"), user("2"), spoken_text("y"), user("3")], "has 2 turns and message 3"),
        (
            [user("1"), spoken_text("x"), user("2"), spoken_text("y")],
            r"turns\[1\] has 1 rounds and was asked for round 2",
        ),
    ],
)
async def test_a_script_that_has_ended_says_so(messages: list[MessageRecord], problem: str) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        await ask(upstream(TWO_TURNS), *messages)

    assert (caught.value.kind, caught.value.retryable) == ("script_ended", False)
    assert "s.yaml: model 'script'" in str(caught.value)


async def test_the_last_turn_may_repeat_for_ever() -> None:
    source = upstream(f"repeatLastTurn: true\n{TWO_TURNS}")

    answer = await ask(source, user("1"), spoken_text("x"), user("2"), spoken_text("y"), user("3"))

    assert answer.text == "The second turn."


async def test_pieces_have_the_length_that_the_script_asks_for() -> None:
    source = upstream("turns: [{rounds: [{text: abcde, chunk: 2, calls: [{name: f, arguments: 'xyz'}]}]}]")

    events = await events_of(source, request(user("go")))

    assert [event.text for event in events if isinstance(event, TextDelta)] == ["ab", "cd", "e"]
    assert [event.json for event in events if isinstance(event, CallDelta)] == ["xy", "z"]
    assert [type(event) for event in events[-2:]] == [UsageReported, Finished]


async def test_tokens_are_estimated_unless_the_script_names_them() -> None:
    source = upstream("turns: [{rounds: [{text: abcde}]}, {rounds: [{text: x, usage: {prompt: 9, cacheRead: 2}}]}]")

    estimated = await ask(source, user("go"))
    named = await ask(source, user("go"), spoken_text("abcde"), user("on"))

    assert estimated.usage == Usage(prompt=3, completion=2)  # "be good" and "go" are 9 characters
    assert named.usage == Usage(prompt=9, cache_read=2)


async def test_an_instant_answer_can_be_cancelled_before_it_begins() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await ask(upstream(TWO_TURNS), user("first"))

    assert scope.cancelled_caught


async def test_a_status_fault_fails_as_often_as_it_says(autojump_clock: MockClock) -> None:
    source = upstream(
        "turns: [{rounds: [{text: fine, delayMs: 1000, "
        "fault: {kind: status, status: 429, times: 2, retryAfter: 1.5, message: slow down}}]}]"
    )

    outcomes: list[object] = []
    for _ in range(3):
        try:
            outcomes.append((await ask(source, user("go"))).text)
        except ModelError as exc:
            outcomes.append((str(exc), exc.kind, exc.retryable, exc.http_status, exc.retry_after_ms))
    with pytest.raises(ModelError):
        await ask(source, user("another conversation"))

    assert outcomes == [("slow down", "rate_limited", True, 429, 1500)] * 2 + ["fine"]
    assert trio.current_time() == 4.0  # four attempts, each after its delay


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [(400, "invalid_request", False), (429, "rate_limited", True), (503, "server_error", True)],
)
async def test_a_status_says_whether_trying_again_can_help(status: int, kind: str, retryable: bool) -> None:
    source = upstream(f"turns: [{{rounds: [{{fault: {{kind: status, status: {status}}}}}]}}]")

    with pytest.raises(ModelError) as caught:
        await ask(source, user("go"))

    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


async def test_a_cut_stream_ends_without_an_end_signal() -> None:
    source = upstream("turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: cut, afterPieces: 2}}]}]")

    events = await events_of(source, request(user("go")))

    assert events == [TextDelta("ab"), TextDelta("cd")]


async def test_a_fault_after_the_last_piece_still_spoils_the_end() -> None:
    source = upstream("turns: [{rounds: [{text: whole, fault: {kind: cut, afterPieces: 99}}]}]")

    assert await events_of(source, request(user("go"))) == [TextDelta("whole")]


async def test_an_error_breaks_a_call_in_the_middle() -> None:
    source = upstream(
        "turns: [{rounds: [{calls: [{name: f, arguments: {}}], "
        "fault: {kind: error, afterPieces: 2, message: overloaded}}]}]"
    )
    seen: list[StreamEvent] = []

    with pytest.raises(ModelError, match="overloaded") as caught:
        await collect(source, request(user("go")), seen)

    assert seen == [CallStarted(0, "call_0_0_0", "f"), CallDelta(0, "{}")]
    assert (caught.value.kind, caught.value.retryable) == ("server_error", True)


async def test_silence_lasts_until_the_caller_gives_up(autojump_clock: MockClock) -> None:
    source = upstream("turns: [{rounds: [{text: abcd, chunk: 2, fault: {kind: silence, afterPieces: 1}}]}]")
    seen: list[StreamEvent] = []

    with trio.move_on_after(120) as idle:
        await collect(source, request(user("go")), seen)

    assert idle.cancelled_caught
    assert seen == [TextDelta("ab")]


async def test_delays_are_kept_before_the_first_and_every_further_piece(autojump_clock: MockClock) -> None:
    source = upstream("turns: [{rounds: [{text: abcd, chunk: 2, delayMs: 1000, pieceDelayMs: 250}]}]")

    async with source.stream(request(user("go"))) as events:
        times = [(event, trio.current_time()) async for event in events]

    assert times[:2] == [(TextDelta("ab"), 1.0), (TextDelta("cd"), 1.25)]


async def test_a_request_that_a_strict_provider_refuses_is_refused_here_too() -> None:
    with pytest.raises(ModelError, match=r"messages\[0\]: an empty user message"):
        await ask(upstream(TWO_TURNS), user(""))


async def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ModelError, match="upstream 's' has no model 'other'") as caught:
        await ask(upstream(TWO_TURNS), user("go"), model="other")

    assert (caught.value.http_status, caught.value.retryable) == (404, False)


@given(
    turns=st.lists(st.lists(st.text(alphabet="abc {}:", min_size=1), min_size=1, max_size=3), min_size=1, max_size=3),
    chunk=st.integers(1, 4),
)
def test_the_same_script_and_messages_always_give_the_same_events(turns: list[list[str]], chunk: int) -> None:
    script = msgspec.json.encode(
        {"turns": [{"rounds": [{"text": f".{text}", "chunk": chunk} for text in rounds]} for rounds in turns]}
    ).decode()  # JSON is YAML

    async def play(sources: Sequence[ScriptedUpstream]) -> list[list[StreamEvent]]:
        played: list[list[StreamEvent]] = []
        messages: list[MessageRecord] = []
        for number, rounds in enumerate(turns):
            messages.append(user(f"message {number}"))
            for index, text in enumerate(rounds):
                source = sources[(number + index) % len(sources)]
                played.append(await events_of(source, request(*messages)))
                messages.append(spoken_text(f".{text}"))
        return played

    alone = trio.run(play, [upstream(script)])
    # Every round answered by whichever of two processes is there: nothing depends on what one of them saw before.
    apart = trio.run(play, [upstream(script), upstream(script)])

    assert alone == apart
    said = ["".join(event.text for event in events if isinstance(event, TextDelta)) for events in alone]
    assert said == [f".{text}" for rounds in turns for text in rounds]


# --- conversations that are too long ----------------------------------------------------------------------------------

LONG_SCRIPT = """
contextWindow: 1000
refuseOver: 200
summary: {text: They spoke of it.}
turns:
  - rounds: [{text: first}]
  - rounds: [{text: second}]
  - rounds: [{text: third}]
"""


async def test_who_asks_for_a_summary_gets_the_one_of_the_script_or_a_list_of_what_was_asked() -> None:
    asked = user(transcript_text("user: list the files\nassistant: a.txt\nuser: read a.txt"))

    assert (await ask(upstream(LONG_SCRIPT), asked)).text == "They spoke of it."
    listed = (await ask(upstream("turns: [{rounds: [{text: x}]}]"), asked)).text
    assert listed.startswith("The user asked for:\n- list the files\n- read a.txt\n")


async def test_a_script_goes_on_behind_a_summary_and_behind_what_was_left_out() -> None:
    source = upstream(LONG_SCRIPT)
    summary = injected(summary_text("x", "", StandsFor(2, 1)), "summary")
    note = injected(omitted_text(StandsFor(2, 1)), "omitted")

    assert (await ask(source, user("go on"))).text == "first"
    assert (await ask(source, summary, user("go on"))).text == "second"
    assert (await ask(source, summary, note, user("go on"))).text == "third"


async def test_a_script_goes_on_behind_answers_that_were_left_out_in_the_middle_of_a_turn() -> None:
    source = upstream("turns: [{rounds: [{text: a, repeat: 3}, {text: b}]}]")
    gone = injected(omitted_text(StandsFor(4, 0, 2)), "omitted")

    assert (await ask(source, user("go"), gone)).text == "a"
    assert (await ask(source, user("go"), gone, spoken_text("a"))).text == "b"


async def test_a_model_refuses_a_request_that_is_longer_than_it_takes() -> None:
    source = upstream(LONG_SCRIPT)

    assert (await ask(source, user("x" * 793))).text == "first"
    with pytest.raises(ModelError) as refused:
        await ask(source, user("x" * 794))
    assert (refused.value.kind, refused.value.http_status) == ("context_length_exceeded", 400)
