"""Model calls, shared texts and worker generations."""

from __future__ import annotations

from functools import partial

import apsw
import pytest
from msgspec import Raw, structs
from world_kit import AT_MS, Home, make_home, open_store, open_turn, uuid

from peen.store import audit, executions, generations, keys, snapshots
from peen.store.database import Database
from peen.wire.records import ModelCallRecord, Usage
from peen.wire.turncalls import OpenedTurn

# --- model calls


def model_call(turn_round: int, **more: object) -> ModelCallRecord:
    plain = ModelCallRecord(
        round=turn_round, state="completed", request_sequence=1, started_at_ms=AT_MS, completed_at_ms=AT_MS
    )
    return structs.replace(plain, **more)


async def add_call(db: Database, home: Home, opened: OpenedTurn, call: ModelCallRecord) -> None:
    execution = executions.root_of(db.reader, opened.turn)
    assert execution is not None
    change = partial(
        audit.add_call, turn_no=opened.turn, execution_no=execution.no, generation_no=home.generation_no, call=call
    )
    await db.write(change)


async def test_each_attempt_at_a_round_has_a_row_of_its_own_in_order() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        for turn_round, kind in ((0, "first"), (0, "second"), (1, "third"), (0, "fourth")):
            failed = model_call(turn_round, state="failed", failure_kind=kind)
            await add_call(db, home, opened, failed)
        rows = db.reader.rows("SELECT key, failure_kind FROM model_call ORDER BY key")

    run_no = keys.owner_of(rows[0][0])
    attempts = [
        (keys.owner_of(key), *divmod(keys.sequence_of(key), audit.ATTEMPTS_PER_ROUND), kind) for key, kind in rows
    ]
    assert attempts == [
        (run_no, 0, 0, "first"),
        (run_no, 0, 1, "second"),
        (run_no, 0, 2, "fourth"),
        (run_no, 1, 0, "third"),
    ]


async def test_more_attempts_at_a_round_than_there_is_room_for_replace_the_last_and_keep_its_request() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        for _ in range(audit.ATTEMPTS_PER_ROUND - 1):  # as many pauses may meet one round
            await add_call(db, home, opened, model_call(0, state="cancelled"))
        await add_call(db, home, opened, model_call(0, state="failed", request=Raw(b'["sent"]'), failure_kind="http"))
        await add_call(db, home, opened, model_call(0, response=Raw(b'{"calls":0}'), finish_reason="stop"))
        (run,) = audit.runs(db.reader, home.no, stage=None, state=None, limit=2, offset=0)
        (attempts,) = audit.rounds(db.reader, run.no)
        sent = audit.requests(db.reader, run.no, up_to_round=0, limit=2)

    assert len(attempts) == audit.ATTEMPTS_PER_ROUND
    assert [attempt.state for attempt in attempts[-2:]] == ["cancelled", "completed"]
    assert (attempts[-1].finish_reason, attempts[-1].failure_kind) == ("stop", None)
    assert sent == [b'["sent"]']


async def test_unknown_usage_stays_unknown_and_a_missing_answer_is_null() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        await add_call(db, home, opened, model_call(0, usage=Usage(prompt=3, completion=0)))
        await add_call(db, home, opened, model_call(1, response=Raw(b'{"calls":0}'), finish_reason="stop"))
        rows = db.reader.rows(
            "SELECT prompt_tokens, completion_tokens, reasoning_tokens, response, finish_reason FROM model_call"
        )

    assert rows == [(3, 0, None, None, None), (None, None, None, b'{"calls":0}', "stop")]


async def test_the_end_of_a_turn_ends_its_run_once_and_no_other() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        first, _ = await open_turn(db, one, frame=1), await open_turn(db, two, frame=2)
        for state, detail in (("failed", "broken"), ("completed", "")):
            change = partial(
                audit.end_runs, turn_no=first.turn, state=state, finish_reason="", classification="agentRun",
                detail=detail, at_ms=AT_MS,
            )  # fmt: skip
            await db.write(change)
        rows = db.reader.rows("SELECT state, failure_detail FROM model_run ORDER BY no")

    assert rows == [("failed", "broken"), ("running", "")]


# --- snapshots


