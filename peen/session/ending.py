"""How a turn ends without completing: what is recorded, and what the next turn's model is told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal
from uuid import UUID

import msgspec

from peen.execution.steps import MODEL
from peen.ids import hashed_uuid4
from peen.session.notices import record
from peen.store import activities, audit, executions, feed, inbox, messages, sessions, turns
from peen.store.activities import OpenModelStep
from peen.store.database import Tx
from peen.store.executions import ExecutionRow
from peen.store.feed import NewEvent
from peen.store.spending import NOTHING_SPENT, Spent, spent
from peen.store.turns import TurnRow
from peen.wire.records import MessageRecord, ModelCallRecord, PricedCall, ToolCallRecord

COMPACT: Final = "compact"
"""The kind of a step that asks a model for a summary."""
MAX_ERROR_BYTES: Final = 2048
MAX_LISTED_CALLS: Final = 20
MAX_ARGUMENT_BYTES: Final = 300
MAX_UNDELIVERED: Final = 10
MAX_MESSAGE_BYTES: Final = 1000

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

_SUMMARIES: Final = {
    "failed": "A turn failed before it finished.",
    "interrupted": "A turn was interrupted before it finished.",
    "cancelled": "A turn was stopped before it finished.",
}


class EndedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One call of an ended turn. `outcome` is `succeeded`, `failed` or `noResult`: never returned, effect unknown."""

    name: str
    arguments: str
    outcome: str


