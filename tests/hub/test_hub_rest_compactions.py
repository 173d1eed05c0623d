"""Summaries over REST: what they say and cover, and the audit of whoever wrote them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from engine_kit import Attempt, PlayedUpstream, engine, says
from rest_kit import Office, engine_in, office
from structlog.testing import capture_logs
from world_kit import Home, make_home

from peen.context.count import fixed_tokens
from peen.errors import ModelError
from peen.harness.compaction import embedded_prompt
from peen.hub.request import Page
from peen.hub.rest.audit import runs_page
from peen.model.price import Prices
from peen.model.stream import ModelRequest, UsageReported
from peen.session.spending import Terms
from peen.store import sessions
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Usage

LONG = "word " * 150
OVERLOADED = ModelError("try again", kind="server_error", retryable=True, status=503)
REFUSED = ModelError("no", kind="invalid_request", retryable=False, status=400)


async def summarizing(own: Office, *summaries: Attempt, turns: int = 4, terms: Terms | None = None) -> Home:
    """A session of so many long turns; the conversation is over its budget at the third."""
    made = await engine_in(own, _Talker(*summaries), terms=terms, **await _settings())
    for number in range(turns):
        await made.run_turn(f"{number} {LONG}")
    return made.home


async def _settings() -> dict[str, Any]:
    async with engine(says("x")) as measured:
        await measured.run_turn("x")
        request = measured.upstream.requests[0]
    return {
        "max_context_tokens": fixed_tokens(request.system, request.tools) + 800, "output_reserve_tokens": 100,
        "compaction_mode": "summarize", "compaction_max_output_tokens": 60,
    }  # fmt: skip


class _Talker(PlayedUpstream):
    """Answers at length, and who asks for a summary with one attempt after the other."""

    def choose(self, request: ModelRequest) -> Attempt:
        if request.tools:
            return says(LONG)
        return self.attempts[sum(not made.tools for made in self.requests) - 1]


async def test_summaries_are_listed_newest_first_and_each_names_the_one_before(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await summarizing(own, says("First."), says("Second."), says("Third."))
        page = await own.get("/session/compactions", session=home)
        listed = page["compactions"]

        assert len(listed) >= 2
        newest, parent = listed[0], listed[1]
        assert newest["parentCompactionId"] == parent["id"]
        assert "parentCompactionId" not in listed[-1]
        assert (newest["fromSequence"], parent["fromSequence"]) == (1, 1)
        assert newest["sourceMessageCount"] == newest["toSequence"] - parent["toSequence"]
        assert newest["model"] == "up/m"
        assert newest["inputTokenCount"] > newest["summaryTokenCount"] > 0
        assert newest["promptHash"] == hashlib.sha256(embedded_prompt().encode()).hexdigest()
        prompt = await own.get(f"/session/prompt-snapshots/{newest['promptHash']}", session=home)
        assert prompt["effectivePrompt"] == embedded_prompt()
        assert await own.get(f"/session/compactions/{newest['id']}", session=home) == newest
        second = await own.get("/session/compactions", session=home, limit=1, offset=1)
        assert second["compactions"] == [parent]


async def test_messages_name_the_summary_that_first_covered_them(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await summarizing(own, says("First."), says("Second."), says("Third."))
        page = await own.get("/session/compactions", session=home)
        transcript = await own.get("/messages", session=home)
        summaries = page["compactions"][::-1]
        by_id = {message["id"]: message for message in transcript["items"]}

        assert by_id[summaries[-1]["toMessageId"]]["compactionId"] == summaries[-1]["id"]
        for summary in summaries:
            covered = [m for m in transcript["items"] if m.get("compactionId") == summary["id"]]
            assert len(covered) == summary["sourceMessageCount"]
            assert covered[-1]["sequence"] == summary["toSequence"]
        assert all("compactionId" not in m for m in transcript["items"] if m["sequence"] > summaries[-1]["toSequence"])


async def test_a_summary_of_another_session_or_none_is_not_found(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await summarizing(own, says("First."), says("Second."), says("Third."))
        other = await make_home(own.database, 2)
        page = await own.get("/session/compactions", session=home)
        wanted = page["compactions"][0]["id"]

        not_found = (404, "NOT_FOUND")
        assert await own.refusal("GET", f"/session/compactions/{wanted}", session=other) == not_found
        assert await own.refusal("GET", "/session/compactions/x", session=home) == not_found
        nothing = await own.get("/session/compactions", session=other)
        assert nothing == {"compactions": [], "limit": 50, "offset": 0, "hasMore": False}


async def test_the_audit_has_a_run_of_its_own_for_each_summary(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        with capture_logs():
            home = await summarizing(own, [OVERLOADED], says("First."), [REFUSED], says("Second."), turns=5)
        page = await own.get("/session/model-runs", session=home, stage="compaction")
        runs = page["modelRuns"][::-1]

        assert [run["state"] for run in runs[:2]] == ["completed", "failed"]
        assert (runs[0]["responseText"], runs[0]["responseMessages"]) == ("First.", [])
        assert runs[1]["failureClassification"] == "invalid_request"
        settings = runs[0]["requestSettings"]
        assert (settings["maxOutputTokens"], settings["attempt"]) == (60, 1)
        assert {"executionId", "activityId", "workerGenerationId", "promptHash", "timeoutMs"} <= settings.keys()
        calls = await own.get(f"/session/model-runs/{runs[0]['id']}/calls", session=home)
        (call,) = calls["calls"]
        assert call["totalAttempts"] == 2
        assert call["requestMessages"][0] == {"role": "system", "content": embedded_prompt()}
        assert call["requestMessages"][1]["content"].startswith("<transcript>\nuser: 0 word")
        assert call["responseMessage"] == {"role": "assistant", "content": "First."}
        failed = await own.get(f"/session/model-runs/{runs[1]['id']}/calls", session=home)
        assert "responseMessage" not in failed["calls"][0]
        page = await own.get("/session/model-runs", session=home, stage="turn")
        assert len(page["modelRuns"]) == 5


async def test_a_summary_costs_what_its_answer_and_its_failed_attempts_used(tmp_path: Path) -> None:
    prices = Prices([UpstreamConfig(name="up", type="openai", prices={"m": Price(input="3", output="15")})])
    broken: Attempt = [UsageReported(Usage(prompt=1000, completion=0)), OVERLOADED]
    answer: Attempt = [UsageReported(Usage(prompt=2000, completion=100)), *says("First.")]
    async with office(tmp_path) as own:
        home = await summarizing(own, broken, answer, says("Second."), terms=Terms(prices))
        session = sessions.by_no(own.database.reader, home.no)
        assert session is not None
        page = runs_page(
            own.database.reader, session, stage="compaction", state=None,
            wanted=Page(limit=9, offset=0, order="asc"),
        )  # fmt: skip
        run = msgspec.json.decode(page.body)["modelRuns"][-1]

        assert (run["responseCostAmount"], run["retryCostAmount"], run["billedCostAmount"]) == (
            "0.0075",
            "0.003",
            "0.0105",
        )
        assert not run["costKnown"]  # of the attempt that broke off more may be billed than was reported by then
