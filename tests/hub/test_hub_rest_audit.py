"""The audit of model calls: what it says was asked is what the upstream got."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from engine_kit import Attempt, Engine, PlayedUpstream, asks, engine, says, work
from rest_kit import engine_in, office
from trio.testing import MockClock
from world_kit import make_home

from peen.errors import ModelError
from peen.hub.request import Page
from peen.hub.rest.audit import calls_page, runs_page
from peen.model.price import Prices
from peen.model.stream import Finished, ModelRequest, TextDelta, ThinkingDelta, UsageReported
from peen.session.spending import Terms
from peen.store import sessions
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Usage
from peen.wire.worker import encode

PAGE = Page(limit=200, offset=0, order="asc")
OVERLOADED = ModelError("try again", kind="server_error", retryable=True, status=503)
REFUSED = ModelError("no such model", kind="invalid_request", retryable=False, status=400)


PRICES = {"m*": Price(input="3", output="15", cache_read="1")}
PRICED = Terms(Prices([UpstreamConfig(name=PlayedUpstream.name, type="openai", prices=PRICES)]))


def runs_of(own: Engine, *, wanted: Page = PAGE, stage: str | None = None, state: str | None = None) -> list[Any]:
    session = sessions.by_no(own.db.reader, own.home.no)
    assert session is not None
    page = runs_page(own.db.reader, session, stage=stage, state=state, wanted=wanted)
    found: list[Any] = msgspec.json.decode(page.body)["modelRuns"]
    return found


def calls_of(own: Engine, run: Any, *, wanted: Page = PAGE) -> list[Any]:
    session = sessions.by_no(own.db.reader, own.home.no)
    assert session is not None
    page = calls_page(own.db.reader, own.home.blobs, session, run_id=UUID(run["id"]).bytes, wanted=wanted)
    found: list[Any] = msgspec.json.decode(page.body)["calls"]
    return found


def every_call(own: Engine) -> list[Any]:
    """The calls of all runs, in the order in which they were made."""
    return [call for run in reversed(runs_of(own)) for call in calls_of(own, run)]


def as_told(request: ModelRequest) -> dict[str, Any]:
    """What the upstream was given, as JSON values: its own notes on a message are no part of what is sent."""
    kept = ("role", "content", "toolCalls", "toolCallId", "isError")
    messages = [msgspec.json.decode(encode(message)) for message in request.messages]
    return {
        "messages": [
            {"role": "system", "content": request.system},
            *({name: message[name] for name in kept if name in message} for message in messages),
        ],
        "tools": msgspec.json.decode(msgspec.json.encode(request.tools)),
    }


def as_audited(call: Any) -> dict[str, Any]:
    return {"messages": call["requestMessages"], "tools": call["requestTools"]}


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_each_request_is_told_as_the_upstream_got_it_early_and_late_in_a_session(
    autojump_clock: MockClock,
) -> None:
    turns: list[list[Attempt]] = [
        [says("hello")],
        [asks(("look", work("one")), ("change", work("two", takes_s=1.0)), text="Looking."), says("seen both")],
        [asks(("look", work("bad", fail=True))), asks(("look", '{"say":"é\\u0000"}')), says("  ")],
        [[ThinkingDelta("hm"), TextDelta("thought"), Finished("stop", "m")]],
        [[REFUSED]],
        [asks(("look", "no object")), [REFUSED]],
        [says("after two failures")],
    ]
    async with engine(*chain.from_iterable(turns)) as own:
        for number in range(len(turns)):
            await own.run_turn(f"message {number}")
        calls = every_call(own)

    asked = own.upstream.requests
    assert [as_audited(call) for call in calls] == [as_told(request) for request in asked]
    assert [call["round"] for call in calls] == [number for turn in turns for number in range(len(turn))]
    roles = [message["role"] for message in calls[-1]["requestMessages"]]
    assert roles.count("system") == 3  # the prompt, and how each failed turn ended


async def test_a_request_that_was_made_several_times_is_one_round_with_its_failed_attempts(
    autojump_clock: MockClock,
) -> None:
    async with engine([OVERLOADED], [TextDelta("half"), OVERLOADED], says("whole")) as own:
        await own.run_turn()
        (call,) = every_call(own)
        (run,) = runs_of(own)

    assert [as_told(request) for request in own.upstream.requests] == 3 * [as_audited(call)]
    assert (call["round"], call["state"], call["totalAttempts"], call["retryAttemptCount"]) == (0, "completed", 3, 2)
    assert [(a["attempt"], a["reason"], a["error"]) for a in call["retryAttempts"]] == [
        (1, "server_error", "try again"), (2, "server_error", "try again"),
    ]  # fmt: skip
    assert all(attempt["delayMs"] > 0 for attempt in call["retryAttempts"])
    assert call["responseMessage"] == {"role": "assistant", "content": "whole"}
    assert run["responseUsage"]["failedAttempts"] == call["responseUsage"]["failedAttempts"] == call["retryAttempts"]


async def test_a_round_without_an_answer_tells_why() -> None:
    async with engine([REFUSED]) as own:
        await own.run_turn()
        (call,) = every_call(own)
        (run,) = runs_of(own)

    assert (call["state"], call["failureClassification"]) == ("failed", "invalid_request")
    assert "no such model" in call["failureDetail"]
    assert "responseMessage" not in call
    assert (call["totalAttempts"], call["retryAttempts"], len(call["responseUsage"]["failedAttempts"])) == (1, [], 1)
    assert (run["state"], run["responseText"], run["responseMessages"]) == ("failed", "", [])
    assert "no such model" in run["failureDetail"]


async def test_the_answer_of_each_round_is_its_own() -> None:
    first = asks(("look", work("one")), text="Looking.")
    async with engine(first, says("seen")) as own:
        await own.run_turn()
        calls = every_call(own)
        (run,) = runs_of(own)

    made = calls[0]["responseMessage"]["toolCalls"]
    assert [call["responseMessage"]["content"] for call in calls] == ["Looking.", "seen"]
    assert [(call["name"], call["arguments"]) for call in made] == [("look", msgspec.json.decode(work("one")))]
    assert [message["role"] for message in run["responseMessages"]] == ["assistant", "tool", "assistant"]
    assert run["responseMessages"][1]["toolCallId"] == made[0]["id"]
    assert (run["responseText"], run["finishReason"], run["state"]) == ("seen", "stop", "completed")


async def test_reasoning_is_told_of_the_answer_and_not_of_the_next_request() -> None:
    thinks: Attempt = [ThinkingDelta("hm"), TextDelta("thought"), Finished("stop", "m")]
    async with engine(thinks, says("next")) as own:
        await own.run_turn()
        await own.run_turn()
        first, second = every_call(own)
        run = runs_of(own)[-1]

    assert (first["responseMessage"]["thinking"], run["responseThinking"]) == ("hm", "hm")
    assert second["requestMessages"][2] == {"role": "assistant", "content": "thought"}


# --- usage ------------------------------------------------------------------------------------------------------------


async def test_usage_is_summed_up_over_rounds_and_what_is_unknown_is_not_zero() -> None:
    reported = UsageReported(Usage(prompt=10, completion=3, cache_read=4))
    calls: Attempt = [*asks(("look", work()))[:-1], reported, Finished("tool_calls", "m-2")]
    async with engine(calls, [reported, *says("seen")], says("unmeasured")) as own:
        await own.run_turn()
        await own.run_turn()
        second, first = runs_of(own)
        call = calls_of(own, first)[0]
        unmeasured = calls_of(own, second)[0]

    assert first["responseUsage"] == {
        "prompt": 20, "completion": 6, "total": 26, "cacheRead": 8, "totalAttempts": 2, "failedAttempts": [],
    }  # fmt: skip
    assert (call["promptTokens"], call["totalTokens"], call["cacheReadTokens"], call["reasoningTokens"]) == (
        10,
        13,
        4,
        0,
    )
    assert "reasoning" not in call["responseUsage"]
    assert second["responseUsage"] == {"totalAttempts": 1, "failedAttempts": []}
    assert (unmeasured["promptTokens"], unmeasured["totalTokens"]) == (0, 0)
    assert (call["responseModelId"], first["responseModelId"]) == ("m-2", "m")


async def test_amounts_are_decimal_texts_and_known_to_be_unknown() -> None:
    async with engine(says("x")) as own:
        await own.run_turn()
        (run,), (call,) = runs_of(own), every_call(own)

    amounts = ("responseCostAmount", "retryCostAmount", "billedCostAmount", "costKnown")
    assert [run[name] for name in amounts] == [call[name] for name in amounts] == ["0", "0", "0", False]


def costs(told: Any) -> list[Any]:
    return [told[name] for name in ("responseCostAmount", "retryCostAmount", "billedCostAmount", "costKnown")]


async def test_answers_and_failed_attempts_are_paid_for(autojump_clock: MockClock) -> None:
    reported = UsageReported(Usage(prompt=1_000_000, completion=100_000, cache_read=500_000))
    begun = UsageReported(Usage(prompt=1000, completion=1))
    calls: Attempt = [*asks(("look", work()))[:-1], reported, Finished("tool_calls", "m")]
    broken: Attempt = [begun, TextDelta("I"), OVERLOADED]
    async with engine(broken, [OVERLOADED], calls, [reported, *says("seen")], terms=PRICED) as own:
        await own.run_turn()
        (run,) = runs_of(own)
        first, second = calls_of(own, run)

    # 500,000 at 3, as many from the cache at 1, 100,000 at 15; and of the attempt that broke off, what was reported of
    # it by then, which is not all.
    assert costs(first) == ["3.5", "0.003015", "3.503015", False]
    assert costs(second) == ["3.5", "0", "3.5", True]
    assert costs(run) == ["7", "0.003015", "7.003015", False]
    assert (first["wastedPromptTokens"], first["wastedCompletionTokens"]) == (1000, 1)


async def test_a_cost_is_unknown_if_one_answer_is_unmeasured() -> None:
    reported = UsageReported(Usage(prompt=10, completion=3))
    calls: Attempt = [*asks(("look", work()))[:-1], reported, Finished("tool_calls", "m")]
    async with engine(calls, says("unmeasured"), terms=PRICED) as own:
        await own.run_turn()
        (run,) = runs_of(own)
        first, second = calls_of(own, run)

    assert costs(first) == ["0.000075", "0", "0.000075", True]
    assert costs(second) == ["0", "0", "0", False]
    assert costs(run) == ["0.000075", "0", "0.000075", False]


# --- pages ------------------------------------------------------------------------------------------------------------


async def test_runs_are_newest_first_and_filtered_by_state_and_stage(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("a"), [REFUSED], says("b")))
        for _ in range(3):
            await worker.run_turn()
        home = worker.home
        whole = await own.get("/session/model-runs", home)
        failed = await own.get("/session/model-runs", home, state="failed", stage="turn")
        part = await own.get("/session/model-runs", home, limit=1, offset=1)
        none = await own.get("/session/model-runs", home, stage="compaction")

    texts = [run["responseText"] for run in whole["modelRuns"]]
    assert (texts, whole["hasMore"], whole["limit"]) == (["b", "", "a"], False, 50)
    assert failed["modelRuns"] == part["modelRuns"] == whole["modelRuns"][1:2]
    assert (part["hasMore"], part["offset"]) == (True, 1)
    assert none["modelRuns"] == []
    assert {(run["connectionName"], run["requestedModelId"]) for run in whole["modelRuns"]} == {("up", "m")}
    assert {run["requestSettings"]["model"] for run in whole["modelRuns"]} == {"up/m"}


async def test_calls_are_paged_by_round(tmp_path: Path) -> None:
    rounds = [asks(("look", work(str(number)))) for number in range(4)]
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(*rounds, says("done")))
        await worker.run_turn()
        home = worker.home
        (run,) = (await own.get("/session/model-runs", home))["modelRuns"]
        path = f"/session/model-runs/{run['id']}/calls"
        pages = [await own.get(path, home, limit=2, offset=offset) for offset in (0, 2, 4, 6)]
        whole = await own.get(path, home)

    assert [[call["round"] for call in page["calls"]] for page in pages] == [[0, 1], [2, 3], [4], []]
    assert [page["hasMore"] for page in pages] == [True, True, False, False]
    assert [call for page in pages for call in page["calls"]] == whole["calls"]
    assert whole["modelRun"] == run
    assert len({call["id"] for call in whole["calls"]}) == 5


async def test_a_page_of_large_requests_ends_before_four_mebibytes(tmp_path: Path) -> None:
    large = work("x" * 1_500_000)
    rounds = [asks(("look", large)), asks(("look", large)), asks(("look", large)), says("done")]
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(*rounds))
        await worker.run_turn()
        (run,) = (await own.get("/session/model-runs", worker.home))["modelRuns"]
        path = f"/session/model-runs/{run['id']}/calls"
        pages, offset, has_more = [], 0, True
        while has_more:
            page = await own.get(path, worker.home, offset=offset)
            pages.append(page["calls"])
            offset, has_more = offset + len(page["calls"]), page["hasMore"]

    assert [call["round"] for page in pages for call in page] == [0, 1, 2, 3]
    assert all(len(msgspec.json.encode(page)) <= 4 * 1024 * 1024 or len(page) == 1 for page in pages)
    assert len(pages) > 1


async def test_another_session_s_runs_do_not_exist(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("secret")))
        await worker.run_turn()
        stranger = await make_home(own.database, 2)
        (run,) = (await own.get("/session/model-runs", worker.home))["modelRuns"]
        path = f"/session/model-runs/{run['id']}/calls"

        assert (await own.get("/session/model-runs", stranger))["modelRuns"] == []
        assert await own.refusal("GET", path, stranger) == (404, "NOT_FOUND")
        unknown = "/session/model-runs/00000000-0000-4000-8000-000000000000/calls"
        assert await own.refusal("GET", unknown, worker.home) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/session/model-runs", {"stage": "root"}),
        ("/session/model-runs", {"state": "done"}),
        ("/session/model-runs", {"order": "asc"}),
        ("/session/model-runs", {"limit": 0}),
        ("/session/model-runs/not-a-uuid/calls", {}),
        ("/session/model-runs/00000000-0000-4000-8000-000000000000/calls", {"state": "failed"}),
    ],
)
async def test_what_is_not_understood_is_refused(tmp_path: Path, path: str, query: dict[str, Any]) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)

        assert await own.refusal("GET", path, home, **query) == (400, "VALIDATION_FAILED")


async def test_results_that_come_at_the_same_moment_are_all_in_the_next_request(autojump_clock: MockClock) -> None:
    at_once = asks(*[("look", work(str(number), takes_s=1.0)) for number in range(8)])
    async with engine(*[attempt for _ in range(20) for attempt in (at_once, says("seen"))]) as own:
        for _ in range(20):
            await own.run_turn()
        calls = every_call(own)

    assert [as_audited(call) for call in calls] == [as_told(request) for request in own.upstream.requests]
