"""Whole turns: the real loop, steps, model step and tools over a real store, with a model that plays a script."""

from __future__ import annotations

import itertools
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from engine_kit import Attempt, Engine, asks, engine, says, work
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock
from world_kit import acceptance, check_sequences, dump, execution_of, frame_types, frames, transcript, uuid

from peen.errors import LinkLost, StorageFull
from peen.model.stream import Finished, TextDelta
from peen.session.acceptance import accept_queued, end_accepted
from peen.session.ending import Ending, interrupted
from peen.store import activities, turns
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults
from peen.wire.records import MessageRecord

TERMINAL = {"turn.completed", "turn.failed", "turn.cancelled"}


def ends(own: Engine) -> list[tuple[str, dict[str, Any]]]:
    return [frame for frame in frames(own.db, own.home) if frame[0] in TERMINAL]


def asked(own: Engine, number: int) -> list[MessageRecord]:
    """Messages of the request with this number, from 0."""
    return list(own.upstream.requests[number].messages)


async def test_an_answer_ends_the_turn_with_its_text_and_the_model_and_the_reason_it_stopped() -> None:
    async with engine(says("done")) as own:
        actor = await own.run_turn("hello")

        assert actor.state == "completed"
        assert frame_types(own.db, own.home) == [
            "userMessage.created",
            "turn.started",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "turn.completed",
        ]
        assert ends(own) == [("turn.completed", {"model": "up/m", "text": "done", "finishReason": "stop"})]
        assert [(row.message.role, row.message.content) for row in transcript(own.db, own.home)] == [
            ("user", "hello"),
            ("assistant", "done"),
        ]


@pytest.mark.parametrize("calls_by_round", [[], [1], [1, 1, 1], [3], [6, 2]])
async def test_a_turn_is_one_admission_one_commit_a_begin_one_a_model_answer_and_one_a_tool_result(
    calls_by_round: list[int],
) -> None:
    rounds = [asks(*[("look", work())] * count) for count in calls_by_round]
    async with engine(*rounds, says("done"), max_concurrent_tools=4) as own:
        actor = await own.run_turn()

        assert actor.state == "completed"
        assert len(own.journal.asked) == 1 + 1 + (len(rounds) + 1) + sum(calls_by_round)


async def test_an_instant_answer_costs_no_transaction_for_its_pieces() -> None:
    for _ in range(20):  # the order of tasks is drawn anew each time
        async with engine(asks(("look", work()), text="I look"), says("done")) as own:
            await own.run_turn()

            assert own.journal.emits == []


async def test_a_slow_answer_is_shown_while_it_comes(autojump_clock: MockClock) -> None:
    async with engine([TextDelta("Hel"), 1.0, TextDelta("lo"), 1.0, Finished("stop", "m")]) as own:
        await own.run_turn()
        shown = [data["delta"]["text"] for name, data in frames(own.db, own.home) if name == "content_block_delta"]

        assert len(own.journal.emits) == 2
        assert shown == ["Hel", "lo"]
        assert ends(own)[0][1]["text"] == "Hello"


# --- tools


async def test_calls_of_one_answer_run_side_by_side_up_to_the_limit(autojump_clock: MockClock) -> None:
    calls = [("look", work(takes_s=1.0))] * 5
    async with engine(asks(*calls), says("done"), max_concurrent_tools=2) as own:
        began = trio.current_time()
        await own.run_turn()

        assert own.look.most_running == 2
        assert trio.current_time() - began == 3.0  # two, two and one


async def test_a_free_lane_takes_the_next_call_without_waiting_for_the_others(autojump_clock: MockClock) -> None:
    takes_s = [10.0, 1.0, 1.0, 1.0, 1.0]
    async with engine(asks(*(("look", work(takes_s=s)) for s in takes_s)), says("done"), max_concurrent_tools=2) as own:
        began = trio.current_time()
        await own.run_turn()

        assert trio.current_time() - began == 10.0


