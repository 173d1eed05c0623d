"""What a commit counts: once, in the same transaction, and without a statement more than it had."""

from __future__ import annotations

from functools import partial
from typing import Any

import apsw
import msgspec
import pytest
from msgspec import Raw
from world_kit import AT_MS, HOLDER, MODEL, Home, make_home, open_store, open_turn, uuid

from peen.errors import StaleClaim
from peen.model.price import Prices
from peen.session import writes
from peen.session.spending import Terms
from peen.store import audit, sessions
from peen.store.database import Database, Tx
from peen.store.spending import Spent
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Budget, Claim, Completion, MessageRecord, ModelCallRecord, Usage
from peen.wire.turncalls import CommitSteps, Committed, OpenedTurn
from peen.wire.worker import encode

NAME, _, MODEL_ID = MODEL.partition("/")
PRICES = Prices([UpstreamConfig(name=NAME, type="scripted", prices={MODEL_ID: Price(input="1", output="2")})])
LIMITED = Terms(PRICES, max_tokens=10_000, max_cost=10**12)


def attempt(usage: Usage, *, state: Any = "completed", turn_round: int = 0) -> ModelCallRecord:
    return ModelCallRecord(
        round=turn_round, state=state, request_sequence=1, usage=usage, started_at_ms=AT_MS, completed_at_ms=AT_MS
    )


def begin(step: str, kind: str) -> Claim:
    return Claim(step=step, kind=kind, given=Raw(b"{}"))


def end(step: str) -> Completion:
    return Completion(step=step, output=Raw(b"1"))


def commit_of(home: Home, opened: OpenedTurn, **parts: Any) -> partial[tuple[Committed, Any]]:
    request = CommitSteps(execution_id=opened.execution_id, holder=HOLDER, **parts)
    return partial(
        writes.commit_steps, writer=home.writer, request=request, payload=encode(request),
        next_turn_id=uuid(9).bytes, at_ms=AT_MS,
    )  # fmt: skip


async def start(db: Database, terms: Terms) -> tuple[Home, OpenedTurn]:
    """A turn whose model was asked."""
    known = await make_home(db)
    home = Home(known.no, known.id, known.generation_no, known.blobs, terms)
    opened = await open_turn(db, home)
    await db.write(commit_of(home, opened, claims=[begin("r0.model", "model")]))
    return home, opened


def spent_of(db: Database, home: Home) -> Spent:
    row = sessions.by_no(db.reader, home.no)
    assert row is not None
    return row.spent


async def test_session_and_turn_count_the_same_and_the_worker_is_told() -> None:
    failed = attempt(Usage(prompt=100, completion=1), state="failed")
    answered = attempt(Usage(prompt=200, completion=50, reasoning=20, cache_read=7))
    async with open_store() as db:
        home, opened = await start(db, LIMITED)
        committed, _ = await db.write(commit_of(home, opened, completions=[end("r0.model")], calls=[failed, answered]))
        both = Spent(300, 51, 20, 7, None, cost=402_000_000, unpriced=1)  # the provider did not end the first one

        assert spent_of(db, home) == both
        assert audit.spent_of_turns(db.reader, [opened.turn, 77]) == {opened.turn: both}
        assert committed.budget == Budget(tokens=351, cost=402_000_000, max_tokens=10_000, max_cost=10**12)


async def test_a_commit_that_is_repeated_counts_once_and_is_told_the_same() -> None:
    async with open_store() as db:
        home, opened = await start(db, LIMITED)
        calls = [attempt(Usage(prompt=200, completion=50))]
        change = commit_of(home, opened, completions=[end("r0.model")], calls=calls)
        first, _ = await db.write(change)
        again, _ = await db.write(change)

        assert spent_of(db, home).tokens == 250
        assert first.budget is not None
        assert again.budget == first.budget
        assert db.reader.row("SELECT count(*) FROM model_call") == (1,)


async def test_a_commit_that_fails_counts_nothing() -> None:
    async with open_store() as db:
        home, opened = await start(db, LIMITED)
        calls = [attempt(Usage(prompt=200, completion=50))]
        spoiled = commit_of(home, opened, completions=[end("r0.model")], calls=calls, passed=[end("r0.final")])
        with pytest.raises(StaleClaim):
            await db.write(spoiled)

        assert spent_of(db, home) == Spent()


async def test_without_limits_nothing_is_told_of_them() -> None:
    async with open_store() as db:
        home, opened = await start(db, Terms(PRICES))
        committed, _ = await db.write(commit_of(home, opened, completions=[end("r0.model")], calls=[attempt(Usage())]))

        assert opened.budget is committed.budget is None
        assert spent_of(db, home).unpriced == 1  # its tokens are not known


async def test_an_attempt_that_was_refused_costs_nothing_and_what_any_other_one_costs_is_not_known() -> None:
    refused = msgspec.structs.replace(attempt(Usage(), state="failed"), status=503)
    async with open_store() as db:
        home, opened = await start(db, Terms())
        calls = [refused, attempt(Usage(), state="failed"), attempt(Usage(prompt=1), state="failed")]
        await db.write(commit_of(home, opened, completions=[end("r0.model")], calls=calls))

        assert spent_of(db, home).unpriced == 2


async def test_a_used_up_budget_leaves_out_model_steps_and_nothing_else() -> None:
    async with open_store() as db:
        home, opened = await start(db, Terms(max_tokens=200))
        claims = [begin("r0.t0.handler", "effect"), begin("r1.prepare", "prepare"), begin("r1.model", "model")]
        calls = [attempt(Usage(prompt=150, completion=50))]
        committed, _ = await db.write(
            commit_of(
                home, opened, completions=[end("r0.model")], calls=calls, claims=claims, passed=[end("r1.prepare")]
            )
        )
        begun = db.reader.rows("SELECT kind, state FROM activity ORDER BY key")

        assert sorted(begun) == [("effect", "running"), ("model", "completed"), ("prepare", "completed")]
        assert committed.budget is not None
        assert committed.budget.tokens == 200


async def statements(terms: Terms) -> list[int]:
    """How many statements the commits of a model step and of the tool step behind it run."""
    counts: list[int] = []

    def counted(change: partial[Any]) -> Any:
        def run(tx: Tx) -> Any:
            seen: list[str] = []

            def note(_cursor: apsw.Cursor, sql: str, _bindings: Any) -> bool:
                seen.append(sql)
                return True

            connection = tx.execute("SELECT 1").connection
            connection.exec_trace = note
            try:
                return change(tx)
            finally:
                connection.exec_trace = None
                counts.append(len(seen))

        return run

    async with open_store() as db:
        home, opened = await start(db, terms)
        reply = MessageRecord(role="assistant", content="", model=MODEL)
        answered = commit_of(
            home, opened, completions=[end("r0.model")], messages=[reply], claims=[begin("r0.t0.handler", "read")],
            calls=[attempt(Usage(prompt=1, completion=1))],
        )  # fmt: skip
        result = MessageRecord(role="tool", content="seen", tool_call_id="c")
        looked = commit_of(
            home, opened, completions=[end("r0.t0.handler")], messages=[result], passed=[end("r1.prepare")],
            claims=[begin("r1.prepare", "prepare"), begin("r1.model", "model")],
        )  # fmt: skip
        for change in (answered, looked):
            await db.write(counted(change))
    return counts


async def test_counting_and_limits_cost_no_statement() -> None:
    assert await statements(LIMITED) == await statements(Terms()) == [7, 7]
