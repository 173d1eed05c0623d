"""The store knows of an attempt before its request goes out, and how far the last one had come when its worker died."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from engine_kit import LONG, Attempt, Engine, PlayedUpstream, engine, says, settings_for
from test_execution_compaction import THREE_TURNS, talk
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.stream import ModelRequest, StreamEvent, TextDelta, UsageReported
from peen.store import audit
from peen.wire.records import KeptProgress, Usage

OVERLOADED = ModelError("try again", kind="server_error", retryable=True, status=503)
BUSY = ModelError("too many", kind="rate_limited", retryable=True, status=429, retry_after_ms=50_000)
TOO_LONG = ModelError("too long", kind="context_length_exceeded", retryable=False, status=400)


class Witness(PlayedUpstream):
    """Notes what the store keeps of the step whenever a request comes."""

    own: Engine
    knew: list[tuple[list[str | None], bool] | None]

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        self.knew.append(kept(self.own))
        async with super().stream(request) as items:
            yield items


def kept(own: Engine) -> tuple[list[str | None], bool] | None:
    """What is kept of the step that asks now: failures so far, and whether another attempt is under way."""
    rows = own.db.reader.rows("SELECT progress FROM activity WHERE state = 'running' AND kind = 'model'")
    ((progress,),) = rows
    if progress is None:
        return None
    found = msgspec.json.decode(progress, type=KeptProgress)
    return [priced.call.failure_kind for priced in found.failed], found.under_way is not None


@asynccontextmanager
async def witnessed(*attempts: Attempt) -> AsyncIterator[tuple[Engine, Witness]]:
    async with engine() as own:
        witness = Witness(*attempts)
        witness.own, witness.knew = own, []
        own.upstream = witness
        yield own, witness


@pytest.mark.parametrize("failure", [OVERLOADED, TOO_LONG])
async def test_an_attempt_is_stored_before_its_request_goes_out(autojump_clock: MockClock, failure: ModelError) -> None:
    async with witnessed(says("one"), says("two"), [failure], says("three")) as (own, witness):
        for text in ("first", "second", "third"):
            await own.run_turn(text)

        # The commit that begins the step stands for its first attempt.
        assert witness.knew == [None, None, None, ([failure.kind], True)]
        assert own.db.reader.rows("SELECT count(*) FROM activity WHERE progress IS NOT NULL") == [(0,)]


async def test_an_answer_at_the_first_attempt_that_comes_at_once_costs_no_further_call() -> None:
    async with engine(says("yes")) as own:
        await own.run_turn()

        assert own.journal.emits == []


async def test_the_first_pieces_of_an_answer_tell_that_it_streams_and_later_ones_only_what_is_new(
    autojump_clock: MockClock,
) -> None:
    report = UsageReported(Usage(prompt=5, completion=1))
    slow: Attempt = [report, TextDelta("a"), 1.0, TextDelta("b"), 1.0, *says("c")]
    async with engine(slow) as own:
        await own.run_turn()

        first, *later = [emit.progress for emit in own.journal.emits]
        assert first is not None
        assert first.under_way is not None
        assert (first.under_way.streamed, first.under_way.usage.prompt, first.under_way.ended) == (True, 5, False)
        assert later
        assert set(later) == {None}


async def lose_worker_during(own: Engine, text: str, *, at_s: float) -> None:
    """Run a turn whose worker dies so many seconds after it began."""
    with trio.move_on_after(at_s):
        await own.run_turn(text)
    await own.lose_worker()


def recorded(own: Engine, stage: str) -> list[tuple[int, str | None, bool, bool]]:
    """Round, failure, whether it streamed and may be billed, of each attempt of the newest run of a stage."""
    run = next(audit.runs(own.db.reader, own.home.no, stage=stage, state=None, limit=1, offset=0))
    return [
        (call.round, call.failure_kind, bool(call.streamed), call.is_unpriced)
        for attempts in audit.rounds(own.db.reader, run.no)
        for call in attempts
    ]


CUT = [
    ([[BUSY]], [(0, "rate_limited", False, False)]),
    ([[OVERLOADED], [TextDelta("I"), 60.0]], [
        (0, "server_error", False, False), (0, "interrupted", True, True),
    ]),
    ([[60.0]], [(0, "interrupted", False, True)]),
]  # fmt: skip


@pytest.mark.parametrize(("attempts", "told"), CUT)
async def test_of_a_worker_that_died_the_attempts_that_it_made_are_recorded(
    autojump_clock: MockClock, attempts: list[Attempt], told: list[tuple[int, str | None, bool, bool]]
) -> None:
    async with engine(*attempts) as own:
        await lose_worker_during(own, "go", at_s=10.0)

        assert recorded(own, "turn") == told


@pytest.mark.parametrize(("attempts", "told"), CUT)
async def test_of_a_summarizer_whose_worker_died_too_and_the_model_was_not_asked(
    autojump_clock: MockClock, attempts: list[Attempt], told: list[tuple[int, str | None, bool, bool]]
) -> None:
    given = await settings_for(700)
    async with engine(*THREE_TURNS, *attempts, **given) as own:
        await talk(own, f"first {LONG}", f"second {LONG}", "third")
        await lose_worker_during(own, "fourth", at_s=10.0)

        # What a summarizer says is shown to nobody and told only when it has ended.
        assert recorded(own, "compaction") == [(number, why, False, billed) for number, why, _, billed in told]
        assert recorded(own, "turn") == []