class EndedTurn(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Data of a `turn.failed` or `turn.cancelled` notice. Texts are cut; the latest 20 calls are listed."""

    turn_id: str
    state: str
    reason: str
    error: str | None = None
    message: str
    undelivered_messages: list[str]
    tool_calls: list[EndedCall]
    tool_calls_omitted: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a turn that did not complete.

    `interrupted` is for a turn whose worker or controller stopped before it ended: its execution stays paused, so
    that somebody can inspect it. `reason` is the documented word of `turn.failed`; `error` is for people.
    """

    state: Literal["failed", "cancelled", "interrupted"]
    reason: str
    error: str
    classification: str


STOPPED: Final = Ending(state="cancelled", reason="cancelled", error="", classification="cancelled")


def interrupted(reason: Literal["interrupted", "shutdown"], error: str) -> Ending:
    return Ending(state="interrupted", reason=reason, error=error, classification=reason)


def end_unfinished(tx: Tx, turn: TurnRow, ending: Ending, *, at_ms: int, generation_no: int | None) -> int | None:
    """End a running turn in the open transaction; its terminal feed sequence, or None if it had ended before.

    Open content blocks are closed, replies are marked incomplete, the transcript gets a `system` message, the
    execution ends or is paused under a new control revision (so whoever held it can write nothing any more), and
    the terminal frame comes last.
    """
    if turn.cancel_requested:
        ending = STOPPED  # a Stop was stored first, whatever has ended the turn since
    if not turns.end_turn(tx, turn.no, state=ending.state, classification=ending.classification, at_ms=at_ms):
        return None
    _record_cut_off(tx, turn, ending, at_ms=at_ms)
    calls = messages.calls_of(tx, turn.no)
    waiting = inbox.queued(tx, turn.session_no, turn.id)
    messages.mark_incomplete(tx, turn.no)
    text = system_text(ending, calls, [row.content for row in waiting])
    told = MessageRecord(role="system", content=text, injected=True)
    messages.append(tx, turn.session_no, [told], turn_no=turn.no, at_ms=at_ms)
    # Work that was stopped or interrupted may go on, and they with it; or somebody lets them go on by themselves.
    if ending.state == "failed" or _is_abandoned(tx, turn.no):
        for row in waiting:
            inbox.settle(tx, row.no, state="undelivered", turn_no=turn.no)
    _end_execution(tx, turn.no, ending, at_ms=at_ms)
    audit.end_runs(
        tx, turn.no, state=ending.state, finish_reason="", classification=ending.classification,
        detail=ending.error, at_ms=at_ms,
    )  # fmt: skip
    _report(tx, turn, ending, calls, [row.content for row in waiting], at_ms=at_ms)
    closings = [
        NewEvent("content_block_stop", msgspec.json.encode({"type": "content_block_stop", "index": index}))
        for index in feed.open_blocks(tx, turn.no)
    ]
    end = [*closings, terminal_event(ending)]
    return feed.append(tx, turn.session_no, end, at_ms=at_ms, turn_no=turn.no, generation_no=generation_no)


def _report(
    tx: Tx,
    turn: TurnRow,
    ending: Ending,
    calls: Sequence[tuple[ToolCallRecord, str]],
    undelivered: Sequence[str],
    *,
    at_ms: int,
) -> None:
    """The notice of this end, for clients, handlers and child agents. The model reads the `system` message instead."""
    data = EndedTurn(
        turn_id=str(UUID(bytes=turn.id)),
        state=ending.state,
        reason=ending.reason,
        error=None if ending.state == "cancelled" else cut(ending.error, MAX_ERROR_BYTES),
        message=cut(messages.opening_text(tx, turn.no), MAX_MESSAGE_BYTES),
        undelivered_messages=[cut(text, MAX_MESSAGE_BYTES) for text in undelivered[:MAX_UNDELIVERED]],
        tool_calls=[
            EndedCall(
                name=call.name, arguments=cut(bytes(call.arguments).decode(), MAX_ARGUMENT_BYTES), outcome=outcome
            )
            for call, outcome in calls[-MAX_LISTED_CALLS:]
        ],
        tool_calls_omitted=max(0, len(calls) - MAX_LISTED_CALLS),
    )
    record(
        tx,
        turn.session_no,
        notice_type="turn.cancelled" if ending.state == "cancelled" else "turn.failed",
        source="session.turn",
        summary=_SUMMARIES[ending.state],
        data=msgspec.json.encode(data),
        delivery="queue",
        at_ms=at_ms,
        is_pending=False,
    )


def _record_cut_off(tx: Tx, turn: TurnRow, ending: Ending, *, at_ms: int) -> None:
    """Audit of what was asked of a provider in steps that have not ended: only what they have told of it.

    A step begins with its first attempt; of every other one it tells before it is made.
    """
    execution = executions.root_of(tx, turn.no)
    if execution is None:
        return
    steps = activities.open_model_steps(tx, execution.no)
    total = NOTHING_SPENT
    for step in steps:
        if step.kind == MODEL and step.progress is None and any(other.kind == COMPACT for other in steps):
            continue  # it begins with the request, which the summary comes before
        attempts = _attempts(step, ending, sequence=sessions.message_sequence(tx, turn.session_no), at_ms=at_ms)
        used = [spent(priced.call, cost=priced.cost) for priced in attempts]
        total = reduce(Spent.plus, used, total)
        run_no = _cut_off_summary(tx, execution, step, ending, at_ms=at_ms) if step.kind == COMPACT else None
        for priced, one in zip(attempts, used, strict=True):
            if run_no is not None:
                audit.add_call_to(tx, run_no, generation_no=step.generation_no, call=priced.call, spent=one)
            else:
                audit.add_call(
                    tx, turn_no=turn.no, execution_no=execution.no, generation_no=step.generation_no, call=priced.call,
                    spent=one,
                )  # fmt: skip
    if total != NOTHING_SPENT:
        sessions.take_sequences(tx, turn.session_no, spent=total, at_ms=at_ms)


def _attempts(step: OpenModelStep, ending: Ending, *, sequence: int, at_ms: int) -> list[PricedCall]:
    """The attempts of a step that were made, the last one as it was cut off."""
    if step.progress is not None:
        failed, under_way = step.progress.failed, step.progress.under_way
    else:
        turn_round = 0 if step.kind == COMPACT else int(step.step.partition(".")[0][1:])
        first = ModelCallRecord(
            round=turn_round, state="cancelled", request_sequence=sequence,
            started_at_ms=min(step.started_at_ms, at_ms), completed_at_ms=at_ms,
        )  # fmt: skip
        failed, under_way = [], PricedCall(call=first)
    if under_way is None:
        return failed
    kind, detail = _cut_off_by(ending)
    call = msgspec.structs.replace(
        under_way.call, failure_kind=kind, failure_detail=detail,
        completed_at_ms=max(at_ms, under_way.call.started_at_ms),
    )  # fmt: skip
    return [*failed, msgspec.structs.replace(under_way, call=call)]


def _cut_off_by(ending: Ending) -> tuple[str, str]:
    """Reason and error of an attempt whose answer was still coming when its turn ended."""
    if ending.state == "interrupted":
        return "interrupted", f"its answer was cut off: {ending.error}"
    if ending.state == "failed":
        return "cancelled", f"its answer was cut off when the turn failed ({ending.reason}): {ending.error}"
    return "cancelled", "its answer was cut off by a Stop"


def _cut_off_summary(tx: Tx, execution: ExecutionRow, step: OpenModelStep, ending: Ending, *, at_ms: int) -> int:
    """Number of the model run of a summary that was never finished."""
    settings = executions.saved_context(tx, execution.no).get("compaction", {})
    attempt = activities.attempt_of(tx, execution.no, step.step)
    return audit.add_ended_run(
        tx,
        run_id=hashed_uuid4(execution.id, step.step.encode(), b"%d" % attempt).bytes,
        session_no=execution.session_no,
        turn_no=execution.turn_no,
        execution_no=execution.no,
        stage="compaction",
        model=settings.get("model", ""),
        settings=msgspec.json.encode(settings),
        state=ending.state,
        finish_reason="",
        classification=ending.classification,
        detail=ending.error,
        started_at_ms=step.started_at_ms,
        completed_at_ms=at_ms,
    )


def _is_abandoned(tx: Tx, turn_no: int) -> bool:
    """Whether somebody gave the execution up between the fence of a Stop and the end of its turn."""
    execution = executions.root_of(tx, turn_no)
    return execution is not None and execution.state == "cancelled"


def _end_execution(tx: Tx, turn_no: int, ending: Ending, *, at_ms: int) -> None:
    execution = executions.root_of(tx, turn_no)
    if execution is None:
        return
    if execution.state == "paused":  # by a Stop, whose second half this is, or comes instead of
        executions.release(tx, execution.no, at_ms=at_ms)
    elif ending.state == "failed":
        activities.settle(tx, execution.no, at_ms=at_ms)
        output = msgspec.json.encode({"state": ending.state, "reason": ending.reason, "error": ending.error})
        executions.end(tx, execution.no, state="failed", output=output, at_ms=at_ms)
    else:
        reason = executions.STOP if ending.state == "cancelled" else ending.reason
        executions.pause(tx, execution.no, reason=reason, at_ms=at_ms)


def terminal_event(ending: Ending) -> NewEvent:
    """`turn.cancelled` or `turn.failed`."""
    if ending.state == "cancelled":
        return NewEvent("turn.cancelled", msgspec.json.encode({"reason": ending.reason}))
    data = {"reason": ending.reason, "error": cut(ending.error, MAX_ERROR_BYTES)}
    return NewEvent("turn.failed", msgspec.json.encode(data))


def system_text(ending: Ending, calls: Sequence[tuple[ToolCallRecord, str]], undelivered: Sequence[str] = ()) -> str:
    """What later turns read about this end: how, why, what never returned or arrived, what to be careful about."""
    how = {
        "failed": "The previous turn failed before it finished.",
        "interrupted": "The previous turn was interrupted before it finished.",
        "cancelled": "The user stopped the previous turn before it finished.",
    }[ending.state]
    parts = [how]
    if ending.error and ending.state != "cancelled":
        parts.append(f"Error: {cut(ending.error, MAX_ERROR_BYTES)}")
    lost = [call for call, outcome in calls if outcome == "noResult"]
    if lost:
        shown = lost[-MAX_LISTED_CALLS:]
        lines = [f"- {call.name} {cut(bytes(call.arguments).decode(), MAX_ARGUMENT_BYTES)}" for call in shown]
        if len(lost) > len(shown):
            lines.insert(0, f"- {len(lost) - len(shown)} earlier calls")
        parts.append("These tool calls never returned a result, and their effect is unknown:\n" + "\n".join(lines))
    if undelivered:
        shown_texts = [f"- {cut(text, MAX_MESSAGE_BYTES)}" for text in undelivered[:MAX_UNDELIVERED]]
        if len(undelivered) > MAX_UNDELIVERED:
            shown_texts.append(f"- and {len(undelivered) - MAX_UNDELIVERED} more")
        parts.append("These messages of the user never reached you:\n" + "\n".join(shown_texts))
    parts.append("Check the state of the workspace before you repeat any of that turn's work.")
    if ending.state == "cancelled":
        parts.append("Do not continue that work unless a later message asks for it.")
    return "\n".join(parts)


def one_line(text: str) -> str:
    """`text` with one space for each run of line ends and control characters."""
    return _CONTROLS.sub(" ", text).strip()


def cut(text: str, max_bytes: int) -> str:
    """`text` shortened to `max_bytes` of UTF-8 without splitting a character."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    return encoded[: max_bytes - 3].decode(errors="ignore") + "…"
