"""What a turn is made from: a message, a message that had waited, or a pause that is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from peen.session.acceptance import StoredSettings
from peen.session.state import RunningTurn
from peen.session.writer import NextTurn
from peen.store.admissions import AdmissionRow
from peen.store.images import decode_refs
from peen.store.inbox import InboxRow
from peen.wire.client import MessageSend
from peen.wire.worker import ResumeTurn, RunTurn


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """A decision to go on with a paused execution, as it was inspected at `control_revision`."""

    execution_id: str
    control_revision: int
    caller: str
    automatic: bool = False
    provenance: Mapping[str, str] | None = None
    """Of a decision that an agent took: the turn, the activity and the call in which it did."""


def admitted(row: AdmissionRow) -> ResumeRequest:
    """The decision that was stored because another turn ran."""
    return ResumeRequest(
        str(UUID(bytes=row.execution_id)),
        row.control_revision,
        row.caller,
        automatic=bool(row.is_automatic),
        provenance=msgspec.json.decode(row.provenance, type=dict[str, str]),
    )


def order_of(turn: RunningTurn, *, image_input: bool = True) -> RunTurn | ResumeTurn:
    """What the worker is told to do. `image_input` says whether the turn's model can be shown images."""
    if turn.execution_id is not None:
        return ResumeTurn(turn_id=turn.turn_id, execution_id=turn.execution_id, image_input=image_input)
    message = turn.message
    return RunTurn(
        turn_id=turn.turn_id,
        request_id=turn.request_id,
        message=message.message,
        images=turn.images,
        image_input=image_input,
        model=message.model,
        reasoning_effort=message.reasoning_effort,
        system_prompt=message.system_prompt,
    )


def turn_of(row: InboxRow, turn_id: str, session_id: str) -> RunningTurn:
    """A turn that begins or goes on with a stored message; nobody waits for its end."""
    settings = msgspec.json.decode(row.settings, type=StoredSettings)
    message = MessageSend(
        id=str(UUID(bytes=row.frame_id)),
        session_id=session_id,
        message=row.content,
        model=settings.model,
        reasoning_effort=settings.reasoning_effort,
        system_prompt=settings.system_prompt,
    )
    return RunningTurn(turn_id, str(UUID(bytes=row.request_id)), message, images=decode_refs(row.images))


def following_turn(following: NextTurn, source: MessageSend) -> RunningTurn:
    """The turn that queued messages open after the one that they were sent to, with its settings.

    Nobody waits for its end: each of its messages was acknowledged when it was queued.
    """
    row = following.message
    message = MessageSend(
        id=str(UUID(bytes=row.frame_id)),
        session_id=source.session_id,
        message=row.content,
        model=source.model,
        reasoning_effort=source.reasoning_effort,
    )
    request_id = str(UUID(bytes=row.request_id))
    return RunningTurn(following.turn_id, request_id, message, images=decode_refs(row.images))
