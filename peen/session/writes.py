"""The transactions behind a worker's calls: each is a change that may be run again from the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from peen.errors import StaleClaim
from peen.execution.limits import reached
from peen.execution.steps import MODEL
from peen.ids import SessionNo
from peen.session import compaction
from peen.session.ending import Ending, end_unfinished
from peen.session.notices import deliver
from peen.session.spending import Terms
from peen.store import (
    audit,
    compactions,
    executions,
    feed,
    generations,
    images,
    inbox,
    leases,
    messages,
    sessions,
    snapshots,
    turns,
)
from peen.store.blobs.rows import Blobs
from peen.store.blobs.text import Blob
from peen.store.database import Reader, Tx
from peen.store.executions import ExecutionRow, StepRow
from peen.store.feed import NewEvent
from peen.store.inbox import InboxRow
from peen.store.sessions import Taken
from peen.store.spending import NOTHING_SPENT, Spent
from peen.store.turns import TurnRow
from peen.wire.worker import (
    MAX_HISTORY_PAGE_BYTES,
    NOTHING,
    Claim,
    CommitSteps,
    Committed,
    Completion,
    EmitEvents,
    Emitted,
    EventRecord,
    HistoryPage,
    HistoryRows,
    LeasesRenewed,
    MessageRecord,
    ModelProgress,
    OpenedTurn,
    OpenTurn,
    RefusedImage,
    RenewLeases,
    RestoredExecution,
    RestoreExecution,
    SavedStep,
    Terminal,
)

FIRST_PREPARATION: Final = "r0.prepare"
"""It begins with the turn itself: messages that wait are delivered at the end of a round."""

TOOL_KINDS: Final = ("read", "effect")

_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one worker generation of one session, as the controller knows it, not as the worker says."""

    session_no: SessionNo
    generation_no: int
    blobs: Blobs
    terms: Terms = field(default_factory=Terms)

    def put(self, tx: Tx, value: Raw) -> bytes:
        """What to store for this value: its long parts go into blobs of the session."""
        return self.blobs.put(tx, self.session_no, bytes(value))


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A turn that begins because messages still waited when the last one completed: the first of them opens it."""

    turn_id: str
    message: InboxRow


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A terminal commit: which turn, how, and the feed sequence of its terminal frame."""

    turn_id: str
    state: str
    reason: str
    feed_sequence: int
    following: NextTurn | None = None


