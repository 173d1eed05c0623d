"""Sums that are kept with the calls: of a run, of a turn, of a session; and those of a store from before they were."""

from __future__ import annotations

from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kit import write_migrations
from world_kit import AT_MS, make_home, open_store, open_turn

from peen.store import audit, executions, sessions
from peen.store.database import Database, Tx
from peen.store.direct import MemoryFile
from peen.store.opening import open_direct
from peen.store.spending import MOST, NOTHING_SPENT, Spent, spent
from peen.wire.records import ModelCallRecord, Usage
from peen.wire.turncalls import OpenedTurn

COUNTS = st.none() | st.integers(0, 2**40)
NONE = Usage()
BOTH = Usage(prompt=1, completion=1)
STATES = ["completed", "failed", "cancelled"]
USAGES = st.builds(Usage, prompt=COUNTS, completion=COUNTS, reasoning=COUNTS, cache_read=COUNTS, cache_write=COUNTS)


def call(turn_round: int, usage: Usage, *, state: str = "completed") -> ModelCallRecord:
    return ModelCallRecord(
        round=turn_round, state=state, request_sequence=1, usage=usage, started_at_ms=AT_MS, completed_at_ms=AT_MS  # type: ignore[arg-type]
    )  # fmt: skip


def attempt(state: str, *, usage: Usage = NONE, **facts: Any) -> ModelCallRecord:
    return msgspec.structs.replace(call(0, usage, state=state), **facts)


async def add(db: Database, opened: OpenedTurn, turn_round: int, used: Spent) -> None:
    execution = executions.root_of(db.reader, opened.turn)
    assert execution is not None
    assert execution.generation_no is not None
    change = partial(
        audit.add_call, turn_no=opened.turn, execution_no=execution.no, generation_no=execution.generation_no,
        call=call(turn_round, Usage()), spent=used,
    )  # fmt: skip
    await db.write(change)


async def test_a_turn_has_used_what_its_attempts_used_and_not_what_another_one_did() -> None:
    async with open_store() as db:
        home = await make_home(db)
        first = await open_turn(db, home, frame=1)
        second = await open_turn(db, home, frame=2)
        await add(db, first, 0, Spent(prompt=1, cost=5))
        await add(db, first, 0, Spent(prompt=2, completion=3, unpriced=1))
        await add(db, second, 0, Spent(completion=100))
        await add(db, first, 1, Spent(prompt=10, cache_write=4, cost=7))
        found = audit.spent_of_turns(db.reader, [first.turn, second.turn])
        only = audit.spent_of_turns(db.reader, [second.turn])

    assert found[first.turn] == Spent(13, 3, None, None, 4, cost=12, unpriced=1)
    assert found[second.turn] == Spent(completion=100)
    assert only == {second.turn: Spent(completion=100)}


async def test_a_session_counts_on_from_where_it_was_and_unknown_stays_unknown() -> None:
    async with open_store() as db:
        home = await make_home(db)

        async def take(used: Spent) -> sessions.Taken:
            return await db.write(partial(sessions.take_sequences, no=home.no, spent=used, at_ms=AT_MS))

        nothing = await take(NOTHING_SPENT)
        some = await take(Spent(prompt=4, cost=2, unpriced=1))
        more = await take(Spent(prompt=1, reasoning=0, cost=3))

        assert nothing.spent == NOTHING_SPENT
        assert some.spent == Spent(prompt=4, cost=2, unpriced=1)
        assert more.spent == Spent(prompt=5, reasoning=0, cost=5, unpriced=1)
        assert sessions.standing(db.reader, home.no) == more


async def test_counters_stop_before_the_database_cannot_hold_them() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        most = Spent(MOST, MOST, MOST, MOST, MOST, cost=MOST)
        for turn_round in range(3):
            taken = await db.write(partial(sessions.take_sequences, no=home.no, spent=most, at_ms=AT_MS))
            await add(db, opened, turn_round, most)

        assert taken.spent == audit.spent_of_turns(db.reader, [opened.turn])[opened.turn] == most


