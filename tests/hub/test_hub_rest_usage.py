"""What sessions and turns have used, and the budget of a session, over REST."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_kit import Attempt, PlayedUpstream, asks, says, work
from rest_kit import Office, engine_in, office
from structlog.testing import capture_logs

from peen.errors import ModelError
from peen.model.price import Prices
from peen.model.stream import Finished, TextDelta, UsageReported
from peen.session.spending import Terms
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Usage

PRICES = Prices([UpstreamConfig(name=PlayedUpstream.name, type="openai", prices={"m": Price(input="3", output="15")})])
REFUSED = ModelError("no such model", kind="invalid_request", retryable=False, status=400)
NONE: dict[str, Any] = {"billedCostAmount": "0", "costKnown": True}


def measured(*pieces: Any, reason: str = "stop") -> Attempt:
    return [*pieces, UsageReported(Usage(prompt=1000, completion=100, cache_read=400)), Finished(reason, "m")]


async def opened(own: Office, **body: Any) -> Any:
    """The session of the office's one project, opened with `body`."""
    (own.directory / "project").mkdir(exist_ok=True)
    given = json.dumps({"workspace": f"{own.directory}/project", **body}).encode()
    status, answer = await own.ask("POST", "/sessions/open", body=given)
    assert status == 200, answer
    return answer["session"]


async def test_a_session_and_its_turns_tell_what_they_used(tmp_path: Path) -> None:
    calls = asks(("look", work()))[:-1]
    upstream = PlayedUpstream(measured(*calls, reason="tool_calls"), measured(TextDelta("a")), measured(TextDelta("b")))
    async with office(tmp_path) as own:
        worker = await engine_in(own, upstream, terms=Terms(PRICES))
        before = await own.get("/session", worker.home)
        for _ in range(2):
            await worker.run_turn()
        session = await own.get("/session", worker.home)
        (listed,) = (await own.get("/sessions"))["items"]
        second, first = (await own.get("/session/turns", worker.home))["turns"]
        (page,) = (await own.get("/session/turns", worker.home, limit=1, offset=1))["turns"]

    def of(calls: int, cost: str) -> dict[str, Any]:
        return {
            "prompt": 1000 * calls, "completion": 100 * calls, "total": 1100 * calls, "cacheRead": 400 * calls,
            "billedCostAmount": cost, "costKnown": True,
        }  # fmt: skip

    assert before["usage"] == NONE
    assert (first["usage"], second["usage"]) == (of(2, "0.009"), of(1, "0.0045"))
    assert page == first
    assert session["usage"] == listed["usage"] == of(3, "0.0135")
    assert "budget" not in session


async def test_what_nobody_knows_is_left_out_or_said_to_be_unknown(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("unmeasured"), [REFUSED], measured(TextDelta("x"))))
        for _ in range(3):
            await worker.run_turn()
        unpriced, refused, unmeasured = (
            turn["usage"] for turn in (await own.get("/session/turns", worker.home))["turns"]
        )

    assert unmeasured == {"billedCostAmount": "0", "costKnown": False}
    assert refused == NONE
    assert (unpriced["total"], unpriced["costKnown"]) == (1100, False)


async def test_a_budget_is_given_replaced_kept_and_taken_away(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        assert "budget" not in await opened(own)
        first = await opened(own, budget={"costUsd": "2.50", "tokens": 5000})
        kept = await opened(own)
        replaced = await opened(own, budget={"tokens": 7000})
        zero = await opened(own, budget={"tokens": 0, "costUsd": "0"})
        await opened(own, budget={"tokens": 1})
        nothing = await opened(own, budget={})

        assert first["budget"] == kept["budget"] == {"costUsd": "2.5", "tokens": 5000}
        assert replaced["budget"] == {"tokens": 7000}
        assert "budget" not in zero
        assert "budget" not in nothing


async def test_a_budget_of_dollars_that_cannot_count_the_default_model_is_accepted_and_logged(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        with capture_logs() as logs:
            await opened(own, budget={"tokens": 5000})
            assert logs == []
            session = await opened(own, budget={"costUsd": "2.50"})
        model = own.api.default_model
        priced = UpstreamConfig(name="scripted", type="scripted", prices={"*": Price(input="3", output="15")})
        own.api = replace(own.api, terms=Terms(Prices([priced])))
        with capture_logs() as later:
            await opened(own, budget={"costUsd": "2.50"})

    assert session["budget"] == {"costUsd": "2.5"}
    (line,) = logs
    assert line["event"].startswith(f"the price of {model} is not known: its calls count as nothing")
    assert (line["log_level"], line["session_id"], line["model"]) == ("warning", session["id"], model)
    assert later == []


async def test_a_new_session_is_made_with_its_budget_and_the_lower_limit_is_shown(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        own.api = replace(own.api, terms=Terms(max_tokens=6000, max_cost=10**12))
        session = await opened(own, budget={"costUsd": "2.50", "tokens": 5000})
        (listed,) = (await own.get("/sessions"))["items"]

    assert session["budget"] == listed["budget"] == {"costUsd": "1", "tokens": 5000}


@pytest.mark.parametrize(
    "budget",
    [
        {"costUsd": 2.5}, {"costUsd": "-1"}, {"costUsd": "1e3"}, {"costUsd": ""}, {"costUsd": "1000000"},
        {"tokens": -1}, {"tokens": 1.5}, {"tokens": "5"}, {"tokens": 2**53 + 1}, {"dollars": "1"}, 5,
    ],
)  # fmt: skip
async def test_a_budget_that_is_none_is_refused_and_changes_nothing(tmp_path: Path, budget: Any) -> None:
    async with office(tmp_path) as own:
        await opened(own, budget={"tokens": 9})
        body = json.dumps({"workspace": f"{tmp_path}/project", "budget": budget}).encode()

        assert await own.refusal("POST", "/sessions/open", body=body) == (400, "VALIDATION_FAILED")
        assert (await opened(own))["budget"] == {"tokens": 9}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("NaN", '"NaN"'), ("-1", '"-1"'), ("1e9", '"1e9"'), ("", '""'), ("1000000", '"1000000"'), ("$5", '"$5"'),
        (2.5, "2.5"), (3, "3"), (True, "true"), (["1"], '["1"]'), ("9" * 100, f'"{"9" * 59}…'),
    ],
)  # fmt: skip
async def test_an_amount_of_another_form_is_answered_with_what_was_given_and_what_is_accepted(
    tmp_path: Path, given: object, shown: str
) -> None:
    async with office(tmp_path) as own:
        body = json.dumps({"workspace": f"{tmp_path}/project", "budget": {"costUsd": given}}).encode()
        status, answer = await own.ask("POST", "/sessions/open", body=body)

    assert (status, answer["code"]) == (400, "VALIDATION_FAILED")
    assert answer["message"] == (
        "budget.costUsd: must be US dollars as decimal text, at most 6 digits and 12 behind the point "
        f'("2.50"); got {shown}'
    )
