"""Attempts at a provider over REST: what is told of each, and every view tells the same tokens and the same cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
import trio
from engine_kit import Attempt, Engine, PlayedUpstream
from rest_kit import Office, engine_in, office
from trio.testing import wait_all_tasks_blocked

from peen.cli.outcome import Outcome, with_usage
from peen.errors import ModelError
from peen.model.price import Prices
from peen.model.stream import Finished, ModelRequest, StreamEvent, TextDelta, UsageReported
from peen.model.transport import no_connection_in_time
from peen.session.acceptance import end_accepted, fence
from peen.session.ending import STOPPED, Ending, interrupted
from peen.session.spending import Terms
from peen.store import turns
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Usage

PRICED = Terms(
    Prices([UpstreamConfig(name=PlayedUpstream.name, type="openai", prices={"m": Price(input="3", output="15")})])
)
UNPRICED = Terms()
HOLD = 0.0
"""A piece at which the provider says nothing more, for ever."""
OVERLOADED = ModelError("try later", kind="server_error", retryable=True, status=503)
BROKEN = ModelError("the connection broke", kind="transport", retryable=True)
BUSY = ModelError("too many", kind="rate_limited", retryable=True, status=429, retry_after_ms=50_000)
LATER = ModelError("later", kind="server_error", retryable=True, retry_after_ms=50_000)
NO_CONNECTION = no_connection_in_time("http://nowhere")
BEGUN = UsageReported(Usage(prompt=1000, completion=1))
USED = UsageReported(Usage(prompt=1000, completion=100))
ANSWER: Attempt = [TextDelta("yes"), USED, Finished("stop", "m")]
UNMEASURED: Attempt = [TextDelta("yes"), Finished("stop", "m")]
LOST = interrupted("interrupted", "the worker was lost")


class OverHttp:
    """The stream of an answer whose head has come, with status 200."""

    status = 200

    def __init__(self, items: AsyncIterator[StreamEvent]) -> None:
        self._items = items

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self._items

    async def __anext__(self) -> StreamEvent:
        return await anext(self._items)


class HttpUpstream(PlayedUpstream):
    """Plays its attempts as if over HTTP: what begins with an error or a `HOLD` has no head of an answer."""

    def __init__(self, *attempts: Attempt) -> None:
        super().__init__(*attempts)
        self.holds = trio.Event()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        async with super().stream(request) as items:
            first = self.choose(request)[0]
            if isinstance(first, ModelError):
                raise first
            if first == HOLD:
                await self._hold()
            yield OverHttp(items)

    async def _play(self, attempt: Attempt) -> AsyncGenerator[StreamEvent, None]:
        for piece in attempt:
            if isinstance(piece, ModelError):
                raise piece
            if isinstance(piece, float):
                await self._hold()
            else:
                yield piece

    async def _hold(self) -> None:
        self.holds.set()
        await trio.sleep_forever()


class Views(NamedTuple):
    """What each operation tells of a turn that is the only one of its session. `executed` is of `peen exec --json`."""

    session: Any
    turn: Any
    executed: Any
    executed_session: Any
    run: Any
    calls: list[Any]


async def views_of(own: Office, worker: Engine) -> Views:
    session = await own.get("/session", worker.home)
    page = await own.get("/session/turns", worker.home)
    (turn,) = page["turns"]
    (run,) = (await own.get("/session/model-runs", worker.home))["modelRuns"]
    calls = (await own.get(f"/session/model-runs/{run['id']}/calls", worker.home))["calls"]
    told = with_usage(
        Outcome(state="completed", request_id=turn["requestId"]),
        msgspec.json.encode(session),
        msgspec.json.encode(page),
    )
    executed, of_session = (
        msgspec.json.decode(msgspec.json.encode(usage)) for usage in (told.usage, told.session_usage)
    )
    return Views(session["usage"], turn["usage"], executed, of_session, run, calls)


async def cut_off(worker: Engine, upstream: HttpUpstream, ending: Ending, *, at: Literal["hold", "wait"]) -> None:
    """Run a turn and end it when its provider says nothing more, or while the next attempt is waited for.

    A Stop is stored first, as always; a worker that was lost writes nothing any more.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run_turn)
        if at == "hold":
            await upstream.holds.wait()
        await wait_all_tasks_blocked()
        if ending is STOPPED:
            await worker.db.write(partial(fence, session_no=worker.home.no, at_ms=worker.entropy.now_ms()))
        nursery.cancel_scope.cancel()
    (turn,) = turns.running(worker.db.reader)
    await worker.db.write(
        partial(end_accepted, session_no=worker.home.no, turn_id=turn.id, ending=ending, at_ms=worker.entropy.now_ms())
    )


