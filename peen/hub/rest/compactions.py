"""Summaries of a session's history: what the model gets in the place of which messages."""

from __future__ import annotations

from peen.errors import NotFound
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_query, json_response, page
from peen.hub.rest.pages import fill
from peen.hub.router import Router
from peen.ids import derived_id
from peen.store import compactions
from peen.store.compactions import CompactionRow
from peen.store.sessions import SessionRow
from peen.wire.rest import Compaction, CompactionPage, rfc3339


def add_compactions(router: Router) -> None:
    router.add("GET", "/api/v1/session/compactions", list_compactions, session=True)
    router.add("GET", "/api/v1/session/compactions/{compactionId}", get_compaction, session=True)


def list_compactions(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first."""
    session, wanted = api.session(request.session), page(request)
    rows = compactions.page(api.database.reader, session.no, limit=wanted.limit + 1, offset=wanted.offset)
    found, has_more = fill((_compaction(session, row) for row in rows), limit=wanted.limit)
    return json_response(CompactionPage(compactions=found, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def get_compaction(api: Api, request: ApiRequest) -> ApiResponse:
    check_query(request)
    session, wanted = api.session(request.session), request.params["compactionId"]
    for number in compactions.numbers(api.database.reader, session.no):
        if derived_id("compaction", session.id, number) == wanted:
            row = compactions.one(api.database.reader, session.no, number)
            assert row is not None
            return json_response(_compaction(session, row))
    raise NotFound("this session has no such compaction")


def _compaction(session: SessionRow, row: CompactionRow) -> Compaction:
    parent = row.supersedes
    return Compaction(
        id=derived_id("compaction", session.id, row.sequence),
        session_id=session.uuid,
        from_message_id=derived_id("message", session.id, row.from_sequence),
        to_message_id=derived_id("message", session.id, row.to_sequence),
        from_sequence=row.from_sequence,
        to_sequence=row.to_sequence,
        summary=row.summary,
        source_message_count=row.message_count,
        input_token_count=row.input_tokens,
        summary_token_count=row.summary_tokens,
        model=row.model,
        prompt_hash=row.prompt_sha256.hex(),
        parent_compaction_id=None if parent is None else derived_id("compaction", session.id, parent),
        created_at=rfc3339(row.created_at_ms),
    )