async def test_a_text_that_many_sessions_share_is_stored_once_and_each_session_is_granted_it() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        saved = [
            await db.write(partial(snapshots.save, session_no=no, kind="prompt", content=content, at_ms=AT_MS))
            for no, content in ((one.no, "same"), (two.no, "same"), (one.no, "same"), (one.no, "other"))
        ]
        grants = db.reader.rows("SELECT session_no, snapshot_no FROM snapshot_use ORDER BY session_no, snapshot_no")

    same, other = saved[0], saved[3]
    assert saved == [same, same, same, other]
    assert other != same
    assert grants == [(one.no, same), (one.no, other), (two.no, same)]


async def test_equal_texts_of_two_kinds_are_two_snapshots() -> None:
    async with open_store() as db:
        home = await make_home(db)
        prompt = await db.write(partial(snapshots.save, session_no=home.no, kind="prompt", content="x", at_ms=AT_MS))
        tools = await db.write(partial(snapshots.save, session_no=home.no, kind="tools", content="x", at_ms=AT_MS))

    assert prompt != tools


async def test_a_snapshot_with_a_name_of_its_own_is_known_by_that_name() -> None:
    async with open_store() as db:
        home = await make_home(db)
        change = partial(
            snapshots.save, session_no=home.no, kind="context", at_ms=AT_MS, sha256=b"n" * 32, manifest=b"{}"
        )
        first, again = await db.write(partial(change, content="a")), await db.write(partial(change, content="a"))
        rows = db.reader.rows("SELECT sha256, content, manifest FROM snapshot")

    assert first == again
    assert rows == [(b"n" * 32, "a", b"{}")]


# --- generations


async def create(db: Database, home: Home, number: int) -> bytes:
    generation_id = uuid(number).bytes
    change = partial(
        generations.create, generation_id=generation_id, session_no=home.no, agent_space="control",
        workspace="/srv/project", credential_sha256=bytes(32), socket_path="/run/worker.sock", at_ms=AT_MS,
    )  # fmt: skip
    await db.write(change)
    return generation_id


async def test_a_generation_goes_from_requested_over_starting_and_ready_to_its_end() -> None:
    async with open_store() as db:
        home = await make_home(db)
        generation_id = await create(db, home, 9)
        states = [state_of(db, generation_id)]
        for change in (
            partial(generations.starting, generation_id=generation_id, pid=42, process_started=7, at_ms=AT_MS),
            partial(generations.ready, generation_id=generation_id),
            partial(generations.stopping, generation_id=generation_id),
            partial(
                generations.ended, generation_id=generation_id, state="stopped", detail=None, exit_code=0, at_ms=AT_MS
            ),
        ):
            await db.write(change)
            states.append(state_of(db, generation_id))
        row = generations.by_id(db.reader, generation_id)

    assert states == ["requested", "starting", "ready", "stopping", "stopped"]
    assert row is not None
    assert (row.process_id, row.process_started) == (42, 7)


async def test_a_generation_that_has_ended_stays_as_it_was_recorded() -> None:
    async with open_store() as db:
        home = await make_home(db)
        generation_id = await create(db, home, 9)
        end = partial(generations.ended, generation_id=generation_id, exit_code=None, at_ms=AT_MS)
        await db.write(partial(end, state="failed", detail="lost"))
        for change in (
            partial(end, state="stopped", detail=None),
            partial(generations.ready, generation_id=generation_id),
            partial(generations.stopping, generation_id=generation_id),
            partial(generations.starting, generation_id=generation_id, pid=1, process_started=1, at_ms=AT_MS),
        ):
            await db.write(change)
        row = db.reader.row("SELECT state, failure_detail, process_id FROM generation WHERE id = ?", (generation_id,))

    assert row == ("failed", "lost", None)


async def test_generations_that_have_not_ended_are_those_that_a_crash_leaves_behind() -> None:
    async with open_store() as db:
        home = await make_home(db)
        alive, gone = await create(db, home, 9), await create(db, home, 10)
        change = partial(generations.ended, generation_id=gone, state="stopped", detail=None, exit_code=0, at_ms=AT_MS)
        await db.write(change)

        left = generations.not_ended(db.reader)

    assert [row.id for row in left] == [uuid(2001).bytes, alive]


async def test_a_generation_id_is_used_once() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await create(db, home, 9)

        with pytest.raises(apsw.ConstraintError):
            await create(db, home, 9)


def state_of(db: Database, generation_id: bytes) -> str:
    row = generations.by_id(db.reader, generation_id)
    assert row is not None
    return row.state
