"""Frames become an outcome: no sockets, no clocks."""

from __future__ import annotations

from typing import Any

import pytest
from cli_canned import REQUEST, ack, frame, whole_turn
from hypothesis import given
from hypothesis import strategies as st

from peen.cli.turnview import TurnView

OURS = "33333333-3333-4333-8333-333333333333"
OTHER = "44444444-4444-4444-8444-444444444444"


def view_of(*payloads: bytes, after: int = 0) -> TurnView:
    view = TurnView(OURS, "hello", after=after)
    for payload in payloads:
        view.fold(payload)
    return view


def end(kind: str, data: dict[str, Any]) -> list[bytes]:
    return [*whole_turn("hello", "")[:2], frame(kind, data, 3)]


def test_a_completed_turn_gives_its_answer_and_exit_code_zero() -> None:
    outcome = view_of(*whole_turn("hello", "the answer"), ack({"queued": False}, OURS)).outcome()

    assert (outcome.state, outcome.exit_code) == ("completed", 0)
    assert (outcome.text, outcome.model, outcome.finish_reason) == ("the answer", "up/model", "stop")
    assert (outcome.request_id, outcome.sequence) == (REQUEST, 3)


@pytest.mark.parametrize(
    ("kind", "data", "state", "code"),
    [
        ("turn.failed", {"reason": "agentRun", "error": "no luck"}, "failed", 1),
        ("turn.failed", {"reason": "budgetReached", "error": "spent"}, "failed", 1),
        ("turn.cancelled", {"reason": "stopped"}, "cancelled", 3),
        ("turn.failed", {"reason": "interrupted", "error": "worker lost"}, "interrupted", 4),
        ("turn.failed", {"reason": "shutdown", "error": "stopped"}, "interrupted", 4),
    ],
)
def test_every_other_end_has_a_code_of_its_own(kind: str, data: dict[str, Any], state: str, code: int) -> None:
    failed = ack({"code": "INTERNAL_SERVER_ERROR", "message": "the turn failed", "reason": data["reason"]}, OURS)

    outcome = view_of(*end(kind, data), failed).outcome()

    assert (outcome.state, outcome.exit_code) == (state, code)
    assert (outcome.reason, outcome.error) == (data["reason"], data.get("error"))


def test_a_second_acknowledgement_is_none() -> None:
    view = view_of(*whole_turn("hello", "the answer"))
    told = ack({"queued": False}, OURS)

    assert [view.fold(told), view.fold(told), view.fold(ack({"queued": False}, OTHER))] == [True, False, True]


def test_a_refusal_is_known_by_its_missing_request() -> None:
    outcome = view_of(ack({"code": "SESSION_BUSY", "message": "a turn is running"}, OURS, request=None)).outcome()

    assert (outcome.state, outcome.exit_code) == ("refused", 2)
    assert (outcome.code, outcome.error) == ("SESSION_BUSY", "a turn is running")


def test_without_an_acknowledgement_nothing_counts_as_done() -> None:
    assert view_of().outcome().state == "unfinished"
    running = view_of(*whole_turn("hello", "")[:2]).outcome()
    assert (running.state, running.exit_code, running.request_id) == ("unfinished", 4, REQUEST)


def test_the_acknowledgement_of_another_frame_is_not_ours() -> None:
    view = view_of(*whole_turn("other", "theirs"), ack({"queued": False}, OTHER))

    assert view.acknowledged is None
    assert view.outcome().text == ""


def test_the_acknowledgement_decides_which_of_two_equal_messages_was_ours() -> None:
    theirs = [frame("userMessage.created", {"message": "hello"}, 4, request=OTHER)]
    theirs += [frame("turn.completed", {"model": "m", "text": "theirs"}, 5, request=OTHER)]

    outcome = view_of(*whole_turn("hello", "ours"), *theirs, ack({"queued": False}, OURS)).outcome()

    assert outcome.text == "ours"


def test_an_answer_to_a_resent_frame_sends_us_to_the_feed() -> None:
    view = view_of(ack({"queued": False}, OURS))
    needed = [view.needs_feed]

    for payload in whole_turn("hello", "from the feed"):
        view.fold(payload)
        needed.append(view.needs_feed)

    assert needed == [True, True, True, False]
    assert view.outcome().text == "from the feed"


def test_an_end_that_nobody_can_tell_any_more_is_judged_by_its_acknowledgement() -> None:
    def judged(data: dict[str, Any]) -> str:
        return view_of(ack(data, OURS)).outcome().state

    assert judged({"code": "TURN_CANCELLED", "message": "m"}) == "cancelled"
    assert judged({"code": "INTERNAL_SERVER_ERROR", "message": "m", "reason": "shutdown"}) == "interrupted"
    assert judged({"code": "INTERNAL_SERVER_ERROR", "message": "m", "reason": "agentRun"}) == "failed"
    assert judged({"queued": False}) == "unfinished"


@given(st.lists(st.integers(0, 3), max_size=30))
def test_frames_that_come_twice_count_once(picks: list[int]) -> None:
    use = frame("tool.use", {"callId": "c", "name": "readFile", "arguments": {"path": "a"}}, 3)
    frames = [*whole_turn("hello", "")[:2], use, frame("turn.completed", {"model": "m", "text": "done"}, 4)]
    once = view_of(*frames, ack({"queued": False}, OURS)).outcome()
    view = view_of()

    for index, payload in enumerate(frames):
        assert view.fold(payload)
        for again in picks:
            if again <= index:
                assert not view.fold(frames[again])
    view.fold(ack({"queued": False}, OURS))

    assert view.outcome() == once
    assert once.tool_calls == 1