def open_turn(
    tx: Tx, writer: Writer, request: OpenTurn, *, execution_id: bytes, run_id: bytes, at_ms: int, clock_ms: int = 0
) -> OpenedTurn:
    """Admission. The message that the turn opens with leaves the inbox in the same transaction.

    Raises: StaleClaim if that message is not waiting to open this turn (any more), or the generation has ended.
    """
    generation_id = generations.check_live(tx, writer.generation_no)
    turn_id = UUID(request.turn_id).bytes
    waiting = inbox.by_turn(tx, writer.session_no, turn_id)
    if waiting is None or waiting.state not in ("opening", "deferred"):
        raise StaleClaim("the message of this turn is not waiting to open it")
    if waiting.is_stopped:
        raise StaleClaim("a Stop came before this turn was opened")
    session = sessions.by_no(tx, writer.session_no)
    assert session is not None
    no, known = writer.session_no, request.known_sequence
    head = compactions.head(tx, no)
    is_new = head is not None and head.sequence != request.known_summary
    if request.summary_prompt is not None:
        snapshots.save(tx, no, "prompt", request.summary_prompt, at_ms=at_ms)
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
        tool_parallelism=request.tool_parallelism, at_ms=at_ms, clock_ms=clock_ms,
    )  # fmt: skip
    _note_adoption(tx, execution_no, generation_id, request.holder, at_ms=at_ms)
    executions.keep_context(tx, execution_no, bytes(request.request_settings))
    audit.open_run(
        tx, run_id=run_id, session_no=no, turn_no=turn_no, execution_no=execution_no, model=request.model,
        settings=bytes(request.request_settings), at_ms=at_ms,
    )  # fmt: skip
    history, has_more = messages.history(
        tx,
        no,
        after=max(known, 0 if head is None else head.to_sequence),
        up_to=session.message_sequence,
        max_bytes=MAX_HISTORY_PAGE_BYTES,
    )
    images.check_stored(tx, no, [ref for message in request.messages for ref in message.images])
    last = messages.append(tx, no, request.messages, turn_no=turn_no, at_ms=at_ms)
    if waiting.state == "deferred":
        _announce_delivery(tx, waiting, at_ms=at_ms, generation_no=writer.generation_no)
    told = deliver(tx, no, turn_no=turn_no, generation_no=writer.generation_no, is_opening=True, at_ms=at_ms)
    if told is not None:
        last = messages.append(tx, no, [told], turn_no=turn_no, at_ms=at_ms)
    feed.append(tx, no, _new(request.events), at_ms=at_ms, turn_no=turn_no, generation_no=writer.generation_no)
    return OpenedTurn(
        execution_id=str(UUID(bytes=execution_id)), turn=turn_no, history_sequence=session.message_sequence,
        message_sequence=last or session.message_sequence, opening=[] if told is None else [told], history=history,
        has_more=has_more, refused_images=images.refused(tx, no), budget=writer.terms.budget(session),
        summary=compaction.as_stored(head) if is_new else None,
        calibration=audit.calibration(tx, no, request.model) if known == 0 else None,
    )  # fmt: skip


def restore(tx: Tx, writer: Writer, request: RestoreExecution, *, at_ms: int, clock_ms: int = 0) -> RestoredExecution:
    """A worker takes hold of a resumed execution and reads how far it came. Raises: StaleClaim."""
    generation_id = generations.check_live(tx, writer.generation_no)
    found = executions.details(tx, UUID(request.execution_id).bytes)
    if found is None or found.session_no != writer.session_no:
        raise StaleClaim("no such execution in this session")
    executions.adopt(
        tx, found.no, holder=bytes.fromhex(request.holder), generation_no=writer.generation_no, clock_ms=clock_ms
    )
    _note_adoption(tx, found.no, generation_id, request.holder, at_ms=at_ms)
    settings = msgspec.json.decode(found.context or b"{}")
    turn = turns.by_no(tx, found.turn_no)
    prompt, _ = snapshots.of_turn(tx, found.turn_no)
    assert turn is not None
    assert prompt is not None, "every opened turn has a prompt"
    rows = executions.steps(tx, found.no)
    seen, steps = _saved_steps(tx, writer, rows)
    before = messages.first_of_turn(tx, found.turn_no) - 1
    summary, head = compactions.up_to(tx, writer.session_no, before), compactions.head(tx, writer.session_no)
    has_failed = any(row.kind == "compact" and row.state == "failed" for row in rows)
    session = sessions.standing(tx, writer.session_no)
    return RestoredExecution(
        turn=found.turn_no,
        model=turn.model,
        reasoning_effort=settings.get("reasoningEffort"),
        prompt=prompt,
        round_limit=found.round_limit,
        tool_parallelism=found.tool_parallelism,
        history_sequence=before,
        message_sequence=session.message,
        next_block=feed.next_block(tx, found.turn_no),
        seen=seen,
        steps=steps,
        refused_images=images.refused(tx, writer.session_no),
        summary=compaction.as_stored(summary),
        summary_in_force=0 if head is None else head.sequence,
        may_summarize=summary == head and not has_failed,
        summarizer=compaction.settings_of(tx, writer.session_no, settings.get("compaction", {})),
        calibration=audit.calibration(tx, writer.session_no, turn.model),
        window=settings.get("maxContextTokens"),
        budget=writer.terms.budget(session),
    )