async def test_a_step_is_claimed_only_when_its_work_begins(autojump_clock: MockClock) -> None:
    calls = [("change", work(takes_s=1.0))] * 3
    async with engine(asks(*calls), says("done"), max_concurrent_tools=2) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(0.5)

        steps = activities.steps(own.db.reader, execution_of(own.db, str(uuid(3001))).no)
        assert [(step.step, step.kind, step.state) for step in steps] == [
            ("r0.prepare", "prepare", "completed"),
            ("r0.model", "model", "completed"),
            ("r0.t0.handler", "effect", "running"),
            ("r0.t1.handler", "effect", "running"),
        ]


async def test_results_are_stored_as_they_come_and_reach_the_model_in_the_order_of_the_calls(
    autojump_clock: MockClock,
) -> None:
    calls = [("look", work(f"result {n}", takes_s=s)) for n, s in enumerate([3.0, 1.0, 2.0])]
    async with engine(asks(*calls), says("done")) as own:
        await own.run_turn()
        stored = [row.message.content for row in transcript(own.db, own.home) if row.message.role == "tool"]
        presented = [message.content for message in asked(own, 1) if message.role == "tool"]
        shown = [data["content"] for name, data in frames(own.db, own.home) if name == "tool.result"]

    assert stored == shown == ['{"said":"result 1"}', '{"said":"result 2"}', '{"said":"result 0"}']
    assert presented == ['{"said":"result 0"}', '{"said":"result 1"}', '{"said":"result 2"}']


async def test_a_result_is_durable_before_its_slower_sibling_ends(autojump_clock: MockClock) -> None:
    calls = [("change", work("fast")), ("change", work("slow", takes_s=9.0))]
    async with engine(asks(*calls), says("done")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)

        assert [row.message.content for row in transcript(own.db, own.home)][-1] == '{"said":"fast"}'
        nursery.cancel_scope.cancel()


async def test_a_failed_call_is_an_error_result_that_the_model_reads(autojump_clock: MockClock) -> None:
    calls = [("look", work("no such file", fail=True)), ("unheard", "{}"), ("look", '{"typo":1}')]
    async with engine(asks(*calls), says("I see")) as own:
        actor = await own.run_turn()
        results = [message for message in asked(own, 1) if message.role == "tool"]
        shown = [data["isError"] for name, data in frames(own.db, own.home) if name == "tool.result"]

    assert actor.state == "completed"
    assert [result.is_error for result in results] == shown == [True, True, True]
    for result, words in zip(results, ["no such file", "unheard", "typo"], strict=True):
        assert words in result.content


async def test_calls_of_the_last_permitted_round_are_not_run() -> None:
    async with engine(asks(("change", work())), asks(("change", work())), max_tool_rounds=2) as own:
        actor = await own.run_turn()

        assert actor.state == "failed"
        assert own.change.done == 1
        assert "PEEN_MAX_TOOL_ROUNDS" in ends(own)[0][1]["error"]
        assert frame_types(own.db, own.home).count("tool.use") == 1


# --- the next turn


async def test_the_next_turn_sends_what_the_last_one_sent_and_then_what_is_new() -> None:
    async with engine(asks(("look", work("one"))), says("first"), says("second"), says("third")) as own:
        for text in ("a", "b", "c"):
            await own.run_turn(text)
        requests = [asked(own, number) for number in range(4)]

    for earlier, later in itertools.pairwise(requests):
        assert later[: len(earlier)] == earlier
    assert [(message.role, message.content) for message in requests[3]] == [
        ("user", "a"),
        ("assistant", ""),
        ("tool", '{"said":"one"}'),
        ("assistant", "first"),
        ("user", "b"),
        ("assistant", "second"),
        ("user", "c"),
    ]


async def test_a_call_that_was_cut_off_never_reaches_a_provider_but_the_model_is_told_of_it(
    autojump_clock: MockClock,
) -> None:
    calls = [("look", work("short")), ("change", work("long", takes_s=60.0))]
    async with engine(asks(*calls), says("careful now")) as own:
        with trio.move_on_after(1.0):
            await own.run_turn("go")
        await end_turn(own, interrupted("interrupted", "the worker was lost"))
        actor = await own.run_turn("and now?")
        *_, exchange, result, told, question = asked(own, 1)

    assert actor.state == "completed"  # the upstream refuses what a strict provider refuses
    assert [call.name for call in exchange.tool_calls or []] == ["look"]
    assert result.content == '{"said":"short"}'
    assert told.role == "system"
    assert "- change" in told.content
    assert question.content == "and now?"


