"""Notices: posted by outside callers, listed for everybody. Reading consumes nothing."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import Raw

from peen.errors import ValidationFailed
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_query, decode_body, json_response, page
from peen.hub.router import Router
from peen.session.notices import as_notice, record
from peen.store import notices
from peen.wire.notice import type_problem
from peen.wire.rest import NoticePage, PostNotice


def add_notices(router: Router) -> None:
    router.add("GET", "/api/v1/session/notices", list_notices, session=True)
    router.add("POST", "/api/v1/session/notices", post_notice, session=True)


def list_notices(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first."""
    session, wanted = api.session(request.session), page(request)
    rows = notices.page(api.database.reader, session.no, limit=wanted.limit + 1, offset=wanted.offset)
    shown = [as_notice(session.id, row) for row in rows[: wanted.limit]]
    has_more = len(rows) > wanted.limit
    return json_response(NoticePage(notices=shown, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


async def post_notice(api: Api, request: ApiRequest) -> ApiResponse:
    """Record a notice. The model reads it at the next tool boundary or with the next turn."""
    check_query(request)
    body = decode_body(request, PostNotice)
    session = api.session(request.session)
    if (problem := type_problem(body.type)) is not None:
        raise ValidationFailed(f"type: {problem}")
    if not body.summary.strip():
        raise ValidationFailed("summary: must not be empty; one line that says what happened")
    if len(body.summary.encode()) > api.max_summary_bytes:
        raise ValidationFailed(
            f"summary: is larger than {api.max_summary_bytes} bytes (PEEN_MAX_EVENT_SUMMARY_BYTES); "
            "put details into data"
        )
    change = partial(
        record,
        session_no=session.no,
        notice_type=body.type,
        source="api",
        summary=body.summary,
        data=_data(body.data, api.max_data_bytes),
        delivery=body.delivery,
        at_ms=api.entropy.now_ms(),
    )
    return json_response(await api.database.write(change), status=202)


def _data(given: Raw, max_bytes: int) -> bytes | None:
    """The object as compact JSON, or None if there is none. Raises: ValidationFailed."""
    data = bytes(given)
    if data == b"null":
        return None
    if not data.startswith(b"{"):
        raise ValidationFailed("data: must be a JSON object")
    compact = msgspec.json.format(data, indent=-1)
    if len(compact) > max_bytes:
        raise ValidationFailed(
            f"data: is larger than {max_bytes} bytes of JSON (PEEN_MAX_EVENT_DATA_BYTES); "
            "name where the rest can be read"
        )
    return compact
