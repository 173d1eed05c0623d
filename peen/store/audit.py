"""Model runs and their calls: what was asked of a provider, what it answered, what it used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Reader, Tx
from peen.store.spending import MOST, NOTHING_SPENT, Spent
from peen.wire.records import NOTHING, ModelCallRecord, Usage
from peen.wire.turncalls import Calibration


class RunRow(NamedTuple):
    no: int
    id: bytes
    turn_no: int
    turn_id: bytes
    stage: str
    model: str
    request_settings: bytes
    state: str
    finish_reason: str
    failure_classification: str
    failure_detail: str
    started_at_ms: int
    completed_at_ms: int | None


class CallRow(NamedTuple):
    """One attempt at one round; both count from 0."""

    round: int
    attempt: int
    state: str
    request_sequence: int
    """Last message of the session that the request was made of."""
    response_model: str | None
    finish_reason: str | None
    failure_kind: str | None
    failure_detail: str | None
    started_at_ms: int
    completed_at_ms: int
    has_request: bool
    status: int | None
    streamed: bool | None
    """None for an attempt of a release that did not write it down."""
    delay_ms: int | None
    cost: int
    """Trillionths of a dollar, as far as is known."""
    is_unpriced: bool
    """Whether it may have cost more than that."""
    usage: Usage


ATTEMPTS_PER_ROUND: Final = 64

_OPEN: Final = """
INSERT INTO model_run (id, session_no, turn_no, execution_no, stage, model, request_settings, state, started_at_ms)
VALUES (:id, :session_no, :turn_no, :execution_no, :stage, :model, :settings, 'running', :at_ms)
"""
_END: Final = """
UPDATE model_run SET state = ?, finish_reason = ?, failure_classification = ?, failure_detail = ?, completed_at_ms = ?
 WHERE turn_no = ? AND state = 'running'
"""
_REOPEN: Final = """
UPDATE model_run SET state = 'running', failure_classification = '', failure_detail = '', completed_at_ms = NULL
 WHERE turn_no = ? AND stage = 'turn' AND state <> 'completed'
"""
_ADD_ENDED: Final = """
INSERT INTO model_run (id, session_no, turn_no, execution_no, stage, model, request_settings, state, finish_reason,
                       failure_classification, failure_detail, started_at_ms, completed_at_ms)
VALUES (:id, :session_no, :turn_no, :execution_no, :stage, :model, :settings, :state, :finish_reason, :classification,
        :detail, :started_at_ms, :completed_at_ms)
RETURNING no
"""
# `p` is the call before this one, whose sums go on.
_CALL: Final = f"""
INSERT INTO model_call (key, state, generation_no, request_sequence, request, response, response_model, finish_reason,
                        prompt_tokens, completion_tokens, reasoning_tokens, cache_read_tokens, cache_write_tokens,
                        failure_kind, failure_detail, started_at_ms, completed_at_ms, status, streamed, delay_ms, cost,
                        unpriced, run_prompt_tokens, run_completion_tokens, run_reasoning_tokens, run_cache_read_tokens,
                        run_cache_write_tokens, run_cost, run_unpriced_calls)
SELECT r.first + min(r.made, :last_attempt), :state, :generation_no, :request_sequence, :request, :response,
       :response_model, :finish_reason, :prompt, :completion, :reasoning, :cache_read, :cache_write, :failure_kind,
       :failure_detail, :started_at_ms, :completed_at_ms, :status, :streamed, :delay_ms, :spent_cost, :spent_unpriced,
       min(coalesce(p.run_prompt_tokens + :spent_prompt, p.run_prompt_tokens, :spent_prompt), {MOST}),
       min(coalesce(p.run_completion_tokens + :spent_completion, p.run_completion_tokens, :spent_completion), {MOST}),
       min(coalesce(p.run_reasoning_tokens + :spent_reasoning, p.run_reasoning_tokens, :spent_reasoning), {MOST}),
       min(coalesce(p.run_cache_read_tokens + :spent_read, p.run_cache_read_tokens, :spent_read), {MOST}),
       min(coalesce(p.run_cache_write_tokens + :spent_write, p.run_cache_write_tokens, :spent_write), {MOST}),
       min(coalesce(p.run_cost, 0) + :spent_cost, {MOST}), coalesce(p.run_unpriced_calls, 0) + :spent_unpriced
  FROM (SELECT f.first, (SELECT count(*) FROM model_call c WHERE c.key >= f.first AND c.key <= f.first + :last_attempt)
               AS made,
               (SELECT c.key FROM model_call c WHERE c.key >= f.of_run AND c.key < f.of_run + (1 << 32)
                 ORDER BY c.key DESC LIMIT 1) AS latest
          FROM (SELECT no << 32 AS of_run, (no << 32) + :slot AS first FROM model_run
                 WHERE no = coalesce(:run_no, (SELECT no FROM model_run WHERE turn_no = :turn_no
                                                  AND execution_no = :execution_no AND stage = 'turn'))) f) r
       LEFT JOIN model_call p ON p.key = r.latest
 WHERE true
