"""What the controller lets a summary cover, and that a refused one leaves nothing behind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from world_kit import (
    AT_MS,
    HOLDER,
    Home,
    accept_message,
    check_sequences,
    dump,
    execution_of,
    make_home,
    open_request,
    open_store,
    open_turn,
    uuid,
)

from peen.errors import Conflict, PeenError, StepConflict, ValidationFailed
from peen.session import adoption, writes
from peen.session.ending import end_unfinished, interrupted
from peen.store import compactions, executions, turns
from peen.store.database import Database, Tx
from peen.wire.records import Claim, CompactionRecord, Completion, MessageRecord, ModelCallRecord, NewSummary, Terminal
from peen.wire.summary import StandsFor, stands_for
from peen.wire.turncalls import CommitSteps, Committed, OpenedTurn, RestoreExecution


@dataclass
class Desk:
    """A session with ended turns of two messages each, and one that runs and is about to be compacted."""

    db: Database
    home: Home
    running: OpenedTurn
    runs: Iterator[int] = field(default_factory=lambda: itertools.count(7100))

    async def compact(self, *, payload: bytes = b"", step: str = "r0.compact", **changed: Any) -> Committed:
        """Commit a summary of the first two turns, with some fields of it changed."""
        fields = {
            "supersedes": 0, "from_sequence": 1, "to_sequence": 4, "message_count": 4, "missing_messages": 4,
            "missing_requests": 2, "text": "They spoke.", "input_tokens": 100, "summary_tokens": 10, **changed,
        }  # fmt: skip
        call = ModelCallRecord(
            round=0, state="completed", request_sequence=4, started_at_ms=AT_MS, completed_at_ms=AT_MS,
            response=Raw(b'{"text":"They spoke."}'),
        )  # fmt: skip
        made = CompactionRecord(
            model="up/m", prompt="Sum up.", max_output_tokens=100, timeout_ms=1000, calls=[call],
            summary=NewSummary(**fields), started_at_ms=AT_MS, completed_at_ms=AT_MS,
        )  # fmt: skip
        request = CommitSteps(
            execution_id=self.running.execution_id, holder=HOLDER, compaction=made,
            completions=[Completion(step=step, output=Raw(b'{"outcome":"summarized"}'))],
        )  # fmt: skip
        return await self.commit(request, payload=payload)

    async def commit(self, request: CommitSteps, *, payload: bytes = b"") -> Committed:
        change = partial(
            writes.commit_steps, writer=self.home.writer, request=request,
            payload=payload or msgspec.json.encode(request), next_turn_id=uuid(7000).bytes,
            run_id=uuid(next(self.runs)).bytes, at_ms=AT_MS,
        )  # fmt: skip
        committed, _ = await self.db.write(change)
        return committed

    async def begin(self, step: str = "r0.compact") -> None:
        claim = Claim(step=step, kind="compact", given=Raw(b'{"toSequence":4}'))
        await self.commit(CommitSteps(execution_id=self.running.execution_id, holder=HOLDER, claims=[claim]))


async def desk(db: Database, *, ended: int = 3) -> Desk:
    home = await make_home(db)
    for frame in range(1, ended + 1):
        opened = await open_turn(db, home, f"message {frame}", frame=frame)
        own = Desk(db, home, opened)
        answer = MessageRecord(role="assistant", content=f"answer {frame}")
        await own.commit(
            CommitSteps(
                execution_id=opened.execution_id, holder=HOLDER, messages=[answer],
                terminal=Terminal(state="completed", text="x"),
            )
        )  # fmt: skip
    own = Desk(db, home, await open_turn(db, home, "running", frame=ended + 1))
    await own.begin()
    return own


async def test_a_summary_is_stored_with_its_links_and_read_back_as_it_stands() -> None:
    async with open_store() as db:
        own = await desk(db)
        committed = await own.compact()

        row = compactions.head(db.reader, own.home.no)
        assert row is not None
        assert committed.summary == row.summary
        assert stands_for(row.summary) == StandsFor(4, 2)
        assert row.summary.endswith("Current directory: /srv/project-1\n</summary>")
        check_sequences(db.reader)


async def test_a_summary_names_the_commands_that_run_in_the_background() -> None:
    async with open_store() as db:
        own = await desk(db)
        add = """
            INSERT INTO job (id, session_no, turn_no, execution_no, generation_no, call_id, purpose, command, directory,
                             state, is_detached, started_at_ms)
            SELECT ?, ?, max(t.no), max(e.no), ?, 'c', ?, 'make all', '/srv', ?, ?, 0 FROM turn t, execution e
        """
        for number, (purpose, state, detached) in enumerate(
            [("build it", "running", 1), ("over", "exited", 1), ("inside its call", "running", 0)], 1
        ):
            row = (uuid(7000 + number).bytes, own.home.no, own.home.generation_no, purpose, state, detached)
            await db.write(lambda tx, row=row: tx.execute(add, row).fetchall())  # type: ignore[misc]
        committed = await own.compact()

        assert committed.summary is not None
        told = committed.summary.split("Commands that were still running in the background:\n")[1]
        assert told.startswith(f"- job {uuid(7001)}: build it (`make all`)\n")
        assert "over" not in told
        assert "inside its call" not in told


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"from_sequence": 3, "message_count": 2}, ValidationFailed),  # a completed prefix is skipped
        ({"to_sequence": 3, "message_count": 3}, ValidationFailed),  # it ends inside of a turn
        ({"to_sequence": 7, "message_count": 7}, ValidationFailed),  # the running turn
        ({"to_sequence": 0, "message_count": 1}, ValidationFailed),  # nothing
        ({"to_sequence": 40, "message_count": 40}, ValidationFailed),  # messages that are not there
        ({"message_count": 3}, ValidationFailed),  # a gap
        ({"supersedes": 1}, Conflict),  # no such predecessor
    ],
)
async def test_a_summary_that_does_not_fit_is_refused_and_undoes_its_whole_commit(
    changed: dict[str, Any], error: type[PeenError]
) -> None:
    async with open_store() as db:
        own = await desk(db)
        before = dump(db)
        with pytest.raises(error):
            await own.compact(**changed)

        assert dump(db) == before


async def test_a_summary_that_follows_a_stale_one_is_refused() -> None:
    async with open_store() as db:
        own = await desk(db)
        await own.compact()
        await own.begin("r1.compact")
        before = dump(db)
        for to_sequence, count in ((4, 4), (6, 2)):
            with pytest.raises(Conflict):
                await own.compact(step="r1.compact", supersedes=0, to_sequence=to_sequence, message_count=count)
        with pytest.raises(ValidationFailed):  # it covers nothing more
            await own.compact(step="r1.compact", supersedes=1)

        assert dump(db) == before
        await own.compact(step="r1.compact", supersedes=1, to_sequence=6, message_count=2)
        rows = compactions.page(db.reader, own.home.no, limit=9, offset=0)
        assert [(row.sequence, row.supersedes, row.to_sequence) for row in rows] == [(2, 1, 6), (1, None, 4)]
        links = db.reader.rows("SELECT compaction_no FROM message ORDER BY key")
        assert [number for (number,) in links] == [1, 1, 1, 1, 2, 2, None]


async def test_a_message_that_is_covered_by_another_summary_is_a_conflict() -> None:
    async with open_store() as db:
        own = await desk(db)
        await db.write(lambda tx: tx.execute("UPDATE message SET compaction_no = 9 WHERE key & 0xFFFFFFFF = 2"))
        before = dump(db)
        with pytest.raises(Conflict):
            await own.compact()

        assert dump(db) == before


async def test_a_repeated_completion_is_told_the_same_and_another_one_is_refused() -> None:
    async with open_store() as db:
        own = await desk(db)
        first = await own.compact(payload=b"one")
        before = dump(db)

        assert await own.compact(payload=b"one") == first
        with pytest.raises(StepConflict):
            await own.compact(payload=b"other", text="Something else.")
        assert dump(db) == before


async def test_a_summary_belongs_to_the_end_of_a_compaction() -> None:
    async with open_store() as db:
        own = await desk(db)
        claim = Claim(step="r0.t0.handler", kind="read", given=Raw(b"{}"))
        await own.commit(CommitSteps(execution_id=own.running.execution_id, holder=HOLDER, claims=[claim]))
        before = dump(db)
        with pytest.raises(ValidationFailed):
            await own.compact(step="r0.t0.handler")

        assert dump(db) == before


async def test_a_worker_is_told_the_summary_in_force_unless_it_knows_it() -> None:
    async with open_store() as db:
        own = await desk(db)
        await own.compact()
        end = Terminal(state="failed", reason="agentRun", error="x", classification="agentRun")
        await own.commit(CommitSteps(execution_id=own.running.execution_id, holder=HOLDER, terminal=end))

        async def opened(frame: int, **known: int) -> OpenedTurn:
            request = open_request(await accept_message(db, own.home, "next", frame=frame))
            change = partial(
                adoption.open_turn, writer=own.home.writer, request=msgspec.structs.replace(request, **known),
                execution_id=uuid(5000 + frame).bytes, run_id=uuid(6000 + frame).bytes, at_ms=AT_MS,
            )  # fmt: skip
            found = await db.write(change)
            await own.commit(CommitSteps(execution_id=found.execution_id, holder=HOLDER, terminal=end))
            return found

        cold = await opened(10)
        assert cold.summary is not None
        assert (cold.summary.sequence, cold.summary.to_sequence) == (1, 4)
        assert [row.sequence for row in cold.history] == [5, 6, 7, 8]
        behind = await opened(11, known_sequence=8)
        assert behind.summary == cold.summary
        assert [row.sequence for row in behind.history] == [9, 10]
        warm = await opened(12, known_sequence=10, known_summary=1)
        assert warm.summary is None
        assert [row.sequence for row in warm.history] == [11, 12]


async def test_a_compaction_that_is_cut_off_is_in_the_audit_and_a_resumed_worker_is_told_what_it_was_about() -> None:
    async with open_store() as db:
        own = await desk(db)
        turn_id = str(uuid(3004))

        def interrupt(tx: Tx) -> None:
            turn = turns.by_id(tx, uuid(3004).bytes)
            assert turn is not None
            end_unfinished(tx, turn, interrupted("interrupted", "it died"), at_ms=AT_MS, generation_no=None)

        await db.write(interrupt)
        run = db.reader.rows("SELECT state, failure_classification FROM model_run WHERE stage = 'compaction'")
        calls = db.reader.rows("SELECT c.state FROM model_call c JOIN model_run r ON r.no = c.key >> 32 "
                               "WHERE r.stage = 'compaction'")  # fmt: skip
        assert (run, calls) == ([("interrupted", "interrupted")], [("cancelled",)])

        execution = execution_of(db, turn_id)
        again = partial(
            executions.resume, no=execution.no, control_revision=execution.control_revision, at_ms=AT_MS, caller="x"
        )
        await db.write(again)
        request = RestoreExecution(execution_id=own.running.execution_id, holder=HOLDER)
        restore = partial(adoption.restore, writer=own.home.writer, request=request, at_ms=AT_MS)
        restored = await db.write(restore)
        assert [(step.step, step.state, bytes(step.given)) for step in restored.steps] == [
            ("r0.compact", "interrupted", b'{"toSequence":4}')
        ]
        assert (restored.summary, restored.summary_in_force, restored.may_summarize) == (None, 0, True)
