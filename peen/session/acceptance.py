"""Acceptance of a message, and the end of one whose turn was never opened by a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import msgspec

from peen.errors import QueueFull
from peen.ids import SessionNo
from peen.session.ending import Ending, end_unfinished
from peen.session.state import Known, Outcome
from peen.store import admissions, controlevents, executions, feed, inbox, messages, sessions, turns
from peen.store.blobs.rows import Blobs
from peen.store.blobs.text import Blob
from peen.store.database import Reader, Tx
from peen.store.feed import NewEvent
from peen.store.images import decode_refs, encode_refs
from peen.wire.client import Effort, MessageSend
from peen.wire.records import ImageRef, MessageRecord
from peen.wire.worker import SystemPrompt


class StoredSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of an accepted message, frozen with it."""

    model: str | None = None
    reasoning_effort: Effort | None = None
    system_prompt: SystemPrompt | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A message on its way into the inbox: what was allocated for it before its transaction."""

    message: MessageSend
    digest: bytes
    request_id: bytes
    turn_id: bytes
    at_ms: int
    blobs: Blobs

    @property
    def images(self) -> list[ImageRef]:
        return [image.ref for image in self.message.images]

    @property
    def _created(self) -> NewEvent:
        data: dict[str, object] = {"message": self.message.message}
        if self.message.images:
            data["images"] = [
                {"mediaType": image.media_type, "sizeBytes": len(image.data)} for image in self.message.images
            ]
        return NewEvent("userMessage.created", msgspec.json.encode(data))

    def _add(self, tx: Tx, session_no: SessionNo, state: Literal["opening", "queued"]) -> int:
        settings = StoredSettings(
            model=self.message.model,
            reasoning_effort=self.message.reasoning_effort,
            system_prompt=self.message.system_prompt,
        )
        pictures = [Blob(bytes.fromhex(image.sha256), image.data) for image in self.message.images]
        self.blobs.save(tx, session_no, pictures)
        return inbox.add(
            tx,
            session_no,
            state=state,
            frame_id=UUID(self.message.id).bytes,
            digest=self.digest,
            request_id=self.request_id,
            turn_id=self.turn_id,
            content=self.message.message,
            settings=msgspec.json.encode(settings),
            images=encode_refs(self.images),
            at_ms=self.at_ms,
        )


class TurnOver(Exception):
    """The turn that a message was to wait for has ended meanwhile: the message opens one of its own."""


def accept(tx: Tx, session_no: SessionNo, acceptance: Acceptance) -> int:
    """Freeze a message that opens a turn, and tell the feed; the sequence of its frame."""
    inbox_no = acceptance._add(tx, session_no, "opening")
    return feed.append(tx, session_no, [acceptance._created], at_ms=acceptance.at_ms, inbox_no=inbox_no)


def accept_queued(tx: Tx, session_no: SessionNo, acceptance: Acceptance, *, capacity: int) -> int:
    """Freeze a message that waits for a running turn, and tell the feed; the sequence of its last frame.

    Raises: TurnOver if that turn has ended; QueueFull if `capacity` messages wait for it already.
    """
    turn = turns.by_id(tx, acceptance.turn_id)
    if turn is not None and turn.state != "running":
        raise TurnOver
    if inbox.count_queued(tx, session_no, acceptance.turn_id) >= capacity:
        raise QueueFull(
            f"{capacity} messages wait for the running turn (PEEN_MAX_QUEUED_USER_MESSAGES); send this one again later"
        )
    inbox_no = acceptance._add(tx, session_no, "queued")
    data = msgspec.json.encode({"message": acceptance.message.message})
    frames = [acceptance._created, NewEvent("userMessage.queued", data)]
    return feed.append(tx, session_no, frames, at_ms=acceptance.at_ms, inbox_no=inbox_no)


def fence(tx: Tx, session_no: SessionNo, *, at_ms: int) -> bool:
    """First transaction of a Stop: a new stop revision, and every execution of the session paused.

    Nothing begins from here on, and what was admitted to go on later is forgotten. True if a turn was running and was
    told to end.
    """
    sessions.advance_stop(tx, session_no)
    for execution_no in admissions.drop_all(tx, session_no):
        controlevents.add_event(tx, execution_no, "execution.continuationDropped", {"reason": "stop"}, at_ms=at_ms)
    for execution in executions.running(tx, session_no):
        executions.fence(tx, execution.no, reason=executions.STOP, at_ms=at_ms)
    inbox.stop(tx, session_no)
    running = turns.running(tx, session_no)
    for turn in running:
        turns.request_cancel(tx, turn.no)
    return bool(running)


def end_accepted(tx: Tx, session_no: SessionNo, turn_id: bytes, ending: Ending, *, at_ms: int) -> int | None:
    """End the turn of an accepted message, whether or not a worker had opened it.

    A turn that was never opened is opened here, with the message as its transcript, so that every accepted message
    has a turn with exactly one terminal frame. One that a Stop was for ends as cancelled, whatever else met it.
    Returns that frame's sequence, or None if the turn had ended before.
    """
    turn = turns.by_id(tx, turn_id)
    if turn is None:
        waiting = inbox.by_turn(tx, session_no, turn_id)
        session = sessions.by_no(tx, session_no)
        assert waiting is not None, "every turn begins with an accepted message"
        assert session is not None
        model = msgspec.json.decode(waiting.settings, type=StoredSettings).model or session.model
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
        typed = MessageRecord(role="user", content=waiting.content, images=decode_refs(waiting.images))
        messages.append(tx, session_no, [typed], turn_no=turn_no, at_ms=at_ms)
        inbox.settle(tx, waiting.no, state="undelivered", turn_no=turn_no)
        if waiting.is_stopped:
            turns.request_cancel(tx, turn_no)
        turn = turns.by_no(tx, turn_no)
        assert turn is not None
    return end_unfinished(tx, turn, ending, at_ms=at_ms, generation_no=None)


def known_frame(db: Reader, session_no: SessionNo, frame_id: str) -> Known | None:
    """What became of an earlier message with this frame id, if there was one."""
    row = inbox.by_frame(db, session_no, UUID(frame_id).bytes)
    if row is None:
        return None
    assert row.turn_id is not None
    request_id = str(UUID(bytes=row.request_id))
    if row.was_queued:
        return Known(row.digest, Outcome("queued", "", request_id))
    turn = turns.by_id(db, row.turn_id)
    ended = None
    if turn is not None and turn.state != "running":
        ended = Outcome(turn.state, turn.failure_classification, request_id)
    return Known(row.digest, ended)
