"""What somebody sees of retained work before deciding about it: one projection for the REST API and for agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from peen.errors import NotFound
from peen.ids import SessionNo, derived_id, parse_uuid4
from peen.store import activities, controlevents, executions, inbox, keys
from peen.store.activities import StepRow
from peen.store.blobs.rows import Blobs
from peen.store.database import Reader, Tx
from peen.store.executions import ExecutionDetails
from peen.store.images import decode_refs
from peen.store.inbox import InboxRow
from peen.store.sessions import SessionRow
from peen.wire.execution import Activity, Admission, ControlEvent, Execution, ExecutionView, WaitingMessage
from peen.wire.rest import Image, encode, rfc3339

MAX_LISTED: Final = 50
"""Paused executions that a list for an agent holds at most."""
_CUTS: Final = ((16_384, 2_048), (4_096, 512), (1_024, 128), (256, 32))
"""Bytes of an input or output that are shown: of an uncertain activity, which is what a decision is about; of others.
Each pair is tried when the one before it was too much."""
_LAST_EVENTS: Final = 8


def resource(session_id: str, row: ExecutionDetails) -> Execution:
    """The execution itself."""
    return Execution(
        id=str(UUID(bytes=row.id)),
        session_id=session_id,
        turn_id=str(UUID(bytes=row.turn_id)),
        kind=row.kind,
        state=row.state,
        pause_reason=row.pause_reason if row.state == "paused" else None,
        admission=(
            None
            if row.admitted_by is None or row.admitted_at_ms is None
            else Admission(caller=row.admitted_by, admitted_at=rfc3339(row.admitted_at_ms))
        ),
        control_revision=row.control_revision,
        round_limit=row.round_limit,
        created_at=rfc3339(row.created_at_ms),
        ended_at=None if row.ended_at_ms is None else rfc3339(row.ended_at_ms),
    )


def view(db: Reader | Tx, blobs: Blobs, session: SessionRow, row: ExecutionDetails) -> ExecutionView:
    """The execution with every step, every decision, and the messages that wait for it."""
    return ExecutionView(
        execution=resource(session.uuid, row),
        stop_revision=session.stop_revision,
        activities=[_activity(row, step, partial(blobs.take, db, session.no)) for step in activities.steps(db, row.no)],
        control_events=[
            ControlEvent(type=event_type, data=Raw(data), created_at=rfc3339(at_ms))
            for event_type, data, at_ms in controlevents.events(db, row.no)
        ],
        inbox=waiting(inbox.queued(db, session.no, row.turn_id)),
    )


def waiting(rows: Iterable[InboxRow]) -> list[WaitingMessage]:
    """Accepted messages that have not reached the model."""
    return [
        WaitingMessage(
            request_id=str(UUID(bytes=row.request_id)),
            message=row.content,
            images=[
                Image(media_type=ref.media_type, size_bytes=ref.size_bytes, sha256=ref.sha256)
                for ref in decode_refs(row.images)
            ]
            or None,
        )
        for row in rows
    ]


def found(db: Reader | Tx, session_no: SessionNo, execution_id: str) -> ExecutionDetails:
    """The execution of this session with that public id. Raises: NotFound."""
    wanted = parse_uuid4(execution_id)
    row = None if wanted is None else executions.details(db, wanted.bytes)
    if row is None or row.session_no != session_no:
        raise NotFound("no such execution in this session")
    return row


def activity_id(execution_id: bytes, step: str) -> str:
    """The public id of a step."""
    return derived_id("activity", execution_id, keys.step_position(step))


def step_of(db: Reader | Tx, execution: ExecutionDetails, wanted: str) -> str:
    """The step with that public id. Raises: NotFound."""
    for row in activities.steps(db, execution.no):
        if activity_id(execution.id, row.step) == wanted:
            return row.step
    raise NotFound("no such activity in this execution")


def listed(session_id: str, rows: list[ExecutionDetails], max_bytes: int) -> list[Execution]:
    """As many of `rows`, from the first on, as take at most `max_bytes` together."""
    shown: list[Execution] = []
    for item in (resource(session_id, row) for row in rows):
        max_bytes -= len(encode(item)) + 1
        if max_bytes < 0:
            break
        shown.append(item)
    return shown


def fitted(whole: ExecutionView, max_bytes: int) -> tuple[ExecutionView, int]:
    """`whole` cut so that its JSON takes at most `max_bytes`, and how many activities had to be left out.

    What a decision is about is cut last: first long inputs and outputs become `{beginning, omittedBytes}`, then ended
    activities are left out, the oldest first, at last old control events. Uncertain activities always stay, so a limit
    that they pass together is not kept.
    """
    shown = whole
    for uncertain, other in _CUTS:
        if len(encode(shown)) <= max_bytes:
            return shown, 0
        shown = _cut(whole, uncertain=uncertain, other=other)
    ended = [activity for activity in shown.activities if activity.state != "uncertain"]
    keep = len(ended)
    while keep and len(encode(shown)) > max_bytes:
        keep //= 2
        left = {activity.id for activity in ended[len(ended) - keep :]}
        stay = [each for each in whole.activities if each.state == "uncertain" or each.id in left]
        shown = _cut(msgspec.structs.replace(whole, activities=stay), uncertain=_CUTS[-1][0], other=_CUTS[-1][1])
    if len(encode(shown)) > max_bytes:
        shown = msgspec.structs.replace(shown, control_events=shown.control_events[-_LAST_EVENTS:])
    return shown, len(whole.activities) - len(shown.activities)


def _cut(whole: ExecutionView, *, uncertain: int, other: int) -> ExecutionView:
    def cut(activity: Activity) -> Activity:
        most = uncertain if activity.state == "uncertain" else other
        return msgspec.structs.replace(
            activity, input=_beginning(activity.input, most), output=_beginning(activity.output, most)
        )

    waiting = [msgspec.structs.replace(each, message=_shortened(each.message, uncertain)) for each in whole.inbox]
    return msgspec.structs.replace(whole, activities=[cut(each) for each in whole.activities], inbox=waiting)


def _beginning(data: Raw, most: int) -> Raw:
    content = bytes(data)
    if len(content) <= most:
        return data
    beginning = content[:most].decode("utf-8", "ignore")
    return Raw(encode({"beginning": beginning, "omittedBytes": len(content) - len(beginning.encode())}))


def _shortened(text: str, most: int) -> str:
    content = text.encode()
    return text if len(content) <= most else content[:most].decode("utf-8", "ignore") + " …"


def _activity(execution: ExecutionDetails, row: StepRow, take: Callable[[bytes], bytes]) -> Activity:
    return Activity(
        id=activity_id(execution.id, row.step),
        step=row.step,
        kind=row.kind,
        call_id=row.call_id,
        state=row.state,
        attempt=row.attempt,
        input=Raw(take(row.given)),
        output=Raw(b"null") if row.output is None else Raw(take(row.output)),
    )