@given(st.lists(st.tuples(USAGES, st.none() | st.integers(0, 2**50), st.sampled_from(STATES)), max_size=5))
def test_the_order_of_calls_changes_no_sum(calls: list[tuple[Usage, int | None, str]]) -> None:
    parts = [spent(call(0, usage, state=state), cost=cost) for usage, cost, state in calls]
    forward = backward = NOTHING_SPENT
    for part in parts:
        forward = forward.plus(part)
    for part in reversed(parts):
        backward = backward.plus(part)

    assert forward == backward
    assert forward.tokens == sum((usage.prompt or 0) + (usage.completion or 0) for usage, _, _ in calls)


@pytest.mark.parametrize(
    ("made", "cost", "is_known"),
    [
        (call(0, BOTH), 5, True),
        (call(0, BOTH), None, False),
        (call(0, Usage()), None, False),
        (attempt("failed", status=503), None, True),
        (attempt("failed", status=429), None, True),
        (attempt("failed", status=400), 0, True),
        (attempt("failed", unsent=True), None, True),
        (attempt("failed"), None, False),  # the connection broke: nobody knows how far the provider had come
        (attempt("failed", status=200), None, False),
        (attempt("failed", status=503, streamed=True), None, False),
        (attempt("failed", status=503, usage=Usage(prompt=1)), None, False),
        (attempt("failed", streamed=True, usage=BOTH), 5, False),  # it was reported when the answer began
        (attempt("failed", streamed=True, usage=BOTH, ended=True), 5, True),
        (attempt("failed", streamed=True, usage=BOTH, ended=True), None, False),
        (attempt("cancelled"), None, False),
        (attempt("cancelled", streamed=True, usage=BOTH), 5, False),
    ],
)
def test_a_cost_is_known_only_of_what_was_measured_to_its_end_or_was_refused(
    made: ModelCallRecord, cost: int | None, is_known: bool
) -> None:
    assert spent(made, cost=cost).unpriced == (0 if is_known else 1)


async def test_a_store_from_before_keeps_its_tokens_and_says_that_their_cost_is_unknown(tmp_path: Path) -> None:
    ours = sorted((resources.files("peen.store") / "migrations").iterdir(), key=lambda each: each.name)
    before = [each.read_text() for each in ours if each.name < "0008"]
    file = MemoryFile()
    async with open_direct(file, migrations=write_migrations(tmp_path / "old", *before), name="peen", seed=1) as db:
        await db.write(old_rows)

    async with open_store(file, seed=2) as db:
        found = sessions.by_workspace(db.reader, "/srv/old")
        (untouched,) = [row for row in sessions.page(db.reader, limit=9, offset=0) if row.workspace == "/srv/new"]
        turns = audit.spent_of_turns(db.reader, [1, 2])

    assert found is not None
    assert found.spent == Spent(33, 12, None, 5, None, cost=0, unpriced=4)
    assert untouched.spent == NOTHING_SPENT
    assert turns == {
        1: Spent(prompt=3, completion=2, unpriced=3),
        2: Spent(prompt=30, completion=10, cache_read=5, unpriced=1),
    }


async def test_a_store_from_before_attempts_had_prices_gets_them_from_its_sums_and_trusts_no_attempt_that_broke(
    tmp_path: Path,
) -> None:
    ours = sorted((resources.files("peen.store") / "migrations").iterdir(), key=lambda each: each.name)
    before = [each.read_text() for each in ours if each.name < "0012"]
    file = MemoryFile()
    async with open_direct(file, migrations=write_migrations(tmp_path / "old", *before), name="peen", seed=1) as db:
        await db.write(old_rows)
        await db.write(old_attempts)

    async with open_store(file, seed=2) as db:
        first, second = audit.rounds(db.reader, 1)
        (third,) = audit.rounds(db.reader, 2)
        found = sessions.by_workspace(db.reader, "/srv/old")
        turns = audit.spent_of_turns(db.reader, [1, 2])

    assert [(call.cost, call.is_unpriced, call.delay_ms) for call in (*first, *second, *third)] == [
        (0, False, 40), (0, True, 0), (7, False, None), (5, True, None), (9, False, None),
    ]  # fmt: skip
    assert {(call.status, call.streamed) for call in (*first, *second, *third)} == {(None, None)}
    assert found is not None
    assert (found.spent.cost, found.spent.unpriced) == (21, 2)
    assert [(used.cost, used.unpriced) for used in (turns[1], turns[2])] == [(12, 2), (9, 0)]