ON CONFLICT (key) DO UPDATE
   SET state = excluded.state, generation_no = excluded.generation_no, request_sequence = excluded.request_sequence,
       request = coalesce(excluded.request, request), response = excluded.response,
       response_model = excluded.response_model, finish_reason = excluded.finish_reason,
       prompt_tokens = excluded.prompt_tokens, completion_tokens = excluded.completion_tokens,
       reasoning_tokens = excluded.reasoning_tokens, cache_read_tokens = excluded.cache_read_tokens,
       cache_write_tokens = excluded.cache_write_tokens, failure_kind = excluded.failure_kind,
       failure_detail = excluded.failure_detail, started_at_ms = excluded.started_at_ms,
       completed_at_ms = excluded.completed_at_ms, status = excluded.status, streamed = excluded.streamed,
       delay_ms = excluded.delay_ms, cost = min(cost + excluded.cost, {MOST}), unpriced = unpriced + excluded.unpriced,
       run_prompt_tokens = excluded.run_prompt_tokens, run_completion_tokens = excluded.run_completion_tokens,
       run_reasoning_tokens = excluded.run_reasoning_tokens, run_cache_read_tokens = excluded.run_cache_read_tokens,
       run_cache_write_tokens = excluded.run_cache_write_tokens, run_cost = excluded.run_cost,
       run_unpriced_calls = excluded.run_unpriced_calls
RETURNING key
"""
_SPENT: Final = """
SELECT r.turn_no, sum(c.run_prompt_tokens), sum(c.run_completion_tokens), sum(c.run_reasoning_tokens),
       sum(c.run_cache_read_tokens), sum(c.run_cache_write_tokens), sum(c.run_cost), sum(c.run_unpriced_calls)
  FROM model_run r
       JOIN model_call c
         ON c.key = (SELECT max(l.key) FROM model_call l WHERE l.key >= r.no << 32 AND l.key < (r.no + 1) << 32)
 WHERE r.turn_no IN (SELECT value FROM json_each(?)) GROUP BY r.turn_no
"""
_SELECT_RUN: Final = """
SELECT r.no, r.id, r.turn_no, t.id, r.stage, r.model, r.request_settings, r.state, r.finish_reason,
       r.failure_classification, r.failure_detail, r.started_at_ms, r.completed_at_ms
  FROM model_run r JOIN turn t ON t.no = r.turn_no
"""
_RUNS: Final = (
    _SELECT_RUN
    + """
 WHERE r.session_no = :session_no AND (:stage IS NULL OR r.stage = :stage) AND (:state IS NULL OR r.state = :state)
 ORDER BY r.no DESC LIMIT :limit OFFSET :offset
"""
)
_RUN_BY_ID: Final = _SELECT_RUN + " WHERE r.session_no = ? AND r.id = ?"
_ROUNDS: Final = f"""
SELECT DISTINCT (key & 0xFFFFFFFF) / {ATTEMPTS_PER_ROUND} FROM model_call WHERE key >= ? AND key < ?
 ORDER BY 1 LIMIT ? OFFSET ?
"""
_CALLS: Final = f"""
SELECT (key & 0xFFFFFFFF) / {ATTEMPTS_PER_ROUND}, key % {ATTEMPTS_PER_ROUND}, state, request_sequence, response_model,
       finish_reason, failure_kind, failure_detail, started_at_ms, completed_at_ms, request IS NOT NULL, status,
       streamed, delay_ms, cost, unpriced, prompt_tokens, completion_tokens, reasoning_tokens, cache_read_tokens,
       cache_write_tokens
  FROM model_call WHERE key >= ? AND key < ? ORDER BY key
