"""The transactions behind a worker's calls: each is a change that may be run again from the same state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from peen.errors import StaleClaim
from peen.execution.limits import reached
from peen.execution.steps import MODEL
from peen.session import compaction
from peen.session.ending import Ending, end_unfinished
from peen.session.notices import deliver
from peen.session.writer import NextTurn, TurnEnd, Writer, announce_delivery, new_events
from peen.store import (
    activities,
    audit,
    controlevents,
    executions,
    feed,
    images,
    inbox,
    leases,
    messages,
    reasoning,
    sessions,
    turns,
)
from peen.store.blobs.text import Blob
from peen.store.database import Tx
from peen.store.executions import ExecutionRow
from peen.store.feed import NewEvent
from peen.store.sessions import Taken
from peen.store.spending import NOTHING_SPENT, Spent
from peen.store.turns import TurnRow
from peen.wire.records import Claim, Completion, EventRecord, MessageRecord, ModelProgress, RefusedImage, Terminal
from peen.wire.turncalls import CommitSteps, Committed, EmitEvents, Emitted, LeasesRenewed, RenewLeases

FIRST_PREPARATION: Final = "r0.prepare"
"""It begins with the turn itself: messages that wait are delivered at the end of a round."""

_encode: Final = msgspec.json.encode


def emit(tx: Tx, writer: Writer, request: EmitEvents, *, at_ms: int) -> Emitted:
    execution = _held(tx, writer, request.execution_id, request.holder)
    if execution.state != "running":
        raise StaleClaim("a Stop came: nothing more is shown of this step")
    _append_events(tx, writer, execution, request.events, at_ms=at_ms)
    if request.progress is not None:
        _note_progress(tx, writer, execution, request.progress)
    return Emitted()


def _note_progress(tx: Tx, writer: Writer, execution: ExecutionRow, progress: ModelProgress) -> None:
    is_summary = progress.step.endswith(compaction.PHASE)
    model = executions.saved_context(tx, execution.no).get("compaction", {}).get("model", "") if is_summary else None
    kept = writer.terms.kept(execution.model if model is None else model, progress)
    activities.note_progress(tx, execution.no, progress.step, kept, generation_no=writer.generation_no)


def commit_steps(
    tx: Tx,
    writer: Writer,
    request: CommitSteps,
    *,
    payload: bytes,
    next_turn_id: bytes,
    at_ms: int,
    clock_ms: int = 0,
    run_id: bytes = b"",
) -> tuple[Committed, TurnEnd | None]:
    """End steps, write what they produced, begin others; with a terminal, end the turn.

    `clock_ms` is the clock of leases: a step that lost its own is not completed.
    `payload` is the request as it came: a completion that was saved before must be repeated with the same bytes,
    and then nothing is written again. `next_turn_id` is for messages that still wait when the turn completes, `run_id`
    for the audit of a compaction.
    """
    execution = _held(tx, writer, request.execution_id, request.holder)
    stopped = execution.state != "running"
    if stopped and not (request.completions and all(is_tool_step(done.step) for done in request.completions)):
        raise StaleClaim("a Stop came: only results of tools that had begun are still saved")
    fresh = [
        activities.complete(
            tx,
            execution.no,
            completion,
            output=writer.put(tx, completion.output),
            payload=payload,
            generation_no=writer.generation_no,
            at_ms=at_ms,
            clock_ms=clock_ms,
        )
        for completion in request.completions
    ]
    if fresh and not all(fresh):
        session = sessions.standing(tx, writer.session_no)
        return Committed(
            message_sequence=session.message, stopped=stopped, budget=writer.terms.budget(session),
            summary=compaction.recorded(tx, writer.session_no, request),
        ), None  # fmt: skip
    spent = writer.terms.spent(execution.model, request.calls)
    session = messages.append_with_events(
        tx, writer.session_no, request.messages, new_events(request.events), turn_no=execution.turn_no,
        generation_no=writer.generation_no, spent=reduce(Spent.plus, spent, NOTHING_SPENT), at_ms=at_ms,
    )  # fmt: skip
    made = request.compaction
    writer.blobs.accept(
        tx,
        writer.session_no,
        [bytes(call.request) for call in (*request.calls, *(made.calls if made is not None else ()))],
        [Blob(blob.digest, blob.data) for blob in request.blobs],
    )
    for call, used in zip(request.calls, spent, strict=True):
        audit.add_call(
            tx, turn_no=execution.turn_no, execution_no=execution.no, generation_no=writer.generation_no, call=call,
            spent=used,
        )  # fmt: skip
    for refused in request.refused_images:
        _note_refusal(tx, writer, execution, refused, session.message, at_ms=at_ms)
    if request.reasoning_refused_up_to:
        reasoning.refuse(tx, writer.session_no, execution.model, up_to_sequence=request.reasoning_refused_up_to)
    if stopped:
        return Committed(message_sequence=session.message, stopped=True), None
    summary = None
    if made is not None:
        step, turn = compaction.step_of(request), _turn_of(tx, execution)
        summary, session = compaction.record(
            tx, execution, turn, made, step=step, generation_no=writer.generation_no, run_id=run_id,
            spent=writer.terms.spent(made.model, made.calls), at_ms=at_ms,
        )  # fmt: skip
    committed, end = _follow(
        tx, writer, execution, request, session, next_turn_id=next_turn_id, at_ms=at_ms, clock_ms=clock_ms
    )
    return (committed if summary is None else msgspec.structs.replace(committed, summary=summary)), end


def _note_refusal(
    tx: Tx, writer: Writer, execution: ExecutionRow, refused: RefusedImage, sequence: int, *, at_ms: int
) -> None:
    images.refuse(
        tx, writer.session_no, refused, model=execution.model, up_to_sequence=sequence, turn_no=execution.turn_no,
        at_ms=at_ms,
    )  # fmt: skip
    data: dict[str, object] = {"sha256": refused.sha256, "reason": refused.reason}
    controlevents.add_event(tx, execution.no, "execution.imageRefused", data, at_ms=at_ms)


def renew(tx: Tx, writer: Writer, request: RenewLeases, *, clock_ms: int) -> LeasesRenewed:
    """Whoever holds an execution says that it is at work. Raises: StaleClaim, also if that comes too late."""
    execution = _held(tx, writer, request.execution_id, request.holder)
    leases.renew(tx, execution.no, generation_no=writer.generation_no, clock_ms=clock_ms)
    return LeasesRenewed()


def is_tool_step(step: str) -> bool:
    """Whether `step` is a phase of a tool call."""
    return ".t" in step


def _follow(
    tx: Tx,
    writer: Writer,
    execution: ExecutionRow,
    request: CommitSteps,
    session: Taken,
    *,
    next_turn_id: bytes,
    at_ms: int,
    clock_ms: int,
) -> tuple[Committed, TurnEnd | None]:
    """What begins at once: steps, the delivery of messages that wait, or the end of the turn.

    `session` is how it stands so far. Once its budget is used up, no model step begins, and a turn that has completed
    does not go on: the messages that wait open the next one.
    """
    claims, passed, terminal = request.claims, request.passed, request.terminal
    sequence, budget = session.message, writer.terms.budget(session)
    is_used_up = reached(budget) is not None
    goes_on = request.continuation is not None and not is_used_up and _messages_wait(tx, writer, execution)
    if goes_on:
        assert request.continuation is not None
        claims, passed, terminal = request.continuation.claims, request.continuation.passed, None
    if is_used_up:
        claims = [claim for claim in claims if claim.kind != MODEL]
    _begin(tx, writer, execution, claims, passed, at_ms=at_ms, clock_ms=clock_ms)
    if request.opening:
        images.check_stored(tx, writer.session_no, [ref for message in request.opening for ref in message.images])
        sequence = messages.append(tx, writer.session_no, request.opening, turn_no=execution.turn_no, at_ms=at_ms)
    begins_round = any(claim.kind == "prepare" and claim.step != FIRST_PREPARATION for claim in claims)
    delivered: list[MessageRecord] = []
    if begins_round and inbox.anything_waits(tx, writer.session_no, execution.turn_no):
        delivered, sequence = _deliver(tx, writer, _turn_of(tx, execution), at_ms=at_ms)
    end = None
    if terminal is not None:
        turn = _turn_of(tx, execution)
        end = _end(tx, writer, execution, turn, terminal, next_turn_id=next_turn_id, at_ms=at_ms)
        sequence = sessions.message_sequence(tx, writer.session_no)
    return Committed(message_sequence=sequence, delivered=delivered, continued=goes_on, budget=budget), end


def _begin(
    tx: Tx,
    writer: Writer,
    execution: ExecutionRow,
    claims: Sequence[Claim],
    passed: Sequence[Completion],
    *,
    at_ms: int,
    clock_ms: int,
) -> None:
    """Save the inputs of steps that begin; those that are passed over have ended with that."""
    over = {completion.step: completion for completion in passed}
    for claim in claims:
        completion = over.pop(claim.step, None)
        if completion is None:
            activities.claim(
                tx, execution.no, claim, given=writer.put(tx, claim.given), generation_no=writer.generation_no,
                at_ms=at_ms, clock_ms=clock_ms,
            )  # fmt: skip
        else:
            activities.add_passed(tx, execution.no, claim, completion, generation_no=writer.generation_no, at_ms=at_ms)
    if over:
        raise StaleClaim(f"{', '.join(over)} cannot be passed over without being begun in the same commit")


def _turn_of(tx: Tx, execution: ExecutionRow) -> TurnRow:
    turn = turns.by_no(tx, execution.turn_no)
    assert turn is not None
    return turn


def _messages_wait(tx: Tx, writer: Writer, execution: ExecutionRow) -> bool:
    return inbox.count_queued(tx, writer.session_no, _turn_of(tx, execution).id) > 0


def _deliver(tx: Tx, writer: Writer, turn: TurnRow, *, at_ms: int) -> tuple[list[MessageRecord], int]:
    """What waits for this turn reaches the model now: notices, then messages in the order of their acceptance.

    With the last message sequence of the session.
    """
    told = deliver(
        tx, writer.session_no, turn_no=turn.no, generation_no=writer.generation_no, is_opening=False, at_ms=at_ms
    )
    waiting = inbox.queued(tx, writer.session_no, turn.id)
    delivered = [] if told is None else [told]
    delivered += [
        MessageRecord(role="user", content=row.content, images=images.decode_refs(row.images)) for row in waiting
    ]
    last = messages.append(tx, writer.session_no, delivered, turn_no=turn.no, at_ms=at_ms)
    for row in waiting:
        inbox.settle(tx, row.no, state="delivered", turn_no=turn.no)
        announce_delivery(tx, row, at_ms=at_ms, generation_no=writer.generation_no)
    return delivered, last


def _end(
    tx: Tx,
    writer: Writer,
    execution: ExecutionRow,
    turn: TurnRow,
    terminal: Terminal,
    *,
    next_turn_id: bytes,
    at_ms: int,
) -> TurnEnd:
    following = None
    if terminal.state == "completed":
        sequence = _complete(tx, writer, execution, turn, terminal, at_ms=at_ms)
        first = inbox.forward(tx, writer.session_no, turn.id, next_turn_id=next_turn_id)
        following = None if first is None else NextTurn(str(UUID(bytes=next_turn_id)), first)
    else:
        ending = Ending(
            state=terminal.state, reason=terminal.reason, error=terminal.error, classification=terminal.classification
        )
        ended = end_unfinished(tx, turn, ending, at_ms=at_ms, generation_no=writer.generation_no)
        if ended is None:
            raise StaleClaim("this turn has ended already")
        sequence = ended
    return TurnEnd(str(UUID(bytes=turn.id)), terminal.state, terminal.reason, sequence, following)


def _complete(tx: Tx, writer: Writer, execution: ExecutionRow, turn: TurnRow, terminal: Terminal, *, at_ms: int) -> int:
    if not activities.is_settled(tx, execution.no):
        raise StaleClaim("a turn cannot complete while one of its steps is running")
    if not turns.end_turn(tx, turn.no, state="completed", classification="", at_ms=at_ms):
        raise StaleClaim("this turn has ended already")
    output = writer.put(tx, Raw(_encode({"text": terminal.text})))
    executions.end(tx, execution.no, state="completed", output=output, at_ms=at_ms)
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
        tx, writer.session_no, new_events(events), at_ms=at_ms, turn_no=execution.turn_no,
        generation_no=writer.generation_no,
    )  # fmt: skip