def queued_behind(*payloads: bytes) -> TurnView:
    """Our message, `REQUEST`, joined the turn `OTHER`; then `payloads` came."""
    created = [frame(f"userMessage.{what}", {"message": "hello"}, n) for n, what in enumerate(("created", "queued"), 1)]
    return view_of(*created, ack({"queued": True}, OURS), *payloads)


def test_a_queued_message_is_not_answered_by_its_acknowledgement() -> None:
    view = queued_behind()

    assert not view.is_settled
    assert not view.needs_feed
    assert view.activity() == "queued behind the running turn"
    assert view.outcome().state == "unfinished"


def test_a_queued_message_is_answered_by_the_turn_that_it_reached() -> None:
    delivered = frame("userMessage.delivered", {"message": "hello"}, 3)
    calls = use("a", "readFile", {"path": "a"}, 4, request=OTHER)
    view = queued_behind(delivered, calls)
    assert view.activity() == "readFile a"

    view.fold(frame("turn.completed", {"model": "m", "text": "both answered"}, 5, request=OTHER))

    assert view.is_settled
    outcome = view.outcome()
    assert (outcome.state, outcome.text, outcome.request_id) == ("completed", "both answered", REQUEST)
    assert (outcome.sequence, outcome.tool_calls) == (5, 1)


def test_a_queued_message_that_came_too_late_is_answered_by_the_turn_that_follows() -> None:
    view = queued_behind(frame("turn.completed", {"model": "m", "text": "not to us"}, 3, request=OTHER))
    between = view.is_settled

    view.fold(frame("turn.completed", {"model": "m", "text": "to us"}, 4))

    assert (between, view.is_settled, view.outcome().text) == (False, True, "to us")


@pytest.mark.parametrize("kind", ["turn.cancelled", "turn.failed"])
def test_a_queued_message_whose_turn_ends_badly_was_not_answered(kind: str) -> None:
    view = queued_behind(frame(kind, {"reason": "any"}, 3, request=OTHER))

    assert view.is_settled
    assert view.outcome().exit_code == 4
    assert "before it read it" in str(view.outcome().error)


def test_a_turn_that_read_the_message_and_failed_has_failed_for_us() -> None:
    delivered = frame("userMessage.delivered", {"message": "hello"}, 3)
    failed = frame("turn.failed", {"reason": "agentRun", "error": "no luck"}, 4, request=OTHER)

    outcome = queued_behind(delivered, failed).outcome()

    assert (outcome.state, outcome.error, outcome.exit_code) == ("failed", "no luck", 1)


def test_a_queued_message_may_be_delivered_before_its_acknowledgement_comes() -> None:
    view = view_of(
        *[frame(f"userMessage.{what}", {"message": "hello"}, n) for n, what in enumerate(("created", "queued"), 1)],
        frame("userMessage.delivered", {"message": "hello"}, 3),
        frame("turn.completed", {"model": "m", "text": "quick"}, 4, request=OTHER),
        ack({"queued": True}, OURS),
    )

    assert (view.is_settled, view.outcome().text) == (True, "quick")


def test_frames_up_to_the_given_sequence_are_old() -> None:
    view = view_of(after=2)

    assert [view.fold(payload) for payload in whole_turn("hello", "x")] == [False, False, True]
    assert view.last_sequence == 3


@pytest.mark.parametrize("odd", [b"", b"not json", b"[]", b'{"type": 5}', b'{"type":"turn.completed","data":7}'])
def test_a_frame_that_cannot_be_read_is_passed_by(odd: bytes) -> None:
    view = view_of(odd, *whole_turn("hello", "fine"), ack({"queued": False}, OURS))

    assert view.outcome().text == "fine"


def test_a_frame_with_odd_data_still_moves_the_cursor() -> None:
    view = view_of(frame("turn.started", {"model": 7}, 9))

    assert view.last_sequence == 9


def activity_after(*payloads: bytes) -> str:
    return view_of(*whole_turn("hello", "")[:2], *payloads).activity()


def use(call_id: str, name: str, arguments: Any, sequence: int, *, request: str = REQUEST) -> bytes:
    return frame("tool.use", {"callId": call_id, "name": name, "arguments": arguments}, sequence, request=request)


def test_progress_tells_what_happens_now() -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}

    assert view_of().activity() == "waiting for the session"
    assert view_of(whole_turn("hello", "")[0]).activity() == "starting"
    assert activity_after() == "waiting for the model"
    assert activity_after(frame("content_block_start", block, 3)) == "thinking"
    retry = {"attempt": 2, "reason": "rate limit", "status": 429, "delayMs": 100}
    assert activity_after(frame("provider.retry", retry, 3)) == "waiting for the provider (attempt 2 failed)"


def test_progress_names_the_tool_and_the_argument_that_says_most() -> None:
    command = {"purpose": "check", "command": "pytest -q"}
    assert activity_after(use("a", "runCommand", command, 3)) == "runCommand pytest -q"
    assert activity_after(use("a", "other", {"number": 1, "word": "w"}, 3)) == "other w"
    assert activity_after(use("a", "waitJob", {}, 3)) == "waitJob"
    assert activity_after(use("a", "odd", "no object", 3)) == "odd"


def test_progress_counts_calls_that_run_side_by_side() -> None:
    both = [use("a", "readFile", {"path": "a"}, 3), use("b", "readFile", {"path": "b"}, 4)]
    done = frame("tool.result", {"callId": "b", "name": "readFile", "content": "", "isError": False}, 5)

    assert activity_after(*both) == "readFile b (+1)"
    assert activity_after(*both, done) == "readFile a"


def test_progress_is_one_short_line_that_cannot_move_the_cursor() -> None:
    told = activity_after(use("a", "runCommand", {"command": "\x1b[2Jrm\n" + "x" * 500}, 3))

    assert told.isprintable()
    assert len(told) < 100