"""
_REQUESTS: Final = """
SELECT request FROM model_call WHERE key >= ? AND key < ? AND request IS NOT NULL ORDER BY key DESC LIMIT ?
"""

_LAST_RESPONSE: Final = """
SELECT response FROM model_call WHERE key >= ? AND key < ? AND state = 'completed' AND response IS NOT NULL
 ORDER BY key DESC LIMIT 1
"""
_LATEST_RUNS: Final = """
SELECT no FROM model_run WHERE session_no = ? AND stage = 'turn' AND model = ? ORDER BY no DESC LIMIT ?
"""
_LOOKED_AT: Final = 4  # runs: the latest may have had no answer
_LAST_COUNTED: Final = """
SELECT prompt_tokens, json_extract(response, '$.estimatedTokens') FROM model_call
 WHERE key >= ? AND key < ? AND prompt_tokens IS NOT NULL AND json_extract(response, '$.estimatedTokens') > 0
 ORDER BY key DESC LIMIT 1
"""


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


def reopen_runs(tx: Tx, turn_no: int) -> None:
    """The turn goes on, and so does its model run."""
    tx.execute(_REOPEN, (turn_no,))


def add_ended_run(
    tx: Tx,
    *,
    run_id: bytes,
    session_no: SessionNo,
    turn_no: int,
    execution_no: int,
    stage: str,
    model: str,
    settings: bytes,
    state: str,
    finish_reason: str,
    classification: str,
    detail: str,
    started_at_ms: int,
    completed_at_ms: int,
) -> int:
    """Number of a run that is over when it is stored."""
    row = tx.row(
        _ADD_ENDED,
        {
            "id": run_id, "session_no": session_no, "turn_no": turn_no, "execution_no": execution_no, "stage": stage,
            "model": model, "settings": settings, "state": state, "finish_reason": finish_reason,
            "classification": classification, "detail": detail, "started_at_ms": started_at_ms,
            "completed_at_ms": completed_at_ms,
        },
    )  # fmt: skip
    assert row is not None
    return int(row[0])


def add_call(
    tx: Tx,
    *,
    turn_no: int,
    execution_no: int,
    generation_no: int,
    call: ModelCallRecord,
    spent: Spent = NOTHING_SPENT,
) -> None:
    """Store one attempt at one round of the turn's run.

    `spent` is added to the sums of the run; the session counts it in `sessions.take_sequences`.
    """
    of_turn = {"run_no": None, "turn_no": turn_no, "execution_no": execution_no}
    _add_call(tx, of_turn, generation_no=generation_no, call=call, spent=spent)


def add_call_to(
    tx: Tx, run_no: int, *, generation_no: int, call: ModelCallRecord, spent: Spent = NOTHING_SPENT
) -> None:
    """Store one attempt at one round of that run; `spent` as for `add_call`."""
    of_run = {"run_no": run_no, "turn_no": None, "execution_no": None}
    _add_call(tx, of_run, generation_no=generation_no, call=call, spent=spent)


def _add_call(
    tx: Tx, run: Mapping[str, int | None], *, generation_no: int, call: ModelCallRecord, spent: Spent
) -> None:
    usage = call.usage
    added = tx.row(
        _CALL,
        {
            **run, "slot": call.round * ATTEMPTS_PER_ROUND,
            "last_attempt": ATTEMPTS_PER_ROUND - 1, "state": call.state, "generation_no": generation_no,
            "request_sequence": call.request_sequence, "request": _or_null(call.request),
            "response": _or_null(call.response), "response_model": call.response_model,
            "finish_reason": call.finish_reason, "prompt": usage.prompt, "completion": usage.completion,
            "reasoning": usage.reasoning, "cache_read": usage.cache_read, "cache_write": usage.cache_write,
            "failure_kind": call.failure_kind, "failure_detail": call.failure_detail,
            "started_at_ms": call.started_at_ms, "completed_at_ms": call.completed_at_ms, "status": call.status,
            "streamed": int(call.streamed), "delay_ms": call.delay_ms,
            "spent_prompt": spent.prompt, "spent_completion": spent.completion, "spent_reasoning": spent.reasoning,
            "spent_read": spent.cache_read, "spent_write": spent.cache_write, "spent_cost": spent.cost,
            "spent_unpriced": spent.unpriced,
        },
    )  # fmt: skip
    assert added is not None, "a call belongs to a run"


def end_runs(
    tx: Tx, turn_no: int, *, state: str, finish_reason: str, classification: str, detail: str, at_ms: int
) -> None:
    """End whatever run of the turn is still open."""
    tx.execute(_END, (state, finish_reason, classification, detail, at_ms, turn_no))


def runs(
    db: Reader, session_no: SessionNo, *, stage: str | None, state: str | None, limit: int, offset: int
) -> Iterator[RunRow]:
    """Newest first; of one stage and state only, unless these are None."""
    span = {"session_no": session_no, "stage": stage, "state": state, "limit": limit, "offset": offset}
    return map(RunRow._make, db.execute(_RUNS, span))


def run_by_id(db: Reader, session_no: SessionNo, run_id: bytes) -> RunRow | None:
    """None also for a run of another session."""
    row = db.row(_RUN_BY_ID, (session_no, run_id))
    return None if row is None else RunRow(*row)


def last_response(db: Reader, run_no: int, *, up_to_round: int | None = None) -> bytes:
    """What the audit keeps of the latest answer of a run (up to that round), as JSON; `null` if there is none."""
    until = (keys.MAX_SEQUENCE + 1) // ATTEMPTS_PER_ROUND if up_to_round is None else up_to_round + 1
    end = keys.join(run_no, 0) + until * ATTEMPTS_PER_ROUND
    row = db.row(_LAST_RESPONSE, (keys.join(run_no, 0), end))
    return b"null" if row is None else bytes(row[0])


def calibration(db: Reader | Tx, session_no: SessionNo, model: str) -> Calibration | None:
    """What the latest request of the model in this session was estimated at and what its provider counted, if known."""
    for (run_no,) in db.rows(_LATEST_RUNS, (session_no, model, _LOOKED_AT)):
        row = db.row(_LAST_COUNTED, (keys.join(run_no, 0), keys.join(run_no + 1, 0)))
        if row is not None:
            return Calibration(estimated=row[1], reported=row[0])
    return None


def rounds(db: Reader, run_no: int, *, limit: int = keys.MAX_SEQUENCE, offset: int = 0) -> Iterator[list[CallRow]]:
    """The attempts of each round, by round, then by attempt; the last one tells how the round ended."""
    first, end = keys.join(run_no, 0), keys.join(run_no + 1, 0)
    wanted = [number for (number,) in db.rows(_ROUNDS, (first, end, limit, offset))]
    if wanted:
        first, end = (keys.join(run_no, number * ATTEMPTS_PER_ROUND) for number in (wanted[0], wanted[-1] + 1))
        attempts = map(_call_row, db.execute(_CALLS, (first, end)))
        for _, round_attempts in groupby(attempts, key=lambda attempt: attempt.round):
            yield list(round_attempts)


def spent_of_turns(db: Reader, turn_nos: Sequence[int]) -> dict[int, Spent]:
    """What the runs of these turns used; a turn that asked no model is left out."""
    found = db.rows(_SPENT, (msgspec.json.encode(turn_nos).decode(),))
    return {turn_no: Spent(*sums) for turn_no, *sums in found}


def requests(db: Reader, run_no: int, *, up_to_round: int, limit: int) -> list[bytes]:
    """The saved values of the last `limit` requests of a run up to that round, oldest first."""
    end = keys.join(run_no, (up_to_round + 1) * ATTEMPTS_PER_ROUND)
    return [value for (value,) in reversed(db.rows(_REQUESTS, (keys.join(run_no, 0), end, limit)))]


def _or_null(value: Raw) -> bytes | None:
    return None if value == NOTHING else bytes(value)


def _call_row(row: tuple[Any, ...]) -> CallRow:
    *start, has_request, status, streamed, delay_ms, cost, unpriced = row[:16]
    had_content = None if streamed is None else bool(streamed)
    measured = (status, had_content, delay_ms, cost, unpriced > 0, _usage(row[16:]))
    return CallRow._make((*start, bool(has_request), *measured))


def _usage(row: tuple[int | None, ...]) -> Usage:
    prompt, completion, reasoning, cache_read, cache_write = row
    return Usage(
        prompt=prompt, completion=completion, reasoning=reasoning, cache_read=cache_read, cache_write=cache_write
    )
