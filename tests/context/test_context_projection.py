from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world_kit import call

from peen.context.projection import Conversation
from peen.model.stream import ModelRequest
from peen.model.strict import strict_request_check
from peen.wire.records import MessageRecord, ToolCallRecord
from peen.wire.turncalls import HistoryMessage

# --- what the store may hold

IDS = st.sampled_from(["a", "b", ""])
TEXTS = st.sampled_from(["", " \n", "text", "more"])
CALLS = st.builds(call, IDS, st.sampled_from(["look", "write", ""]))
RECORDS = st.one_of(
    st.builds(MessageRecord, role=st.sampled_from(["user", "system"]), content=TEXTS),
    st.builds(
        MessageRecord, role=st.just("assistant"), content=TEXTS, thinking=st.none() | TEXTS,
        tool_calls=st.none() | st.lists(CALLS, max_size=3),
    ),
    st.builds(MessageRecord, role=st.just("tool"), content=TEXTS, tool_call_id=st.none() | IDS, is_error=st.booleans()),
)  # fmt: skip
ROWS = st.lists(st.tuples(st.integers(1, 3), RECORDS), max_size=14)


def user(text: str) -> MessageRecord:
    return MessageRecord(role="user", content=text)


def reply(text: str, *calls: ToolCallRecord) -> MessageRecord:
    return MessageRecord(role="assistant", content=text, tool_calls=list(calls) or None)


def result(call_id: str, content: str = "seen", *, is_error: bool = False) -> MessageRecord:
    return MessageRecord(role="tool", content=content, tool_call_id=call_id, is_error=is_error)


def system(text: str) -> MessageRecord:
    return MessageRecord(role="system", content=text)


def turns(*each: Iterable[MessageRecord]) -> list[HistoryMessage]:
    """Stored rows of whole turns, one after the other."""
    rows = [(number, message) for number, turn in enumerate(each, start=1) for message in turn]
    return [HistoryMessage(sequence=sequence, turn=turn, message=row) for sequence, (turn, row) in enumerate(rows, 1)]


def replayed(*each: Iterable[MessageRecord]) -> list[MessageRecord]:
    conversation = Conversation()
    conversation.add_history(turns(*each))
    return list(conversation.messages)


# --- replay


def test_a_finished_turn_is_replayed_as_it_was_stored() -> None:
    turn = [user("look"), reply("I look", call("a")), result("a"), reply("it is there")]

    assert replayed(turn, [user("again"), reply("as before")]) == [*turn, user("again"), reply("as before")]


def test_results_follow_their_answer_in_the_order_of_the_calls_however_they_came() -> None:
    asked = reply("", call("a"), call("b"), call("c"))

    messages = replayed([user("go"), asked, result("c"), result("a"), result("b"), reply("done")])

    assert messages == [user("go"), asked, result("a"), result("b"), result("c"), reply("done")]


def test_a_call_without_a_result_is_left_out_and_its_siblings_stay() -> None:
    messages = replayed([user("go"), reply("both", call("a"), call("b")), result("b"), system("a never returned")])

    assert messages == [user("go"), reply("both", call("b")), result("b"), system("a never returned")]


def test_an_answer_of_nothing_but_lost_calls_is_left_out_but_its_words_stay() -> None:
    assert replayed([user("go"), reply("", call("a")), system("it was lost")]) == [user("go"), system("it was lost")]
    assert replayed([user("go"), reply("I try", call("a"))]) == [user("go"), reply("I try")]


@pytest.mark.parametrize("is_error", [False, True])
def test_a_result_after_the_end_of_its_turn_is_told_as_a_system_message_that_names_the_call(is_error: bool) -> None:
    late = result("a", "the output", is_error=is_error)

    *before, told = replayed([user("go"), reply("I run", call("a", "run")), system("it was lost"), late])

    assert before == [user("go"), reply("I run"), system("it was lost")]
    assert told.role == "system"
    for part in ("run (a)", "the output", "failed" if is_error else "returned"):
        assert part in told.content


def test_calls_of_a_turn_that_went_on_after_a_pause_are_replayed_with_their_results() -> None:
    before = [user("go"), reply("", call("a"), call("b")), result("a"), system("interrupted"), system("goes on")]
    after = [result("b"), reply("", call("c")), result("c"), reply("done")]

    told = replayed([*before, *after])

    assert told[:3] == [user("go"), reply("", call("a")), result("a")]
    assert [message.role for message in told[3:6]] == ["system", "system", "system"]
    assert "the call look (b) returned" in told[5].content
    assert told[6:] == [reply("", call("c")), result("c"), reply("done")]


