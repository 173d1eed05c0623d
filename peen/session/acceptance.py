"""Acceptance of a message, and the end of one whose turn was never opened by a worker."""

from __future__ import annotations

from uuid import UUID

import msgspec

from peen.ids import SessionNo
from peen.session.ending import Ending, end_unfinished
from peen.session.state import Known, Outcome
from peen.store import feed, inbox, messages, sessions, turns
from peen.store.database import Reader, Tx
from peen.store.feed import NewEvent
from peen.wire.client import MessageSend
from peen.wire.worker import MessageRecord


def accept(
    tx: Tx,
    session_no: SessionNo,
    message: MessageSend,
    *,
    digest: bytes,
    request_id: bytes,
    turn_id: bytes,
    at_ms: int,
) -> int:
    """Freeze the message in the inbox and tell the feed, in one transaction; the feed sequence of its frame."""
    settings = msgspec.json.encode(
        {
            "model": message.model,
            "reasoningEffort": message.reasoning_effort,
            "systemPrompt": message.system_prompt,
        }
    )
    inbox_no = inbox.accept(
        tx,
        session_no,
        frame_id=UUID(message.id).bytes,
        digest=digest,
        request_id=request_id,
        turn_id=turn_id,
        content=message.message,
        settings=settings,
        at_ms=at_ms,
    )
    created = NewEvent("userMessage.created", msgspec.json.encode({"message": message.message}))
    return feed.append(tx, session_no, [created], at_ms=at_ms, inbox_no=inbox_no)


def end_accepted(tx: Tx, session_no: SessionNo, turn_id: bytes, ending: Ending, *, at_ms: int) -> int | None:
    """End the turn of an accepted message, whether or not a worker had opened it.

    A turn that was never opened is opened here, with the message as its transcript, so that every accepted message
    has a turn with exactly one terminal frame. Returns that frame's sequence, or None if the turn had ended before.
    """
    turn = turns.by_id(tx, turn_id)
    if turn is None:
        waiting = inbox.by_turn(tx, session_no, turn_id)
        session = sessions.by_no(tx, session_no)
        assert waiting is not None, "every turn begins with an accepted message"
        assert session is not None
        model = msgspec.json.decode(waiting.settings).get("model") or session.model
        turn_no = turns.open_turn(
            tx,
            turn_id=turn_id,
            session_no=session_no,
            request_id=waiting.request_id,
            workspace=waiting.directory,
            model=model,
            feed_cursor=waiting.feed_cursor,
            at_ms=at_ms,
        )
        typed = MessageRecord(role="user", content=waiting.content)
        messages.append(tx, session_no, [typed], turn_no=turn_no, at_ms=at_ms)
        inbox.settle(tx, waiting.no, state="undelivered", turn_no=turn_no)
        turn = turns.by_no(tx, turn_no)
        assert turn is not None
    return end_unfinished(tx, turn, ending, at_ms=at_ms, generation_no=None)


def known_frame(db: Reader, session_no: SessionNo, frame_id: str) -> Known | None:
    """What became of an earlier message with this frame id, if there was one."""
    row = inbox.by_frame(db, session_no, UUID(frame_id).bytes)
    if row is None:
        return None
    assert row.turn_id is not None
    turn = turns.by_id(db, row.turn_id)
    ended = None
    if turn is not None and turn.state != "running":
        ended = Outcome(turn.state, turn.failure_classification, str(UUID(bytes=row.request_id)))
    return Known(row.digest, str(UUID(bytes=row.turn_id)), ended)
