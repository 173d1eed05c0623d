"""The transactions behind a worker's calls: each is a change that may be run again from the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from peen.errors import StaleClaim
from peen.ids import SessionNo
from peen.session.ending import Ending, end_unfinished
from peen.store import audit, executions, feed, inbox, messages, sessions, snapshots, turns
from peen.store.database import Reader, Tx
from peen.store.executions import ExecutionRow
from peen.store.feed import NewEvent
from peen.store.turns import TurnRow
from peen.wire.worker import (
    MAX_HISTORY_PAGE_BYTES,
    CommitSteps,
    Committed,
    EmitEvents,
    Emitted,
    EventRecord,
    HistoryPage,
    HistoryRows,
    OpenedTurn,
    OpenTurn,
    Terminal,
)

_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one worker generation of one session, as the controller knows it, not as the worker says."""

    session_no: SessionNo
    generation_no: int


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A terminal commit: which turn, how, and the feed sequence of its terminal frame."""

    turn_id: str
    state: str
    reason: str
    feed_sequence: int


def open_turn(
    tx: Tx, writer: Writer, request: OpenTurn, *, execution_id: bytes, run_id: bytes, at_ms: int
) -> OpenedTurn:
    """Admission. The message that the turn opens with leaves the inbox in the same transaction.

    Raises: StaleClaim if that message is not waiting to open this turn (any more).
    """
    turn_id = UUID(request.turn_id).bytes
    waiting = inbox.by_turn(tx, writer.session_no, turn_id)
    if waiting is None or waiting.state != "opening":
        raise StaleClaim("the message of this turn is not waiting to open it")
    session = sessions.by_no(tx, writer.session_no)
    assert session is not None
    no, known = writer.session_no, request.known_sequence
    prompt_no = snapshots.save(tx, no, "prompt", request.prompt, at_ms=at_ms)
    tools_no = snapshots.save(tx, no, "tools", bytes(request.tools).decode(), at_ms=at_ms)
    context_no = snapshots.save(
        tx, no, "context", request.context_content, at_ms=at_ms, manifest=bytes(request.context_manifest),
        sha256=bytes.fromhex(request.context_hash),
    )  # fmt: skip
    turn_no = turns.open_turn(
        tx, turn_id=turn_id, session_no=no, request_id=waiting.request_id, workspace=waiting.directory,
        model=request.model, feed_cursor=waiting.feed_cursor, at_ms=at_ms, generation_no=writer.generation_no,
        context_no=context_no, prompt_no=prompt_no, tools_no=tools_no,
    )  # fmt: skip
    inbox.settle(tx, waiting.no, state="delivered", turn_no=turn_no)
    execution_no = executions.create_root(
        tx, execution_id=execution_id, session_no=no, turn_no=turn_no, holder=bytes.fromhex(request.holder),
        generation_no=writer.generation_no, round_limit=request.round_limit,
        tool_parallelism=request.tool_parallelism, at_ms=at_ms,
    )  # fmt: skip
    audit.open_run(
        tx, run_id=run_id, session_no=no, turn_no=turn_no, execution_no=execution_no, model=request.model,
        settings=bytes(request.request_settings), at_ms=at_ms,
    )  # fmt: skip
    history, has_more = messages.history(
        tx, no, after=known, up_to=session.message_sequence, max_bytes=MAX_HISTORY_PAGE_BYTES
    )
    last = messages.append(tx, no, request.messages, turn_no=turn_no, at_ms=at_ms)
    feed.append(tx, no, _new(request.events), at_ms=at_ms, turn_no=turn_no, generation_no=writer.generation_no)
    return OpenedTurn(
        execution_id=str(UUID(bytes=execution_id)), turn=turn_no, history_sequence=session.message_sequence,
        message_sequence=last or session.message_sequence, history=history, has_more=has_more,
    )  # fmt: skip


def history_page(db: Reader, writer: Writer, request: HistoryPage) -> HistoryRows:
    found, has_more = messages.history(
        db, writer.session_no, after=request.after_sequence, up_to=request.up_to_sequence,
        max_bytes=MAX_HISTORY_PAGE_BYTES,
    )  # fmt: skip
    return HistoryRows(history=found, has_more=has_more)


def emit(tx: Tx, writer: Writer, request: EmitEvents, *, at_ms: int) -> Emitted:
    execution = _held(tx, writer, request.execution_id, request.holder)
    _append_events(tx, writer, execution, request.events, at_ms=at_ms)
    return Emitted()


def commit_steps(
    tx: Tx, writer: Writer, request: CommitSteps, *, payload: bytes, at_ms: int
) -> tuple[Committed, TurnEnd | None]:
    """End steps, write what they produced, begin others; with a terminal, end the turn.

    `payload` is the request as it came: a completion that was saved before must be repeated with the same bytes,
    and then nothing is written again.
    """
    execution = _held(tx, writer, request.execution_id, request.holder)
    fresh = [
        executions.complete(
            tx, execution.no, completion, payload=payload, generation_no=writer.generation_no, at_ms=at_ms
        )
        for completion in request.completions
    ]
    if fresh and not all(fresh):
        return _standing(tx, writer), None
    messages.append(tx, writer.session_no, request.messages, turn_no=execution.turn_no, at_ms=at_ms)
    _append_events(tx, writer, execution, request.events, at_ms=at_ms)
    for call in request.calls:
        audit.add_call(
            tx, turn_no=execution.turn_no, execution_no=execution.no, generation_no=writer.generation_no, call=call
        )
    for claim in request.claims:
        executions.claim(tx, execution.no, claim, generation_no=writer.generation_no, at_ms=at_ms)
    for passed in request.passed:
        executions.complete(
            tx, execution.no, passed, payload=bytes(passed.output), generation_no=writer.generation_no, at_ms=at_ms
        )
    end = None if request.terminal is None else _end(tx, writer, execution, request.terminal, at_ms=at_ms)
    return _standing(tx, writer), end


def _end(tx: Tx, writer: Writer, execution: ExecutionRow, terminal: Terminal, *, at_ms: int) -> TurnEnd:
    turn = turns.by_no(tx, execution.turn_no)
    assert turn is not None
    if terminal.state == "completed":
        sequence = _complete(tx, writer, execution, turn, terminal, at_ms=at_ms)
    else:
        ending = Ending(
            state=terminal.state, reason=terminal.reason, error=terminal.error, classification=terminal.classification
        )
        ended = end_unfinished(tx, turn, ending, at_ms=at_ms, generation_no=writer.generation_no)
        if ended is None:
            raise StaleClaim("this turn has ended already")
        sequence = ended
    return TurnEnd(str(UUID(bytes=turn.id)), terminal.state, terminal.reason, sequence)


def _complete(tx: Tx, writer: Writer, execution: ExecutionRow, turn: TurnRow, terminal: Terminal, *, at_ms: int) -> int:
    if not executions.is_settled(tx, execution.no):
        raise StaleClaim("a turn cannot complete while one of its steps is running")
    if not turns.end_turn(tx, turn.no, state="completed", classification="", at_ms=at_ms):
        raise StaleClaim("this turn has ended already")
    executions.end(tx, execution.no, state="completed", output=_encode({"text": terminal.text}), at_ms=at_ms)
    audit.end_runs(
        tx, turn.no, state="completed", finish_reason=terminal.finish_reason or "", classification="", detail="",
        at_ms=at_ms,
    )  # fmt: skip
    sessions.count_completed_turn(tx, writer.session_no, at_ms=at_ms)
    data: dict[str, object] = {"model": turn.model, "text": terminal.text}
    if terminal.finish_reason:
        data["finishReason"] = terminal.finish_reason
    frame = NewEvent("turn.completed", _encode(data))
    return feed.append(tx, writer.session_no, [frame], at_ms=at_ms, turn_no=turn.no, generation_no=writer.generation_no)


def _held(tx: Tx, writer: Writer, execution_id: str, holder: str) -> ExecutionRow:
    execution = executions.held(
        tx, UUID(execution_id).bytes, holder=bytes.fromhex(holder), generation_no=writer.generation_no
    )
    if execution.session_no != writer.session_no:
        raise StaleClaim("this execution belongs to another session")
    return execution


def _append_events(
    tx: Tx, writer: Writer, execution: ExecutionRow, events: Sequence[EventRecord], *, at_ms: int
) -> None:
    feed.append(
        tx, writer.session_no, _new(events), at_ms=at_ms, turn_no=execution.turn_no,
        generation_no=writer.generation_no,
    )  # fmt: skip


def _standing(tx: Tx, writer: Writer) -> Committed:
    session = sessions.by_no(tx, writer.session_no)
    assert session is not None
    return Committed(message_sequence=session.message_sequence)


def _new(events: Sequence[EventRecord]) -> list[NewEvent]:
    return [NewEvent(record.type, bytes(record.data)) for record in events]