def _saved_steps(tx: Tx, writer: Writer, rows: Sequence[StepRow]) -> tuple[list[Raw], list[SavedStep]]:
    """What a worker needs to go on: what earlier calls have seen, and the steps from the last answer on.

    The results of earlier rounds stand in the transcript. All of them together may be more than a frame holds.
    """
    answered = [at for at, row in enumerate(rows) if row.kind == "model" and row.state == "completed"]
    first = answered[-1] if answered else 0
    seen = [
        _decode_seen(bytes(_output(tx, writer, row))).seen
        for row in rows[:first]
        if row.kind in TOOL_KINDS and row.state == "completed"
    ]
    return [each for each in seen if each != NOTHING], [
        SavedStep(step=row.step, state=row.state, output=_output(tx, writer, row), given=_given(tx, writer, row))
        for row in rows[first:]
    ]


def _given(tx: Tx, writer: Writer, row: StepRow) -> Raw:
    return Raw(writer.blobs.take(tx, writer.session_no, row.given)) if row.kind == "compact" else NOTHING


def _output(tx: Tx, writer: Writer, row: StepRow) -> Raw:
    return NOTHING if row.output is None else Raw(writer.blobs.take(tx, writer.session_no, row.output))


class _Seen(msgspec.Struct):
    seen: Raw = NOTHING


_decode_seen: Final = msgspec.json.Decoder(_Seen).decode


def _note_adoption(tx: Tx, execution_no: int, generation_id: bytes, holder: str, *, at_ms: int) -> None:
    """Which worker took hold of an execution, and when: the row itself knows the last one only."""
    data: dict[str, object] = {"workerGenerationId": str(UUID(bytes=generation_id)), "holder": holder}
    executions.add_event(tx, execution_no, "execution.adopted", data, at_ms=at_ms)


def history_page(db: Reader, writer: Writer, request: HistoryPage) -> HistoryRows:
    found, has_more = messages.history(
        db, writer.session_no, after=request.after_sequence, up_to=request.up_to_sequence,
        max_bytes=MAX_HISTORY_PAGE_BYTES,
    )  # fmt: skip
    return HistoryRows(history=found, has_more=has_more)


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
    executions.note_progress(tx, execution.no, progress.step, kept, generation_no=writer.generation_no)


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
        executions.complete(
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
        tx, writer.session_no, request.messages, _new(request.events), turn_no=execution.turn_no,
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
    images.refuse(tx, writer.session_no, refused, up_to_sequence=sequence, turn_no=execution.turn_no, at_ms=at_ms)
    data: dict[str, object] = {"sha256": refused.sha256, "reason": refused.reason}
    executions.add_event(tx, execution.no, "execution.imageRefused", data, at_ms=at_ms)


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
            executions.claim(
                tx, execution.no, claim, given=writer.put(tx, claim.given), generation_no=writer.generation_no,
                at_ms=at_ms, clock_ms=clock_ms,
            )  # fmt: skip
        else:
            executions.add_passed(tx, execution.no, claim, completion, generation_no=writer.generation_no, at_ms=at_ms)
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
        _announce_delivery(tx, row, at_ms=at_ms, generation_no=writer.generation_no)
    return delivered, last


def _announce_delivery(tx: Tx, row: InboxRow, *, at_ms: int, generation_no: int) -> None:
    frame = NewEvent("userMessage.delivered", _encode({"message": row.content}))
    feed.append(tx, row.session_no, [frame], at_ms=at_ms, inbox_no=row.no, generation_no=generation_no)


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
    if not executions.is_settled(tx, execution.no):
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
        tx, writer.session_no, _new(events), at_ms=at_ms, turn_no=execution.turn_no,
        generation_no=writer.generation_no,
    )  # fmt: skip


def _new(events: Sequence[EventRecord]) -> list[NewEvent]:
    return [NewEvent(record.type, bytes(record.data)) for record in events]
