from __future__ import annotations

import pytest
from world_kit import call

from peen.execution.decide import Dispatch, Finish, ModelOutput, after_answer, failure
from peen.wire.records import Terminal

CALLS = [call("a"), call("b")]


def test_an_answer_without_calls_completes_the_turn_with_its_text() -> None:
    output = ModelOutput(text="done", thinking="hm", finish_reason="stop")

    assert after_answer(output, turn_round=0, round_limit=8) == Finish(
        Terminal(state="completed", text="done", finish_reason="stop")
    )


def test_an_empty_answer_completes_the_turn_too() -> None:
    assert after_answer(ModelOutput(finish_reason="length"), turn_round=3, round_limit=8) == Finish(
        Terminal(state="completed", text="", finish_reason="length")
    )


@pytest.mark.parametrize("turn_round", [0, 5, 6])
def test_calls_are_run_in_every_round_but_the_last(turn_round: int) -> None:
    assert after_answer(ModelOutput(calls=CALLS), turn_round=turn_round, round_limit=8) == Dispatch(CALLS)


@pytest.mark.parametrize(("round_limit", "words"), [(1, "1 model round "), (8, "8 model rounds ")])
def test_calls_of_the_last_permitted_round_fail_the_turn_and_name_the_setting(round_limit: int, words: str) -> None:
    output = ModelOutput(text="I will", calls=CALLS)

    decision = after_answer(output, turn_round=round_limit - 1, round_limit=round_limit)

    assert isinstance(decision, Finish)
    terminal = decision.terminal
    assert (terminal.state, terminal.reason, terminal.classification) == ("failed", "agentRun", "agentRun")
    assert words in terminal.error
    assert "PEEN_MAX_TOOL_ROUNDS" in terminal.error


def test_an_answer_in_the_last_permitted_round_is_an_answer() -> None:
    decision = after_answer(ModelOutput(text="done", finish_reason="stop"), turn_round=7, round_limit=8)

    assert decision == Finish(Terminal(state="completed", text="done", finish_reason="stop"))


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (ModelOutput(error_kind="silence", error="silent for 120 s"), "silent for 120 s"),
        (ModelOutput(error_kind="silence", calls=CALLS, error="silent"), "silent"),
        (ModelOutput(error_kind="odd"), "the model call failed (odd)"),
    ],
)
def test_a_model_step_that_failed_fails_the_turn_whatever_else_it_holds(output: ModelOutput, error: str) -> None:
    assert after_answer(output, turn_round=0, round_limit=8) == Finish(failure(error))


def test_a_failure_can_have_another_documented_reason() -> None:
    assert failure("too long", reason="timeout") == Terminal(
        state="failed", reason="timeout", error="too long", classification="timeout"
    )