class Case(NamedTuple):
    attempts: tuple[Attempt, ...]
    cost: str
    is_known: bool
    terms: Terms = PRICED
    cut_at: Literal["hold", "wait"] | None = None
    prompt: int | None = 1000
    completion: int | None = 100


WITHOUT: dict[str, Any] = {"prompt": None, "completion": None}
CASES = {
    "a priced answer": Case((ANSWER,), "0.0045", True),
    "a model without a price": Case((ANSWER,), "0", False, UNPRICED),
    "an answer that nobody measured": Case((UNMEASURED,), "0", False, **WITHOUT),
    "refused, then an answer": Case(([OVERLOADED], ANSWER), "0.0045", True),
    "never connected, then an answer": Case(([NO_CONNECTION], ANSWER), "0.0045", True),
    "refused without a price": Case(([ModelError("no", kind="x", retryable=False, status=404)],), "0", True, UNPRICED,
                                    **WITHOUT),
    "broken before the head, then an answer": Case(([BROKEN], ANSWER), "0.0045", False),
    "an error in the stream, then an answer": Case(
        ([BEGUN, ModelError("overloaded", kind="server_error", retryable=True)], ANSWER), "0.007515", False,
        prompt=2000, completion=101,
    ),
    "cut in mid-stream, then an answer": Case(([TextDelta("y"), BROKEN], ANSWER), "0.0045", False),
    "cut in mid-stream with a report": Case(
        ([BEGUN, TextDelta("y"), BROKEN], ANSWER), "0.007515", False, prompt=2000, completion=101
    ),
    "a Stop in mid-stream": Case(([BEGUN, TextDelta("y"), HOLD],), "0.003015", False, cut_at="hold", completion=1),
    "a Stop in mid-stream without a report": Case(([TextDelta("y"), HOLD],), "0", False, cut_at="hold", **WITHOUT),
    "a Stop before the head": Case(([HOLD],), "0", False, cut_at="hold", **WITHOUT),
    "a Stop in the wait after a refusal": Case(([BUSY],), "0", True, cut_at="wait", **WITHOUT),
    "a Stop in the wait after a broken stream": Case(
        ([TextDelta("y"), LATER],), "0", False, cut_at="wait", **WITHOUT
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_every_view_tells_the_same_tokens_and_the_same_cost(tmp_path: Path, case: Case) -> None:
    upstream = HttpUpstream(*case.attempts)
    async with office(tmp_path) as own:
        worker = await engine_in(own, upstream, terms=case.terms)
        if case.cut_at is None:
            await worker.run_turn()
        else:
            await cut_off(worker, upstream, STOPPED, at=case.cut_at)
        told = await views_of(own, worker)

    tokens = {"prompt": case.prompt, "completion": case.completion}
    if case.prompt is not None and case.completion is not None:
        tokens["total"] = case.prompt + case.completion
    expected: dict[str, Any] = {name: count for name, count in tokens.items() if count is not None}
    expected |= {"billedCostAmount": case.cost, "costKnown": case.is_known}
    assert told.session == told.turn == told.executed == told.executed_session == expected
    (call,) = told.calls
    for shown in (told.run, call):
        assert (shown["billedCostAmount"], shown["costKnown"]) == (case.cost, case.is_known)
    usage = call["responseUsage"]
    assert usage == told.run["responseUsage"]
    assert usage["totalAttempts"] == len(case.attempts) == len(upstream.requests)
    for name, count in tokens.items():
        wasted = [attempt["tokens"].get(name) for attempt in usage["failedAttempts"]]
        known = [number for number in wasted if number is not None]
        assert usage.get(f"wasted{name.title()}") == (sum(known) if known else None)
        assert call[f"wasted{name.title()}Tokens"] == sum(known)
        assert call[f"{name}Tokens"] + sum(known) == (count or 0)


async def test_where_nothing_was_asked_the_cost_is_nothing_and_known_in_every_view(tmp_path: Path) -> None:
    terms = Terms(max_tokens=1)
    async with office(tmp_path) as own:
        worker = await engine_in(own, HttpUpstream(ANSWER), terms=terms)
        await worker.run_turn()
        await worker.run_turn("more")
        refused, _ = (await own.get("/session/turns", worker.home))["turns"]
        run, _ = (await own.get("/session/model-runs", worker.home))["modelRuns"]
        calls = (await own.get(f"/session/model-runs/{run['id']}/calls", worker.home))["calls"]

    assert refused["failureClassification"] == "budgetReached"
    assert refused["usage"] == {"billedCostAmount": "0", "costKnown": True}
    assert (run["billedCostAmount"], run["costKnown"], calls) == ("0", True, [])
    assert run["responseUsage"] == {"totalAttempts": 0, "failedAttempts": []}


async def test_a_failed_attempt_tells_its_status_whether_it_streamed_and_its_tokens(tmp_path: Path) -> None:
    attempts: list[Attempt] = [[OVERLOADED], [NO_CONNECTION], [BEGUN, BROKEN], [BEGUN, TextDelta("y"), BROKEN], ANSWER]
    async with office(tmp_path) as own:
        worker = await engine_in(own, HttpUpstream(*attempts))
        await worker.run_turn()
        told = await views_of(own, worker)

    (call,) = told.calls
    failed = call["retryAttempts"]
    assert failed == call["responseUsage"]["failedAttempts"]
    assert [
        (one["attempt"], one["reason"], one.get("status"), one["streamed"], one["tokens"]) for one in failed
    ] == [
        (1, "server_error", 503, False, {}),
        (2, "timeout", None, False, {}),
        (3, "transport", 200, False, {"prompt": 1000, "completion": 1, "total": 1001}),
        (4, "transport", 200, True, {"prompt": 1000, "completion": 1, "total": 1001}),
    ]  # fmt: skip
    assert all(one["delayMs"] >= 0 for one in failed)
    assert (call["wastedPromptTokens"], call["wastedCompletionTokens"], call["wastedTotalTokens"]) == (2000, 2, 2002)


CUTS: dict[str, tuple[Attempt, dict[str, Any]]] = {
    "in mid-stream": (
        [BEGUN, TextDelta("y"), HOLD],
        {"status": 200, "streamed": True, "tokens": {"prompt": 1000, "completion": 1, "total": 1001}},
    ),
    "before the head": ([HOLD], {"streamed": False, "tokens": {}}),
}


@pytest.mark.parametrize("ending", [STOPPED, LOST], ids=["stop", "crash"])
@pytest.mark.parametrize(("attempt", "told"), CUTS.values(), ids=CUTS.keys())
async def test_an_attempt_that_was_cut_off_says_by_what_and_how_far_it_came(
    tmp_path: Path, ending: Ending, attempt: Attempt, told: dict[str, Any]
) -> None:
    upstream = HttpUpstream([OVERLOADED], attempt)
    async with office(tmp_path) as own:
        worker = await engine_in(own, upstream)
        await cut_off(worker, upstream, ending, at="hold")
        (call,) = (await views_of(own, worker)).calls

    reason = "cancelled" if ending is STOPPED else "interrupted"
    first, second = call["responseUsage"]["failedAttempts"]
    assert (first["reason"], first["status"], first["streamed"]) == ("server_error", 503, False)
    assert 100 <= first["delayMs"] <= 1000
    assert {name: second[name] for name in told} == told
    assert ("status" in second) == ("status" in told)
    assert (second["attempt"], second["reason"], "delayMs" in second) == (2, reason, False)
    assert "cut off" in second["error"]
    assert (call["state"], call["failureClassification"], call["failureDetail"]) == (
        "cancelled", reason, second["error"],
    )  # fmt: skip


@pytest.mark.parametrize("ending", [STOPPED, LOST], ids=["stop", "crash"])
async def test_an_attempt_that_was_still_waited_for_is_not_told(tmp_path: Path, ending: Ending) -> None:
    upstream = HttpUpstream([BUSY], ANSWER)
    async with office(tmp_path) as own:
        worker = await engine_in(own, upstream)
        await cut_off(worker, upstream, ending, at="wait")
        told = await views_of(own, worker)

    assert len(upstream.requests) == 1
    (call,) = told.calls
    (only,) = call["responseUsage"]["failedAttempts"]
    assert (only["attempt"], only["reason"], only["error"], only["status"]) == (1, "rate_limited", "too many", 429)
    assert "delayMs" not in only
    assert (call["state"], call["totalAttempts"], call["failureClassification"]) == ("failed", 1, "rate_limited")


async def test_a_round_that_goes_on_after_a_stop_counts_its_attempts_on(tmp_path: Path) -> None:
    upstream = HttpUpstream([BUSY], ANSWER)
    async with office(tmp_path) as own:
        worker = await engine_in(own, upstream, terms=PRICED)
        await cut_off(worker, upstream, STOPPED, at="wait")
        await worker.resume_turn()
        told = await views_of(own, worker)

    (call,) = told.calls
    (only,) = call["retryAttempts"]
    assert (only["attempt"], "delayMs" in only) == (1, False)  # what went by since was no wait for another attempt
    assert (call["state"], call["totalAttempts"], call["costKnown"]) == ("completed", 2, True)
    assert told.turn["billedCostAmount"] == told.run["billedCostAmount"] == "0.0045"
