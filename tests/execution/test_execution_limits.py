"""Budgets: what is counted, where it ends, and what a turn does then."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import trio
from engine_kit import LONG, Attempt, Engine, PlayedUpstream, asks, engine, says, settings_for, work
from trio.testing import MockClock
from world_kit import acceptance, execution_of, frames, transcript, uuid

from peen.errors import ModelError
from peen.execution.limits import after, reached
from peen.model.price import Prices, dollars, picos
from peen.model.stream import Finished, TextDelta, UsageReported
from peen.session.acceptance import accept_queued
from peen.session.spending import Terms
from peen.store import activities, sessions
from peen.store.sessions import SessionRow
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Budget, Usage
from peen.wire.turncalls import CommitSteps, Committed

PRICED = UpstreamConfig(name=PlayedUpstream.name, type="openai", prices={"m": Price(input="3", output="15")})
OVERLOADED = ModelError("try again", kind="server_error", retryable=True, status=503)
TOO_LONG = ModelError("too long", kind="context_length_exceeded", retryable=False, status=400)
FATAL = ModelError("no", kind="invalid_request", retryable=False, status=400)
DOLLAR = 10**12


def used(prompt: int, completion: int) -> UsageReported:
    return UsageReported(Usage(prompt=prompt, completion=completion))


def look(prompt: int, completion: int, **arguments: Any) -> Attempt:
    """An answer that asks for a tool and used so much."""
    return [*asks(("look", work(**arguments)))[:-1], used(prompt, completion), Finished("tool_calls", "m")]


def answer(text: str, prompt: int, completion: int) -> Attempt:
    return [TextDelta(text), used(prompt, completion), Finished("stop", "m")]


def last_end(own: Engine) -> tuple[str, dict[str, Any]]:
    return [frame for frame in frames(own.db, own.home) if frame[0].startswith("turn.") and "start" not in frame[0]][-1]


def row(own: Engine) -> SessionRow:
    found = sessions.by_no(own.db.reader, own.home.no)
    assert found is not None
    return found


async def limit(own: Engine, *, tokens: int = 0, cost: int = 0) -> None:
    """What `POST /sessions/open` with a budget does to an existing session."""
    session = row(own)
    change = partial(
        sessions.open_or_create, new_id=uuid(1).bytes, workspace=session.workspace, agent_space="control",
        root_agent="peen", model="m", at_ms=1, budget=(tokens, cost),
    )  # fmt: skip
    await own.db.write(change)


# --- the question and its answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "cost", "max_tokens", "max_cost", "is_over"),
    [
        (10**12, 10**15, 0, 0, False),
        (99, 0, 100, 0, False),
        (100, 0, 100, 0, True),
        (0, DOLLAR - 1, 0, DOLLAR, False),
        (0, DOLLAR, 0, DOLLAR, True),
        (5, DOLLAR, 100, 2 * DOLLAR, False),
    ],
)
def test_a_limit_is_reached_when_as_much_was_used(
    tokens: int, cost: int, max_tokens: int, max_cost: int, is_over: bool
) -> None:
    found = reached(Budget(tokens=tokens, cost=cost, max_tokens=max_tokens, max_cost=max_cost))

    assert (found is not None) == is_over


def test_the_error_names_the_limit_what_was_used_and_what_to_do() -> None:
    of_all = reached(Budget(tokens=0, cost=2_500_300_000_000, max_cost=5 * DOLLAR // 2))
    own = reached(Budget(tokens=12_345, cost=0, max_tokens=12_000, is_own_tokens=True))

    assert of_all is not None
    assert "2.5003 US dollars, and its limit is 2.5 US dollars (PEEN_MAX_SESSION_COST_USD)" in of_all
    assert "raise PEEN_MAX_SESSION_COST_USD" in of_all
    assert own is not None
    assert "12,345 tokens, and its limit is 12,000 tokens (its budget.tokens)" in own
    assert "POST /api/v1/sessions/open" in own


def test_nothing_limits_a_session_without_a_budget() -> None:
    assert reached(None) is None


def test_an_attempt_counts_with_what_is_known_of_it() -> None:
    before = Budget(tokens=1, cost=1, max_tokens=9)
    usage = Usage(prompt=1000, completion=100)

    priced = after(before, usage, PRICED.prices["m"])
    unpriced = after(before, Usage(prompt=7), None)

    assert (priced.tokens, priced.cost) == (1101, 1 + 4_500_000_000)  # $0.0045
    assert (unpriced.tokens, unpriced.cost) == (8, 1)


def test_amounts_are_exact_to_a_trillionth_and_rounded_up_beyond() -> None:
    assert [picos(Decimal(text)) for text in ("0.000000037500", "1", "0.0000000000001")] == [37_500, DOLLAR, 1]
    assert [dollars(count) for count in (0, 37_500, DOLLAR, 1)] == ["0", "0.0000000375", "1", "0.000000000001"]


@pytest.mark.parametrize(
    ("own", "common", "counts", "is_own"),
    [(0, 0, None, False), (5, 0, 5, True), (0, 7, 7, False), (5, 7, 5, True), (9, 7, 7, False), (7, 7, 7, False)],
)
async def test_the_lower_of_two_limits_counts(own: int, common: int, counts: int | None, is_own: bool) -> None:
    async with engine(terms=Terms(max_tokens=common)) as world:
        await limit(world, tokens=own)
        budget = Terms(max_tokens=common).budget(row(world))

    assert (None if budget is None else (budget.max_tokens, budget.is_own_tokens)) == (
        None if counts is None else (counts, is_own)
    )


# --- turns ------------------------------------------------------------------------------------------------------------


async def test_no_provider_is_asked_any_more_once_the_tokens_are_used_up() -> None:
    async with engine(look(60, 40), terms=Terms(max_tokens=100)) as own:
        actor = await own.run_turn()
        steps = [step.step for step in activities.steps(own.db.reader, execution_of(own.db, str(uuid(3001))).no)]
        kind, data = last_end(own)
        roles = [row.message.role for row in transcript(own.db, own.home)]

        assert (len(own.upstream.requests), own.look.done, actor.state) == (1, 1, "failed")
        assert (kind, data["reason"]) == ("turn.failed", "budgetReached")
        assert "100 tokens" in data["error"]
        assert "PEEN_MAX_SESSION_TOKENS" in data["error"]
        assert roles == ["user", "assistant", "tool", "system"]  # what was done before stands
        assert "r1.model" not in steps


async def test_a_session_within_its_limits_is_not_touched() -> None:
    terms = Terms(Prices([PRICED]), max_tokens=1000, max_cost=DOLLAR)
    async with engine(look(60, 40), answer("done", 70, 5), terms=terms) as own:
        await own.run_turn()

        assert last_end(own)[0] == "turn.completed"
        assert (row(own).spent.tokens, dollars(row(own).spent.cost)) == (175, "0.001065")


async def test_an_answer_that_uses_up_the_rest_completes_and_the_next_turn_fails_at_once_also_after_a_restart() -> None:
    async with engine(answer("done", 100, 20), terms=Terms(max_tokens=100)) as own:
        await own.run_turn()
        assert last_end(own)[0] == "turn.completed"

        for _ in range(2):
            await own.replace_worker()
            await own.run_turn("more")
            kind, data = last_end(own)
            assert (kind, data["reason"]) == ("turn.failed", "budgetReached")
        assert len(own.upstream.requests) == 1
        assert [run.message.content for run in transcript(own.db, own.home) if run.message.role == "user"] == [
            "go", "more", "more",
        ]  # fmt: skip


async def test_cost_is_counted_at_the_prices_of_the_upstream() -> None:
    terms = Terms(Prices([PRICED]), max_cost=DOLLAR)
    async with engine(look(100_000, 10_000), look(200_000, 10_000), look(1, 1), terms=terms) as own:
        await own.run_turn()

        # 0.3 + 0.15, then 0.6 + 0.15: together 1.2 dollars
        assert len(own.upstream.requests) == 2
        assert "1.2 US dollars" in last_end(own)[1]["error"]
        assert (row(own).spent.cost, row(own).spent.unpriced) == (12 * DOLLAR // 10, 0)


async def test_what_is_not_known_counts_as_nothing_and_is_not_hidden() -> None:
    async with engine(look(10**9, 10**9), says("unmeasured"), terms=Terms(max_cost=1)) as own:
        await own.run_turn()

        assert last_end(own)[0] == "turn.completed"
        assert (row(own).spent.tokens, row(own).spent.cost, row(own).spent.unpriced) == (2 * 10**9, 0, 2)


@pytest.mark.parametrize("terms", [Terms(max_tokens=50), Terms(Prices([PRICED]), max_cost=100)])
async def test_failed_attempts_count_and_there_is_no_further_one_once_they_have_used_up_the_rest(
    autojump_clock: MockClock, terms: Terms
) -> None:
    begun: Attempt = [used(30, 1), TextDelta("I"), OVERLOADED]
    async with engine(begun, [OVERLOADED], begun, says("never"), terms=terms, upstreams=[PRICED]) as own:
        await own.run_turn()

        tries = 3 if terms.max_tokens else 1  # 31 tokens each time; 105 millionths of a dollar
        assert len(own.upstream.requests) == tries
        assert last_end(own)[1]["reason"] == "budgetReached"
        assert row(own).spent.tokens == (62 if terms.max_tokens else 31)
        states = own.db.reader.rows("SELECT state FROM model_call ORDER BY key")
        assert states == [("failed",)] * tries


async def test_a_shorter_request_is_not_sent_either_once_the_one_that_was_too_long_has_used_up_the_rest() -> None:
    refused: Attempt = [used(40, 0), TOO_LONG]
    script = [answer(f"one {LONG}", 10, 1), answer(f"two {LONG}", 10, 1), refused, says("never")]
    async with engine(*script, terms=Terms(max_tokens=60)) as own:
        for text in (f"first {LONG}", f"second {LONG}", "third"):
            await own.run_turn(text)

        assert len(own.upstream.requests) == 3
        assert (last_end(own)[0], last_end(own)[1]["reason"]) == ("turn.failed", "budgetReached")
        assert row(own).spent.tokens == 62
        assert "provider.retry" not in [kind for kind, _ in frames(own.db, own.home)]


@pytest.mark.parametrize("broken", [OVERLOADED, TOO_LONG, FATAL])
@pytest.mark.parametrize("terms", [Terms(max_tokens=90), Terms(Prices([PRICED]), max_cost=1_350_000_000)])
async def test_a_summarizer_that_has_used_up_the_rest_is_not_asked_again_and_neither_is_the_model(
    autojump_clock: MockClock, broken: ModelError, terms: Terms
) -> None:
    given = await settings_for(700)
    failing: Attempt = [used(0, 60), TextDelta("They"), broken]
    script = [*(answer(f"{text} {LONG}", 0, 10) for text in ("one", "two", "three")), failing, says("never")]
    async with engine(*script, terms=terms, upstreams=[PRICED], **given) as own:
        for text in (f"first {LONG}", f"second {LONG}", "third", "fourth"):
            await own.run_turn(text)

        assert len(own.upstream.requests) == 4
        assert (last_end(own)[0], last_end(own)[1]["reason"]) == ("turn.failed", "budgetReached")
        assert row(own).spent.tokens == 90
        assert own.db.reader.rows("SELECT state FROM model_call ORDER BY key")[3:] == [("failed",)]
        run = own.db.reader.row("SELECT stage, state, failure_classification FROM model_run WHERE stage = 'compaction'")
        kind = "budgetReached" if broken is not FATAL else "invalid_request"
        assert run == ("compaction", "failed", kind)


async def test_a_limit_that_comes_with_the_begin_of_a_summary_holds_before_its_first_request() -> None:
    given = await settings_for(700)
    script = [*(answer(f"{text} {LONG}", 0, 10) for text in ("one", "two", "three")), says("never")]
    async with engine(*script, **given) as own:
        for text in (f"first {LONG}", f"second {LONG}", "third"):
            await own.run_turn(text)

        commit = own.journal.commit

        async def lowered(request: CommitSteps) -> Committed:
            if any(claim.kind == "compact" for claim in request.claims):
                await limit(own, tokens=30)
            return await commit(request)

        own.journal.commit = lowered  # type: ignore[method-assign]
        await own.run_turn("fourth")

        assert len(own.upstream.requests) == 3
        assert last_end(own)[1]["reason"] == "budgetReached"


async def test_a_limit_that_comes_while_a_tool_runs_holds_before_the_next_request(autojump_clock: MockClock) -> None:
    async with engine(look(60, 40, takes_s=2.0), says("never")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        await limit(own, tokens=50)
        await trio.sleep(5.0)

        assert len(own.upstream.requests) == 1
        assert last_end(own)[1]["reason"] == "budgetReached"
        assert "its budget.tokens" in last_end(own)[1]["error"]
        (last,) = [commit for commit in own.journal.commits if commit.terminal is not None]
        assert last.terminal is not None
        assert last.terminal.reason == "budgetReached"


async def test_a_limit_that_is_raised_while_a_tool_runs_lets_the_turn_go_on(autojump_clock: MockClock) -> None:
    async with engine(look(60, 40, takes_s=2.0), says("done")) as own, trio.open_nursery() as nursery:
        await limit(own, tokens=100)
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        await limit(own, tokens=101)
        await trio.sleep(5.0)

        assert last_end(own)[0] == "turn.completed"


async def test_a_message_that_waits_behind_the_last_answer_opens_a_turn_that_ends_at_once(
    autojump_clock: MockClock,
) -> None:
    slow: Attempt = [TextDelta("do"), 2.0, *answer("ne", 100, 20)]
    async with engine(slow, says("never"), terms=Terms(max_tokens=100)) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        waiting = acceptance(own.home, "and this", frame=50, turn_id=str(uuid(3001)))
        await own.db.write(partial(accept_queued, session_no=own.home.no, acceptance=waiting, capacity=16))
        await trio.sleep(5.0)

        (end,) = own.ends
        assert end.state == "completed"
        assert end.following is not None
        await own.carry_out(end.following.turn_id, "and this")

        assert [ended.state for ended in own.ends] == ["completed", "failed"]
        assert last_end(own)[1]["reason"] == "budgetReached"
        assert len(own.upstream.requests) == 1


async def test_a_message_that_waits_for_the_end_of_a_tool_reaches_the_turn_that_fails(
    autojump_clock: MockClock,
) -> None:
    async with engine(look(100, 20, takes_s=2.0), terms=Terms(max_tokens=100)) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        waiting = acceptance(own.home, "and this", frame=50, turn_id=str(uuid(3001)))
        await own.db.write(partial(accept_queued, session_no=own.home.no, acceptance=waiting, capacity=16))
        await trio.sleep(5.0)

        kinds = [kind for kind, _ in frames(own.db, own.home)]
        assert kinds.index("userMessage.delivered") < kinds.index("turn.failed")
        assert last_end(own)[1]["reason"] == "budgetReached"


async def test_reported_nonsense_neither_breaks_a_commit_nor_the_counters() -> None:
    huge = answer("huge", 2**62, 2**62)
    async with engine(huge, huge, terms=Terms(Prices([PRICED]))) as own:
        await own.run_turn()
        await own.run_turn()

        assert last_end(own)[0] == "turn.completed"
        assert row(own).spent.prompt == row(own).spent.cost == 2**62