def test_a_decision_about_other_work_takes_no_result_from_the_turn_that_runs() -> None:
    stopped = [user("go"), reply("", call("a")), system("stopped")]
    running = [user("and this"), reply("", call("b")), result("b"), reply("done")]
    rows = [*turns(stopped, running[:2]), *turns([result("a")], running[2:])]
    conversation = Conversation()

    conversation.add_history(rows)

    assert list(conversation.messages)[:-1] == [user("go"), system("stopped"), *running]
    assert "After its turn had ended" in conversation.messages[-1].content


def test_a_late_result_names_its_call_although_other_turns_stand_between() -> None:
    stopped = [user("go"), reply("", call("a", "run")), system("stopped")]
    between = [user("and this"), reply("", call("a", "look")), result("a"), reply("done")]
    resumed = [system("goes on"), result("a", "the output"), reply("finished")]
    rows = [*turns(stopped, between), *turns(resumed)]
    conversation = Conversation()

    conversation.add_history(rows)

    assert [message.role for message in conversation.messages[-3:]] == ["system", "system", "assistant"]
    assert "the call run (a) returned" in conversation.messages[-2].content


def test_a_result_whose_call_nobody_knows_is_told_as_well() -> None:
    (told,) = replayed([result("ghost", "boo")])

    assert (told.role, told.tool_call_id) == ("system", None)
    assert "a tool call returned" in told.content
    assert "boo" in told.content


@pytest.mark.parametrize("blank", ["", " ", "\n\t "])
def test_blank_replies_are_left_out(blank: str) -> None:
    thought = msgspec.structs.replace(reply(blank), thinking="hm")

    assert replayed([user("go"), thought], [user("well?"), reply("yes")]) == [user("go"), user("well?"), reply("yes")]


@pytest.mark.parametrize("odd", [call("a", "look"), call("", "look"), call("b", "")], ids=["used", "no id", "no name"])
def test_a_call_that_no_provider_accepts_is_left_out_with_its_result(odd: ToolCallRecord) -> None:
    first = [user("go"), reply("", call("a")), result("a")]

    messages = replayed(first, [user("again"), reply("", odd, call("c")), result(odd.id), result("c")])

    assert messages == [*first, user("again"), reply("", call("c")), result("c")]


def test_call_ids_are_those_that_the_model_can_see() -> None:
    conversation = Conversation()
    conversation.add_history(turns([user("go"), reply("", call("a"), call("b")), result("b")]))
    conversation.add_exchange(reply("", call("c")), [result("c")])

    assert set(conversation.call_ids) == {"b", "c"}


# --- for every transcript


@given(ROWS)
def test_no_provider_refuses_what_is_made_of_any_transcript(rows: list[tuple[int, MessageRecord]]) -> None:
    conversation = Conversation()
    conversation.add(user("an opening that is not blank"))
    conversation.add_history(HistoryMessage(sequence=1, turn=turn, message=message) for turn, message in rows)
    conversation.add(user("and a question"))

    strict_request_check(ModelRequest(model_id="script", system="", messages=conversation.messages))


@dataclass(frozen=True)
class Round:
    """An answer with calls (name, whether it fails), and the order in which their results are stored."""

    text: str
    wanted: list[tuple[str, bool]]
    chance: random.Random

    def exchange(self, first: int) -> tuple[MessageRecord, list[MessageRecord]]:
        calls = [call(f"call_{first + i}", name) for i, (name, _) in enumerate(self.wanted)]
        results = [result(own.id, is_error=failed) for own, (_, failed) in zip(calls, self.wanted, strict=True)]
        return reply(self.text, *calls), results


WANTED = st.lists(st.tuples(st.sampled_from(["look", "write"]), st.booleans()), min_size=1, max_size=3)
ROUNDS = st.lists(st.builds(Round, TEXTS, WANTED, st.randoms(use_true_random=False)), max_size=4)


@given(st.lists(st.tuples(ROUNDS, TEXTS), min_size=1, max_size=3))
def test_a_conversation_that_grew_round_by_round_is_the_one_that_is_read_back_and_its_past_never_changes(
    each: list[tuple[list[Round], str]],
) -> None:
    grown = Conversation()
    stored: list[list[MessageRecord]] = []
    before: list[bytes] = []
    for rounds, answer in each:
        turn = [user("go")]
        grown.add(turn[0])
        for one in rounds:
            asked, results = one.exchange(first=len(grown.call_ids))
            grown.add_exchange(asked, results)
            turn += [asked, *one.chance.sample(results, len(results))]
            now = encoded(grown.messages)
            assert now[: len(before)] == before
            before = now
        turn.append(reply(answer))
        grown.add(turn[-1])
        stored.append(turn)

    assert encoded(replayed(*stored)) == encoded(grown.messages)


def encoded(messages: Sequence[MessageRecord]) -> list[bytes]:
    return [msgspec.json.encode(message) for message in messages]
