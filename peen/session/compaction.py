"""Storing a summary: its row, the links of the messages and its audit, with the step that made it or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final
from uuid import UUID

import msgspec

from peen.errors import Conflict, ValidationFailed
from peen.ids import SessionNo
from peen.session import inspection
from peen.session.standing import standing
from peen.store import activities, audit, compactions, feed, generations, sessions, snapshots
from peen.store.compactions import CompactionRow
from peen.store.database import Tx
from peen.store.executions import ExecutionRow
from peen.store.sessions import Taken
from peen.store.spending import NOTHING_SPENT, Spent
from peen.store.turns import TurnRow
from peen.wire.records import CompactionRecord, NewSummary
from peen.wire.summary import StandsFor, summary_text
from peen.wire.turncalls import CommitSteps, StoredSummary, SummarySettings

LOG_TYPE: Final = "agent.compaction"
"""What the session log calls a summary; it refers to it by its number."""
PHASE: Final = ".compact"

_encode: Final = msgspec.json.encode


def as_stored(row: CompactionRow | None) -> StoredSummary | None:
    """A summary as a worker is told of it."""
    if row is None:
        return None
    return StoredSummary(
        sequence=row.sequence, from_sequence=row.from_sequence, to_sequence=row.to_sequence, text=row.summary
    )


def step_of(request: CommitSteps) -> str:
    """The compaction that ends with this commit. Raises: ValidationFailed if none does."""
    steps = [done.step for done in request.completions if done.step.endswith(PHASE)]
    if len(steps) != 1:
        raise ValidationFailed("compaction: it does not belong to the completion of one")
    return steps[0]


def recorded(tx: Tx, session_no: SessionNo, request: CommitSteps) -> str | None:
    """The summary that this commit stored, when it was carried out before."""
    if request.compaction is None or request.compaction.summary is None:
        return None
    stored = compactions.one(tx, session_no, request.compaction.summary.supersedes + 1)
    return None if stored is None else stored.summary


def settings_of(tx: Tx, session_no: SessionNo, saved: Mapping[str, Any]) -> SummarySettings | None:
    """How the execution summarizes, as it was started; None if it drops what is too much."""
    if saved.get("mode") != "summarize":
        return None
    prompt = snapshots.read(tx, session_no, "prompt", bytes.fromhex(saved["promptHash"]))
    assert prompt is not None, "it was saved with the turn"
    return SummarySettings(
        model=saved["model"],
        prompt=prompt.content,
        max_output_tokens=saved["maxOutputTokens"],
        timeout_ms=saved["timeoutMs"],
    )


def record(
    tx: Tx,
    execution: ExecutionRow,
    turn: TurnRow,
    made: CompactionRecord,
    *,
    step: str,
    generation_no: int,
    run_id: bytes,
    spent: Sequence[Spent],
    at_ms: int,
) -> tuple[str | None, Taken]:
    """Store what a compaction came to; the summary as the model reads it, or None if there is none.

    With the standing of the session, which has `spent` for each of the calls.
    Raises: ValidationFailed if the summary would leave a gap, end inside a turn or cover a running one; Conflict if it
    does not follow from the summary in force, or a message is covered already. The whole commit is undone then.
    """
    session_no = execution.session_no
    prompt_no = snapshots.save(tx, session_no, "prompt", made.prompt, at_ms=at_ms)
    _audit(tx, execution, made, step=step, generation_no=generation_no, run_id=run_id, spent=spent)
    total = reduce(Spent.plus, spent, NOTHING_SPENT)
    if made.summary is None:
        return None, sessions.take_sequences(tx, session_no, spent=total, at_ms=at_ms)
    new = made.summary
    _check(tx, session_no, new)
    missing = StandsFor(new.missing_messages, new.missing_requests)
    text = summary_text(new.text, standing(tx, turn), missing)
    row = CompactionRow(
        sequence=new.supersedes + 1,
        supersedes=new.supersedes or None,
        from_sequence=new.from_sequence,
        to_sequence=new.to_sequence,
        message_count=new.message_count,
        input_tokens=new.input_tokens,
        summary_tokens=new.summary_tokens,
        model=made.model,
        prompt_sha256=hashlib.sha256(made.prompt.encode()).digest(),
        summary=text,
        created_at_ms=at_ms,
    )
    compactions.add(tx, session_no, row, prompt_no=prompt_no)
    taken = sessions.take_sequences(tx, session_no, logs=1, spent=total, at_ms=at_ms)
    feed.insert_log(tx, session_no, [(LOG_TYPE, row.sequence)], last=taken.log, at_ms=at_ms)
    return text, taken


def _check(tx: Tx, session_no: SessionNo, new: NewSummary) -> None:
    head = compactions.head(tx, session_no)
    in_force, covered_to = (0, 0) if head is None else (head.sequence, head.to_sequence)
    if new.supersedes != in_force:
        raise Conflict(f"compaction: it follows summary {new.supersedes}, and summary {in_force} is in force")
    if new.from_sequence != (1 if head is None else head.from_sequence):
        raise ValidationFailed("compaction: the summary leaves out messages at the beginning of the session")
    if new.to_sequence <= covered_to:
        raise ValidationFailed("compaction: the summary covers nothing that is not covered already")
    wanted = new.to_sequence - covered_to
    found = compactions.covered(tx, session_no, covered_to + 1, new.to_sequence)
    if found.running:
        raise ValidationFailed("compaction: the summary covers messages of a turn that has not ended")
    if found.messages != wanted or new.message_count != wanted:
        raise ValidationFailed(
            f"compaction: the summary is of {new.message_count} messages, and {found.messages} stand in its range of "
            f"{wanted}"
        )
    if found.free != wanted:
        raise Conflict(f"compaction: {wanted - found.free} messages are covered by another summary")
    if not compactions.is_boundary(tx, session_no, new.to_sequence):
        raise ValidationFailed("compaction: the summary ends in the middle of a turn")


def _audit(
    tx: Tx,
    execution: ExecutionRow,
    made: CompactionRecord,
    *,
    step: str,
    generation_no: int,
    run_id: bytes,
    spent: Sequence[Spent],
) -> None:
    settings = {
        "model": made.model,
        "maxOutputTokens": made.max_output_tokens,
        "timeoutMs": made.timeout_ms,
        "promptHash": hashlib.sha256(made.prompt.encode()).hexdigest(),
        "executionId": str(UUID(bytes=execution.id)),
        "activityId": inspection.activity_id(execution.id, step),
        "attempt": activities.attempt_of(tx, execution.no, step),
        "workerGenerationId": str(UUID(bytes=generations.id_of(tx, generation_no))),
    }
    run_no = audit.add_ended_run(
        tx,
        run_id=run_id,
        session_no=execution.session_no,
        turn_no=execution.turn_no,
        execution_no=execution.no,
        stage="compaction",
        model=made.model,
        settings=_encode(settings),
        state="failed" if made.summary is None else "completed",
        finish_reason=made.finish_reason,
        classification=made.failure_kind,
        detail=made.failure_detail,
        started_at_ms=made.started_at_ms,
        completed_at_ms=made.completed_at_ms,
    )
    for call, used in zip(made.calls, spent, strict=True):
        audit.add_call_to(tx, run_no, generation_no=generation_no, call=call, spent=used)
