"""Model runs and their calls: what was asked of a provider, what it answered, what it used."""

from __future__ import annotations

from typing import Final

from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Tx
from peen.wire.worker import ModelCallRecord

ATTEMPTS_PER_ROUND: Final = 64

_OPEN: Final = """
INSERT INTO model_run (id, session_no, turn_no, execution_no, stage, model, request_settings, state, started_at_ms)
VALUES (:id, :session_no, :turn_no, :execution_no, :stage, :model, :settings, 'running', :at_ms)
"""
_RUN: Final = "SELECT no FROM model_run WHERE turn_no = ? AND execution_no = ? AND stage = 'turn'"
_END: Final = """
UPDATE model_run SET state = ?, finish_reason = ?, failure_classification = ?, failure_detail = ?, completed_at_ms = ?
 WHERE turn_no = ? AND state = 'running'
"""
_CALL: Final = """
INSERT INTO model_call (key, state, generation_no, request_sequence, response, response_model, finish_reason,
                        prompt_tokens, completion_tokens, reasoning_tokens, cache_read_tokens, cache_write_tokens,
                        failure_kind, failure_detail, started_at_ms, completed_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_NEXT_ATTEMPT: Final = "SELECT count(*) FROM model_call WHERE key >= ? AND key < ?"


def open_run(
    tx: Tx,
    *,
    run_id: bytes,
    session_no: SessionNo,
    turn_no: int,
    execution_no: int,
    model: str,
    settings: bytes,
    at_ms: int,
) -> None:
    tx.execute(
        _OPEN,
        {
            "id": run_id, "session_no": session_no, "turn_no": turn_no, "execution_no": execution_no, "stage": "turn",
            "model": model, "settings": settings, "at_ms": at_ms,
        },
    )  # fmt: skip


def add_call(tx: Tx, *, turn_no: int, execution_no: int, generation_no: int, call: ModelCallRecord) -> None:
    """Store one attempt at one round of the turn's run."""
    row = tx.row(_RUN, (turn_no, execution_no))
    assert row is not None, "a call belongs to a run"
    first = keys.join(row[0], call.round * ATTEMPTS_PER_ROUND)
    attempt = tx.row(_NEXT_ATTEMPT, (first, first + ATTEMPTS_PER_ROUND))
    assert attempt is not None
    usage = call.usage
    tx.execute(
        _CALL,
        (
            first + min(attempt[0], ATTEMPTS_PER_ROUND - 1), call.state, generation_no, call.request_sequence,
            None if bytes(call.response) == b"null" else bytes(call.response), call.response_model, call.finish_reason,
            usage.prompt, usage.completion, usage.reasoning, usage.cache_read, usage.cache_write,
            call.failure_kind, call.failure_detail, call.started_at_ms, call.completed_at_ms,
        ),
    )  # fmt: skip


def end_runs(
    tx: Tx, turn_no: int, *, state: str, finish_reason: str, classification: str, detail: str, at_ms: int
) -> None:
    """End whatever run of the turn is still open."""
    tx.execute(_END, (state, finish_reason, classification, detail, at_ms, turn_no))
