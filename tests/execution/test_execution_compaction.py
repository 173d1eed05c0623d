"""Conversations that are too long: summaries, what stands in them and in the store, and what happens without one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import pytest
import trio
from engine_kit import LONG, MODEL_ID, Attempt, Engine, asks, engine, says, settings_for, work
from structlog.testing import capture_logs
from trio.testing import MockClock
from world_kit import acceptance, check_sequences, execution_of, frames, transcript, uuid

from peen.context.count import fixed_tokens, text_tokens
from peen.errors import ModelError, StorageFull
from peen.model.stream import Finished, ModelRequest, TextDelta, UsageReported
from peen.session.acceptance import accept_queued
from peen.store import activities, compactions
from peen.store.compactions import CompactionRow
from peen.wire.records import Usage
from peen.wire.summary import transcript_lines
from peen.wire.turncalls import CommitSteps, Committed

TOO_LONG: Final = ModelError("too long", kind="context_length_exceeded", retryable=False, status=400)
OVERLOADED: Final = ModelError("try again", kind="server_error", retryable=True, status=503)


def said(request: ModelRequest) -> list[str]:
    return [message.content for message in request.messages]


def is_summarizing(request: ModelRequest) -> bool:
    return not request.tools and transcript_lines(request.messages[0].content) is not None


def kinds(own: Engine) -> str:
    """The requests so far: `s` asks for a summary, `m` for an answer."""
    return "".join("s" if is_summarizing(request) else "m" for request in own.upstream.requests)


def steps_of(own: Engine, frame: int) -> list[tuple[str, str]]:
    execution = execution_of(own.db, str(uuid(3000 + frame)))
    return [(step.step, step.state) for step in activities.steps(own.db.reader, execution.no)]


def links(own: Engine) -> list[int | None]:
    """Which summary covers each message."""
    return [number for (number,) in own.db.reader.rows("SELECT compaction_no FROM message ORDER BY key")]


def head(own: Engine) -> CompactionRow:
    found = compactions.head(own.db.reader, own.home.no)
    assert found is not None
    return found


async def talk(own: Engine, *texts: str) -> None:
    for text in texts:
        actor = await own.run_turn(text)
        assert actor.state == "completed"


THREE_TURNS: Final[Sequence[Attempt]] = [says(f"one {LONG}"), says(f"two {LONG}"), says(f"three {LONG}")]


# --- a summary --------------------------------------------------------------------------------------------------------


async def test_old_turns_are_summarized_when_the_conversation_passes_its_budget() -> None:
    given = await settings_for(700)
    async with engine(*THREE_TURNS, says("They said one."), says("four"), **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        assert kinds(own) == "mmmsm"
        asked = own.upstream.requests[3]
        assert asked.system.startswith("You write the summary")
        assert asked.max_output_tokens == 100
        lines = transcript_lines(asked.messages[0].content)
        assert lines is not None
        assert lines.startswith("user: first word")
        assert "assistant: one word" in lines
        shown = said(own.upstream.requests[4])
        assert shown[0].startswith('<summary messages="4" requests="2">')
        assert "They said one." in shown[0]
        assert shown[1:] == ["third", f"three {LONG}", "fourth"]
        assert links(own) == [1, 1, 1, 1, None, None, None, None]
        check_sequences(own.db.reader)


async def test_a_summary_and_all_that_belongs_to_it_commit_with_its_step() -> None:
    given = await settings_for(700)
    async with engine(*THREE_TURNS, says("They said one."), says("four"), **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        (commit,) = [commit for commit in own.journal.commits if commit.compaction is not None]
        assert [done.step for done in commit.completions] == ["r0.compact"]
        assert [claim.step for claim in commit.claims] == ["r0.model"]
        row = head(own)
        assert (row.sequence, row.supersedes, row.from_sequence, row.to_sequence, row.message_count) == (
            1,
            None,
            1,
            4,
            4,
        )
        assert row.model == "up/m"
        assert row.input_tokens > 600 > row.summary_tokens > 0
        assert steps_of(own, 4) == [
            ("r0.prepare", "completed"),
            ("r0.compact", "completed"),
            ("r0.model", "completed"),
            ("r0.final", "completed"),
        ]
        given_json, output = own.db.reader.rows("SELECT given, output FROM activity WHERE kind = 'compact'")[0]
        told = msgspec.json.decode(given_json)
        assert told["estimatedTokens"] > told["budgetTokens"]
        assert (told["round"], told["unitsCovered"], told["messagesCovered"], told["toSequence"]) == (0, 4, 4, 4)
        assert msgspec.json.decode(output)["outcome"] == "summarized"
        log = own.db.reader.rows("SELECT type, ref FROM session_log WHERE type = 'agent.compaction'")
        assert log == [("agent.compaction", 1)]


async def test_a_turn_that_needs_no_summary_has_no_step_of_one_and_no_further_commit() -> None:
    async with engine(says("one"), asks(("look", work())), says("two")) as plain:
        await talk(plain, "first", "second")
        calls = len(plain.journal.asked)
    async with engine(says("one"), asks(("look", work())), says("two"), compaction_mode="summarize") as own:
        await talk(own, "first", "second")

        assert len(own.journal.asked) == calls
        assert own.db.reader.rows("SELECT count(*) FROM activity WHERE kind = 'compact'") == [(0,)]
        assert own.db.reader.rows("SELECT count(*) FROM compaction") == [(0,)]


async def test_a_compaction_in_the_middle_of_a_turn_costs_one_commit() -> None:
    given = await settings_for(700)
    script = [*THREE_TURNS, asks(("look", work(LONG * 2))), says("They said one."), says("four")]
    async with engine(*script, **given) as own:
        await talk(own, f"first {LONG}", "second", "third")
        before = len(own.journal.asked)
        await talk(own, "fourth")

        assert kinds(own) == "mmmmsm"
        assert len(own.journal.asked) - before == 6  # admission, begin, answer with call, result, summary, answer
        names = [step for step, _ in steps_of(own, 4)]
        assert names == ["r0.prepare", "r0.model", "r0.t0.handler", "r1.prepare", "r1.compact", "r1.model", "r1.final"]


async def test_the_next_turn_and_the_next_worker_go_on_from_the_summary_and_what_it_does_not_cover() -> None:
    given = await settings_for(700)
    script = [*THREE_TURNS, says("They said one."), says("four"), says("five"), says("six")]
    async with engine(*script, **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth", "fifth")
        warm = said(own.upstream.requests[-1])
        await own.lose_worker()
        await talk(own, "sixth")
        cold = said(own.upstream.requests[-1])

        assert kinds(own) == "mmmsmmm"
        assert warm[0] == cold[0] == head(own).summary
        assert warm[1:] == ["third", f"three {LONG}", "fourth", "four", "fifth"]
        assert cold[1:] == [*warm[1:], "five", "sixth"]


async def test_a_later_summary_begins_where_the_first_one_did_and_takes_over_from_it() -> None:
    given = await settings_for(700)
    answers = [says(f"answer {number} {LONG}") for number in range(4, 7)]
    script = [*THREE_TURNS, says("They said one."), *answers, says("All of it."), says("end")]
    async with engine(*script, **given) as own:
        await talk(own, f"1 {LONG}", f"2 {LONG}", "3", "4", "5", "6", "7")
        assert kinds(own) == "mmmsmmm" + "sm"

        first, second = compactions.page(own.db.reader, own.home.no, limit=9, offset=0)[::-1]
        assert (first.supersedes, second.supersedes) == (None, 1)
        assert second.from_sequence == first.from_sequence == 1
        assert second.to_sequence > first.to_sequence
        assert second.message_count == second.to_sequence - first.to_sequence
        covered = [1] * first.message_count + [2] * second.message_count
        assert links(own) == [*covered, *[None] * (len(links(own)) - len(covered))]
        told = transcript_lines(own.upstream.requests[-2].messages[0].content)
        assert told is not None
        assert told.startswith("earlier summary: <summary")
        assert "They said one." in told
        messages = second.to_sequence
        assert said(own.upstream.requests[-1])[0].startswith(
            f'<summary messages="{messages}" requests="{messages // 2}">'
        )
        assert "They said one." not in said(own.upstream.requests[-1])[0]


async def test_messages_of_turns_that_did_not_finish_are_covered_too_and_keep_what_they_are() -> None:
    given = await settings_for(700)
    broken: Attempt = [TextDelta("half"), ModelError("gone", kind="invalid_request", retryable=False, status=400)]
    script: list[Attempt] = [
        asks(("look", work(LONG))),
        broken,
        THREE_TURNS[1],
        says("They failed once."),
        *THREE_TURNS[2:],
    ]
    async with engine(*script, **given) as own:
        await own.run_turn(f"first {LONG}")
        before = own.db.reader.rows("SELECT role, content, incomplete FROM message ORDER BY key LIMIT 4")
        await talk(own, f"second {LONG}", "third")

        assert kinds(own) == "mmmsm"
        assert links(own)[:4] == [1, 1, 1, 1]
        assert own.db.reader.rows("SELECT role, content, incomplete FROM message ORDER BY key LIMIT 4") == before
        assert [incomplete for *_, incomplete in before] == [0, 1, 1, 0]


async def test_the_summary_names_the_directory_and_the_messages_that_wait(autojump_clock: MockClock) -> None:
    given = await settings_for(700)
    slow: Attempt = [TextDelta("They said"), 1.0, TextDelta(" one."), Finished("stop", MODEL_ID)]
    async with engine(*THREE_TURNS, slow, says("four"), says("and more"), **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own.run_turn, "fourth")
            await trio.sleep(0.5)
            waiting = acceptance(own.home, "wait for me", frame=9, turn_id=str(uuid(3004)))
            await own.db.write(partial(accept_queued, session_no=own.home.no, acceptance=waiting, capacity=4))

        summary = said(own.upstream.requests[4])[0]
        assert "Current directory: /srv/project-1" in summary
        assert "1. wait for me" in summary
        assert summary.index("They said one.") < summary.index("Current directory")
        assert said(own.upstream.requests[5])[-1] == "wait for me"


# --- no summary -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "outcome"),
    [
        ([Finished("stop", MODEL_ID)], "empty"),
        (says(" \n "), "empty"),
        ([ModelError("no", kind="invalid_request", retryable=False, status=400)], "failed"),
        ([TextDelta("half")], "failed"),
        ([TextDelta("cut by its own limit"), Finished("length", MODEL_ID)], "failed"),
        (says(LONG * 9), "useless"),
        ([TextDelta("so slow"), 500.0, Finished("stop", MODEL_ID)], "failed"),
    ],
)
async def test_without_a_summary_history_stays_and_the_turn_goes_on(
    attempt: Attempt, outcome: str, autojump_clock: MockClock
) -> None:
    given = await settings_for(700, compaction_timeout_ms=100_000)
    cut_short = attempt == [TextDelta("half")]  # a stream without an end is tried again, as in a turn
    attempts = [attempt] * (11 if cut_short else 1)
    async with engine(*THREE_TURNS, *attempts, says("four"), says("five"), **given) as own:
        with capture_logs():
            await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        assert kinds(own) == "mmm" + "s" * len(attempts) + "m"
        assert (
            said(own.upstream.requests[-1])
            == [message.message.content for message in transcript(own.db, own.home)][:-1]
        )
        assert set(links(own)) == {None}
        assert compactions.head(own.db.reader, own.home.no) is None
        assert ("r0.compact", "failed") in steps_of(own, 4)
        ((output,),) = own.db.reader.rows("SELECT output FROM activity WHERE kind = 'compact'")
        assert msgspec.json.decode(output)["outcome"] == outcome
        ((state, calls),) = own.db.reader.rows(
            "SELECT state, (SELECT count(*) FROM model_call c WHERE c.key >> 32 = r.no) FROM model_run r "
            "WHERE stage = 'compaction'"
        )
        assert (state, calls) == ("failed", len(attempts))


async def test_a_summary_that_failed_is_not_tried_again_in_the_same_turn_but_in_the_next() -> None:
    given = await settings_for(700)
    broken: Attempt = [ModelError("no", kind="invalid_request", retryable=False, status=400)]
    script = [*THREE_TURNS, broken, asks(("look", work())), says("four"), says("They said one."), says("five")]
    async with engine(*script, **given) as own:
        with capture_logs():
            await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth", "fifth")

        assert kinds(own) == "mmmsmm" + "sm"


async def test_what_the_window_does_not_hold_after_a_failed_summary_is_left_out() -> None:
    given = await settings_for(700)
    broken: Attempt = [ModelError("no", kind="invalid_request", retryable=False, status=400)]
    async with engine(*THREE_TURNS, broken, says("four"), **given) as own:
        with capture_logs():
            await talk(own, f"first {LONG}", f"second {LONG}", "third", f"fourth {LONG * 3}")

        assert kinds(own) == "mmmsm"
        assert said(own.upstream.requests[-1])[0].startswith("<omitted")
        assert said(own.upstream.requests[-1])[-1].startswith("fourth")


async def test_a_summarizer_that_finds_its_request_too_long_is_asked_about_half_of_it() -> None:
    given = await settings_for(1500)
    script = [says(f"{number} {LONG * 2}") for number in range(3)]
    async with engine(*script, [TOO_LONG], says("Half of it."), says("end"), **given) as own:
        with capture_logs():
            await talk(own, f"first {LONG * 2}", f"second {LONG * 2}", "third", f"fourth {LONG}")

        assert kinds(own) == "mmmssm"
        whole, half = (text_tokens(said(own.upstream.requests[at])[0]) for at in (3, 4))
        assert half <= whole * 0.55
        assert "characters left out" in said(own.upstream.requests[4])[0]
        assert "Half of it." in said(own.upstream.requests[5])[0]


async def test_a_turn_completes_although_even_half_is_too_long_for_the_summarizer() -> None:
    given = await settings_for(1500)
    script = [says(f"{number} {LONG * 2}") for number in range(3)]
    async with engine(*script, [TOO_LONG], [TOO_LONG], says("end"), **given) as own:
        with capture_logs():
            await talk(own, f"first {LONG * 2}", f"second {LONG * 2}", "third", f"fourth {LONG * 3}")

        assert kinds(own) == "mmmssm"
        assert said(own.upstream.requests[5])[0].startswith("<omitted")
        assert compactions.head(own.db.reader, own.home.no) is None


async def test_an_overloaded_summarizer_is_asked_again(autojump_clock: MockClock) -> None:
    given = await settings_for(700)
    async with engine(*THREE_TURNS, [OVERLOADED], says("They said one."), says("four"), **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        assert kinds(own) == "mmmssm"
        assert own.upstream.requests[3].messages == own.upstream.requests[4].messages
        assert head(own).sequence == 1


async def test_a_summary_that_could_not_be_stored_costs_no_later_turn() -> None:
    given = await settings_for(700)
    answers = [says("They said one."), says("It was said again."), says("five")]
    async with engine(*THREE_TURNS, *answers, **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third")
        commit = own.journal.commit

        async def refuse_once(request: CommitSteps) -> Committed:
            if request.compaction is None:
                return await commit(request)
            own.journal.commit = commit  # type: ignore[method-assign]
            raise StorageFull("peen.db", "no space")

        own.journal.commit = refuse_once  # type: ignore[method-assign]
        lost = await own.run_turn("fourth")
        before = len(own.journal.commits)
        await talk(own, "fifth")

        assert (lost.state, kinds(own)) == ("failed", "mmmssm")
        made = [commit for commit in own.journal.commits[before:] if commit.compaction is not None]
        assert len(made) == 1  # the worker knows that nothing of the lost one is there
        assert head(own).sequence == 1


# --- leaving out ------------------------------------------------------------------------------------------------------


async def test_the_oldest_units_are_left_out_and_the_note_says_so() -> None:
    given = await settings_for(700, compaction_mode="drop-oldest")
    async with engine(*THREE_TURNS, says("four"), **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        shown = said(own.upstream.requests[3])
        assert shown[0].startswith('<omitted messages="2" requests="1" answers="1">')
        assert shown[1:] == [f"second {LONG}", f"two {LONG}", "third", f"three {LONG}", "fourth"]
        assert set(links(own)) == {None}
        assert own.db.reader.rows("SELECT count(*) FROM activity WHERE kind = 'compact'") == [(0,)]


async def test_a_long_turn_keeps_its_request_and_the_exchange_that_goes_on() -> None:
    given = await settings_for(700, compaction_mode="drop-oldest")
    script = [asks(("look", work(f"{number} {LONG}"))) for number in range(5)]
    async with engine(*script, says("done"), **given) as own:
        await talk(own, "the task")

        for request in own.upstream.requests:
            assert (
                fixed_tokens(request.system, request.tools) + sum(map(text_tokens, said(request)))
                < given["max_context_tokens"] - 300
            )
        last = own.upstream.requests[-1].messages
        assert [message.role for message in last] == ["user", "user", *["assistant", "tool"] * ((len(last) - 2) // 2)]
        assert (last[0].content, last[1].injected_kind) == ("the task", "omitted")
        assert last[-1].content.startswith('{"said":"4 word')


async def test_a_request_that_the_provider_calls_too_long_is_followed_by_a_shorter_one_twice() -> None:
    script: list[Attempt] = [says(f"one {LONG}"), says(f"two {LONG}"), [TOO_LONG], [TOO_LONG], says("three")]
    async with engine(*script) as own:
        with capture_logs():
            await talk(own, f"first {LONG}", f"second {LONG}", "third")

        lengths = [len(request.messages) for request in own.upstream.requests[2:]]
        assert lengths == sorted(lengths, reverse=True)
        assert len(set(lengths)) == 3
        assert said(own.upstream.requests[-1])[0].startswith("<omitted")
        assert said(own.upstream.requests[-1])[-1] == "third"
        retries = [data for name, data in frames(own.db, own.home) if name == "provider.retry"]
        assert [(data["reason"], data["status"], data["delayMs"]) for data in retries] == [
            ("context_length_exceeded", 400, 0)
        ] * 2


async def test_a_third_refusal_fails_the_turn_and_the_next_turn_asks_for_less_from_the_start() -> None:
    script: list[Attempt] = [says(f"one {LONG}"), says(f"two {LONG}"), *[[TOO_LONG]] * 3, says("four")]
    async with engine(*script) as own:
        with capture_logs():
            await talk(own, f"first {LONG}", f"second {LONG}")
            failed = await own.run_turn("third")
            await talk(own, "fourth")

        assert failed.state == "failed"
        assert said(own.upstream.requests[-1])[0].startswith("<omitted")
        assert said(own.upstream.requests[-1])[-1] == "fourth"


async def test_a_request_of_which_nothing_can_be_left_out_fails_at_once() -> None:
    async with engine([TOO_LONG]) as own:
        actor = await own.run_turn(LONG)

        assert actor.state == "failed"
        assert kinds(own) == "m"


async def test_what_the_provider_counted_corrects_the_estimate_also_for_the_next_worker() -> None:
    given = await settings_for(700)
    fixed = given["max_context_tokens"] - 1000
    twice: Attempt = [TextDelta("one"), UsageReported(Usage(prompt=2 * fixed)), Finished("stop", MODEL_ID)]
    async with engine(twice, says("two"), says("short"), says("three"), **given) as own:
        await talk(own, "first")
        await own.lose_worker()
        # By its characters this is far below the budget.
        await talk(own, "second")
        await talk(own, "third")

        assert kinds(own) == "mmsm"


def _by_what_is_asked(request: ModelRequest) -> Attempt:
    """A summary, one call, and the answer."""
    if is_summarizing(request):
        return says("They said one.")
    return says("four") if request.messages[-1].role == "tool" else asks(("look", work(LONG * 2)))


# --- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_worker_that_dies_at_any_commit_leaves_raw_or_summarized_history_and_the_turn_goes_on() -> None:
    given = await settings_for(700)
    ends: set[str] = set()
    for calls in range(1, 20):
        async with engine(*THREE_TURNS, **given) as own:
            await talk(own, f"first {LONG}", "second", "third")
            own.upstream.choose = _by_what_is_asked  # type: ignore[method-assign]
            before = len(own.journal.asked)
            own.journal.lost_after = before + calls
            with capture_logs():
                actor = await own.run_turn("fourth")
                if actor.state == "completed":
                    assert calls == 6
                    assert ends == {"raw", "summarized"}
                    return
                covered = links(own)
                assert covered[:6] in ([None] * 6, [1] * 4 + [None] * 2)
                is_summarized = compactions.head(own.db.reader, own.home.no) is not None
                assert is_summarized == (covered[0] == 1)
                ends.add("summarized" if is_summarized else "raw")
                await own.lose_worker()
                resumed = await own.resume_turn()

            assert resumed.state == "completed"
            assert kinds(own).count("s") >= 1
            summaries = [number for (number,) in own.db.reader.rows("SELECT key & 0xFFFFFFFF FROM compaction")]
            assert summaries == [1]
            last = said(own.upstream.requests[-1])
            assert last[0] == head(own).summary
            assert sum("They said one." in text for text in last) == 1
            assert [state for step, state in steps_of(own, 4) if step.endswith(".compact")] == ["completed"]
            check_sequences(own.db.reader)
    raise AssertionError("the turn never completed")


async def test_a_resumed_turn_summarizes_as_it_was_started_whatever_is_configured_now() -> None:
    given = await settings_for(700)
    script = [*THREE_TURNS, asks(("look", work(LONG * 2)))]
    async with engine(*script, says("They said one."), says("four"), **given) as own:
        await talk(own, f"first {LONG}", "second", "third")
        own.journal.lost_after = len(own.journal.asked) + 3  # the call has not begun to run when the link is lost
        with capture_logs():
            await own.run_turn("fourth")
            own.change_settings(compaction_mode="drop-oldest", compaction_max_output_tokens=7)
            await own.lose_worker()
            await own.resume_turn()

        summary = next(request for request in own.upstream.requests if is_summarizing(request))
        assert summary.max_output_tokens == 100
        assert head(own).sequence == 1


async def test_a_turn_that_later_turns_were_summarized_with_goes_on_from_its_own_past() -> None:
    given = await settings_for(700)
    script = [says("one"), asks(("look", work())), *THREE_TURNS[:2], says("All of it."), says("five")]
    async with engine(*script, says("resumed"), **given) as own:
        await talk(own, "first")
        own.journal.lost_after = len(own.journal.asked) + 3
        with capture_logs():
            await own.run_turn("paused")
        await own.lose_worker()
        await talk(own, f"third {LONG}", f"fourth {LONG}", f"fifth {LONG}")
        assert kinds(own) == "mm" + "mmsm"
        covered = links(own)
        await own.resume_turn()

        shown = said(own.upstream.requests[-1])
        assert shown[:2] == ["first", "one"]
        assert "paused" in shown
        assert not any("third" in text or "All of it." in text for text in shown)
        assert links(own)[: len(covered)] == covered


async def test_a_model_answers_between_two_compactions() -> None:
    given = await settings_for(500)
    rounds = [asks(("look", work(f"{number} {LONG}"))) for number in range(6)]
    script = [*THREE_TURNS, says("They said one."), *rounds, says("done")]
    async with engine(*script, **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        assert "ss" not in kinds(own)
        assert kinds(own).count("s") < 4


async def test_a_stop_ends_the_summarizers_request_and_nothing_is_stored(autojump_clock: MockClock) -> None:
    given = await settings_for(700)
    slow: Attempt = [TextDelta("They said"), 60.0, TextDelta(" one."), Finished("stop", MODEL_ID)]
    async with engine(*THREE_TURNS, slow, **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third")
        with trio.move_on_after(1.0) as scope:
            await own.run_turn("fourth")

        assert scope.cancelled_caught
        assert own.upstream.open_streams == 0
        assert steps_of(own, 4) == [("r0.prepare", "completed"), ("r0.compact", "running")]
        assert compactions.head(own.db.reader, own.home.no) is None


async def test_a_turn_whose_summarizer_cannot_be_had_is_summarized_by_its_own_model() -> None:
    given = await settings_for(700, compaction_model="gone/away")
    async with engine(*THREE_TURNS, says("They said one."), says("four"), **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third", "fourth")

        assert kinds(own) == "mmmsm"
        assert head(own).model == "up/m"