# --- messages that come while the turn runs


async def queue(own: Engine, text: str, *, frame: int) -> None:
    """Accept a message for the running turn."""
    waiting = acceptance(own.home, text, frame=frame, turn_id=str(uuid(3001)))
    await own.db.write(partial(accept_queued, session_no=own.home.no, acceptance=waiting, capacity=16))


async def test_a_message_that_came_during_a_round_reaches_the_model_behind_the_results_of_that_round(
    autojump_clock: MockClock,
) -> None:
    calls = [("look", work("one")), ("look", work("two", takes_s=2.0))]
    async with engine(asks(*calls), says("both")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        await queue(own, "also this", frame=50)
        await trio.sleep(5.0)

        assert [(message.role, message.content) for message in asked(own, 1)][2:] == [
            ("tool", '{"said":"one"}'),
            ("tool", '{"said":"two"}'),
            ("user", "also this"),
        ]
        assert [name for name, _ in ends(own)] == ["turn.completed"]


async def test_a_message_that_came_during_the_last_answer_is_answered_in_the_same_turn(
    autojump_clock: MockClock,
) -> None:
    slow = [TextDelta("do"), 2.0, *says("ne")]
    async with engine(slow, says("also done")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        await queue(own, "also this", frame=50)
        await trio.sleep(5.0)

        assert [(message.role, message.content) for message in asked(own, 1)] == [
            ("user", "go"),
            ("assistant", "done"),
            ("user", "also this"),
        ]
        ((name, data),) = ends(own)
        assert (name, data["text"]) == ("turn.completed", "also done")


async def test_a_message_that_came_during_the_last_permitted_round_does_not_keep_the_turn_from_ending(
    autojump_clock: MockClock,
) -> None:
    slow = [TextDelta("do"), 2.0, *says("ne")]
    async with engine(slow, max_tool_rounds=1) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        await queue(own, "also this", frame=50)
        await trio.sleep(5.0)

        assert [name for name, _ in ends(own)] == ["turn.completed"]
        (end,) = own.ends
        assert end.following is not None
        assert end.following.message.content == "also this"


async def test_what_was_delivered_is_replayed_to_the_next_turn_where_the_model_read_it(
    autojump_clock: MockClock,
) -> None:
    calls = [("look", work("one", takes_s=2.0))]
    async with engine(asks(*calls), says("both"), says("next")) as own:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own.run_turn)
            await trio.sleep(1.0)
            await queue(own, "also this", frame=50)
        await own.run_turn("more")

        assert asked(own, 2)[: len(asked(own, 1))] == asked(own, 1)


# --- ends from outside


async def test_a_turn_that_takes_too_long_fails_with_reason_timeout_and_leaves_nothing_open(
    autojump_clock: MockClock,
) -> None:
    async with engine([TextDelta("thinking"), 60.0, *says("too late")], turn_timeout_ms=5_000) as own:
        began = trio.current_time()
        actor = await own.run_turn()

        assert trio.current_time() - began == 5.0
        assert own.upstream.open_streams == 0
        assert actor.state == "failed"
        ((name, data),) = ends(own)
        assert (name, data["reason"]) == ("turn.failed", "timeout")
        assert "PEEN_TURN_TIMEOUT" in data["error"]
        assert frame_types(own.db, own.home)[-2:] == ["content_block_stop", "turn.failed"]


async def test_the_turn_limit_ends_tools_too(autojump_clock: MockClock) -> None:
    async with engine(asks(("change", work(takes_s=60.0))), turn_timeout_ms=5_000) as own:
        await own.run_turn()
        steps = activities.steps(own.db.reader, execution_of(own.db, str(uuid(3001))).no)

        assert own.change.running == 0
        assert [step.state for step in steps][-1] == "uncertain"
        assert len(ends(own)) == 1


async def test_a_turn_that_was_taken_away_ends_quietly_and_writes_nothing_more(autojump_clock: MockClock) -> None:
    async with engine(asks(("change", work(takes_s=2.0))), says("never asked for")) as own:
        async with trio.open_nursery() as nursery:
            actors = []

            async def run() -> None:
                actors.append(await own.run_turn())

            nursery.start_soon(run)
            await trio.sleep(1.0)
            await end_turn(own, interrupted("interrupted", "fenced off"))
            fenced = dump(own.db)

        assert [actor.state for actor in actors] == ["stale"]
        assert dump(own.db) == fenced
        assert len(own.upstream.requests) == 1


async def test_a_lost_link_writes_nothing_more_wherever_it_is_lost() -> None:
    script = (asks(("look", work()), ("change", work())), says("done"))
    for calls_made in range(100):
        async with engine(*script) as own:
            own.journal.lost_after = calls_made
            state = "not admitted"
            with suppress(LinkLost), capture_logs():
                state = (await own.run_turn()).state
            terminal = len(ends(own))
            check_sequences(own.db.reader)

        if state == "completed":
            assert terminal == 1
            assert calls_made == 6  # none was left to lose
            return
        assert (state, terminal) == ("lost" if calls_made else "not admitted", 0)
    raise AssertionError("the turn never ended")


async def test_a_fault_of_peen_fails_the_turn_and_names_itself_without_source_locations() -> None:
    async with engine(says("done")) as own:
        own.upstream.attempts = []  # the upstream breaks in a way that nobody foresaw
        actor = await own.run_turn()

        ((name, data),) = ends(own)
        assert actor.state == "failed"
        assert (name, data["reason"]) == ("turn.failed", "agentRun")
        assert data["error"] == "internal error: IndexError: list index out of range"


async def test_a_full_disk_at_any_statement_leaves_a_turn_with_one_end_or_one_that_was_never_opened(
    autojump_clock: MockClock,
) -> None:
    for statement in range(1, 1000):
        file, plan = MemoryFile(), Faults.full_at(statement)
        async with engine(file=file):
            pass  # the session is there before the disk is full
        async with engine(asks(("look", work()), ("change", work())), says("done"), file=file, faults=plan) as own:
            with suppress(StorageFull), capture_logs():  # a traceback for each would take most of the time
                await own.run_turn()
            opened = turns.page(own.db.reader, own.home.no, limit=10, offset=0)

            assert [turn.state for turn in opened] in ([], ["failed"], ["completed"]), f"statement {statement}"
            assert len(ends(own)) == len(opened)
            check_sequences(own.db.reader)
        if not plan.fired:
            assert [turn.state for turn in opened] == ["completed"]
            return
    raise AssertionError("there was always another statement to fail at")


# --- for every script


CALLS = st.tuples(st.sampled_from(["look", "change", "unheard"]), st.builds(work, fail=st.booleans()))
ROUNDS = st.lists(st.lists(CALLS, min_size=1, max_size=5), max_size=3)


@settings(deadline=None, max_examples=40)
@given(st.lists(ROUNDS, min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 4))
def test_no_provider_refuses_any_request_and_each_turn_has_one_end(
    script: list[list[list[tuple[str, str]]]], parallelism: int, round_limit: int
) -> None:
    attempts: list[Attempt] = []
    for rounds in script:
        played = [*(asks(*calls) for calls in rounds), says("done")]
        attempts += played[:round_limit]

    async def main() -> None:
        async with engine(*attempts, max_concurrent_tools=parallelism, max_tool_rounds=round_limit) as own:
            for number, rounds in enumerate(script, start=1):
                actor = await own.run_turn(f"message {number}")

                assert actor.state == ("completed" if len(rounds) < round_limit else "failed")
                assert len(ends(own)) == number
                assert ends(own)[-1][0] == frame_types(own.db, own.home)[-1]
            assert len(own.upstream.requests) == len(attempts)
            check_sequences(own.db.reader)

    trio.run(main)


async def end_turn(own: Engine, ending: Ending) -> None:
    """As the controller does when it has lost the worker."""
    (turn,) = turns.running(own.db.reader)
    change = partial(end_accepted, session_no=own.home.no, turn_id=turn.id, ending=ending, at_ms=own.entropy.now_ms())
    await own.db.write(change)
