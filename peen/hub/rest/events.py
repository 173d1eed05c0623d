"""Protocol events as records: what happened in the session's own turns, without the pieces of its answers."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from msgspec import Raw

from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, Page, json_response, page
from peen.hub.rest.pages import fill
from peen.hub.router import Router
from peen.ids import derived_id
from peen.store import feed
from peen.store.database import Reader
from peen.store.feed import EventRow
from peen.store.sessions import SessionRow
from peen.wire.rest import EventPage, ProtocolEvent, rfc3339


def add_events(router: Router) -> None:
    router.add("GET", "/api/v1/session/events", list_events, session=True)


async def list_events(api: Api, request: ApiRequest) -> ApiResponse:
    """Oldest first, or newest first with `order=desc`. Reading consumes nothing."""
    session, wanted = api.session(request.session), page(request, ordered=True)
    return await api.scan(partial(events_page, session=session, wanted=wanted))


def events_page(db: Reader, session: SessionRow, wanted: Page) -> ApiResponse:
    rows = feed.events(
        db, session.no, limit=wanted.limit + 1, offset=wanted.offset, newest_first=wanted.order == "desc"
    )
    found, has_more = fill((_event(session, row) for row in rows), limit=wanted.limit)
    return json_response(EventPage(events=found, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def _event(session: SessionRow, row: EventRow) -> ProtocolEvent:
    return ProtocolEvent(
        id=derived_id("feed", session.id, row.sequence),
        session_id=session.uuid,
        turn_id=str(UUID(bytes=row.turn_id)),
        request_id=str(UUID(bytes=row.request_id)),
        sequence=row.sequence,
        type=row.type,
        payload=Raw(row.data),
        worker_generation_id=None if row.generation_id is None else str(UUID(bytes=row.generation_id)),
        created_at=rfc3339(row.created_at_ms),
    )