def old_attempts(tx: Tx) -> None:
    """In the place of the calls: refused, broken off, answered; cut off with a report; answered in another turn."""
    tx.execute("DELETE FROM model_call")
    refused, broken = (
        "the provider answered with status 529: overloaded",
        "the provider broke off its answer: slow down",
    )
    for key, state, kind, detail, run_cost, started, completed in (
        (1 << 32, "failed", "server_error", refused, 0, 10, 20),
        (1 << 32 | 1, "failed", "rate_limited", broken, 0, 60, 70),
        (1 << 32 | 2, "completed", None, None, 7, 70, 80),
        (1 << 32 | 64, "cancelled", None, None, 12, 90, 95),
        (2 << 32, "completed", None, None, 9, 10, 20),
    ):
        tx.execute(
            "INSERT INTO model_call (key, state, failure_kind, failure_detail, request_sequence, run_cost, "
            "started_at_ms, completed_at_ms) VALUES (?, ?, ?, ?, 1, ?, ?, ?)",
            (key, state, kind, detail, run_cost, started, completed),
        )
    tx.execute("UPDATE session SET cost = 21 WHERE no = 1")


async def test_attempts_past_the_last_slot_of_a_round_are_still_paid_for() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        for _ in range(audit.ATTEMPTS_PER_ROUND + 3):
            await add(db, opened, 0, Spent(cost=2, unpriced=1))
        (run,) = audit.runs(db.reader, home.no, stage=None, state=None, limit=9, offset=0)
        (calls,) = audit.rounds(db.reader, run.no)
        spent_of_turn = audit.spent_of_turns(db.reader, [opened.turn])[opened.turn]

    assert len(calls) == audit.ATTEMPTS_PER_ROUND
    assert sum(call.cost for call in calls) == spent_of_turn.cost == 2 * (audit.ATTEMPTS_PER_ROUND + 3)
    assert all(call.is_unpriced for call in calls)


def old_rows(tx: Tx) -> None:
    """Two sessions, one of which has two turns with calls, as the release before would have left them."""
    for no, workspace in ((1, "/srv/old"), (2, "/srv/new")):
        tx.execute(
            "INSERT INTO session (no, id, workspace, agent_space, root_agent, model, created_at_ms, updated_at_ms) "
            "VALUES (?, ?, ?, 'control', 'peen', 'm', 1, 1)",
            (no, bytes([no] * 16), workspace),
        )
    for no in (1, 2):
        key = bytes([no] * 16)
        tx.execute(
            "INSERT INTO turn (no, id, session_no, request_id, workspace, model, state, feed_cursor, started_at_ms) "
            "VALUES (?, ?, 1, ?, '/srv/old', 'm', 'completed', 0, 1)",
            (no, key, key),
        )
        tx.execute(
            "INSERT INTO execution (no, id, session_no, kind, turn_no, state, engine_version, round_limit, "
            "tool_parallelism, created_at_ms) VALUES (?, ?, 1, 'root', ?, 'completed', 1, 1, 1, 1)",
            (no, key, no),
        )
        tx.execute(
            "INSERT INTO model_run (no, id, session_no, turn_no, execution_no, stage, model, request_settings, state, "
            "started_at_ms) VALUES (?, ?, 1, ?, ?, 'turn', 'm', x'7b7d', 'completed', 1)",
            (no, key, no, no),
        )
    for run, slot, state, prompt, completion, read in (
        (1, 0, "failed", 1, None, None),
        (1, 1, "completed", None, None, None),
        (1, 64, "completed", 2, 2, None),
        (2, 0, "completed", 30, 10, 5),
    ):
        tx.execute(
            "INSERT INTO model_call (key, state, request_sequence, prompt_tokens, completion_tokens, "
            "cache_read_tokens, started_at_ms, completed_at_ms) VALUES (?, ?, 1, ?, ?, ?, 1, 1)",
            (run << 32 | slot, state, prompt, completion, read),
        )
