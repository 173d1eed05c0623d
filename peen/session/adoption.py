"""The transactions in which a worker takes hold of a turn: a new one, or one that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from peen.errors import StaleClaim
from peen.session import compaction
from peen.session.notices import deliver
from peen.session.writer import Writer, announce_delivery, new_events
from peen.store import (
    activities,
    audit,
    compactions,
    controlevents,
    executions,
    feed,
    generations,
    images,
    inbox,
    messages,
    reasoning,
    sessions,
    snapshots,
    turns,
)
from peen.store.activities import StepRow
from peen.store.database import Reader, Tx
from peen.wire.records import NOTHING
from peen.wire.turncalls import (
    MAX_HISTORY_PAGE_BYTES,
    HistoryPage,
    HistoryRows,
    OpenedTurn,
    OpenTurn,
    RestoredExecution,
    RestoreExecution,
    SavedStep,
)

TOOL_KINDS: Final = ("read", "effect")


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
        announce_delivery(tx, waiting, at_ms=at_ms, generation_no=writer.generation_no)
    told = deliver(tx, no, turn_no=turn_no, generation_no=writer.generation_no, is_opening=True, at_ms=at_ms)
    if told is not None:
        last = messages.append(tx, no, [told], turn_no=turn_no, at_ms=at_ms)
    feed.append(tx, no, new_events(request.events), at_ms=at_ms, turn_no=turn_no, generation_no=writer.generation_no)
    return OpenedTurn(
        execution_id=str(UUID(bytes=execution_id)), turn=turn_no, history_sequence=session.message_sequence,
        message_sequence=last or session.message_sequence, opening=[] if told is None else [told], history=history,
        has_more=has_more, refused_images=images.refused(tx, no, request.model),
        reasoning_refused_up_to=reasoning.refused_up_to(tx, no, request.model), budget=writer.terms.budget(session),
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
    rows = activities.steps(tx, found.no)
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
        refused_images=images.refused(tx, writer.session_no, turn.model),
        reasoning_refused_up_to=reasoning.refused_up_to(tx, writer.session_no, turn.model),
        summary=compaction.as_stored(summary),
        summary_in_force=0 if head is None else head.sequence,
        may_summarize=summary == head and not has_failed,
        summarizer=compaction.settings_of(tx, writer.session_no, settings.get("compaction", {})),
        calibration=audit.calibration(tx, writer.session_no, turn.model),
        window=settings.get("maxContextTokens"),
        budget=writer.terms.budget(session),
    )


def history_page(db: Reader, writer: Writer, request: HistoryPage) -> HistoryRows:
    found, has_more = messages.history(
        db, writer.session_no, after=request.after_sequence, up_to=request.up_to_sequence,
        max_bytes=MAX_HISTORY_PAGE_BYTES,
    )  # fmt: skip
    return HistoryRows(history=found, has_more=has_more)


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
    controlevents.add_event(tx, execution_no, "execution.adopted", data, at_ms=at_ms)
