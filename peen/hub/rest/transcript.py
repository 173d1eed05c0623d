"""What a session said and did: messages, turns, and the feed that replays its frames."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Raw

from peen.errors import NotFound
from peen.feed.project import render
from peen.hub.api import MAX_PAGE_BYTES, Api
from peen.hub.request import ApiRequest, ApiResponse, cursor_page, json_response, page, path_sha256
from peen.hub.rest.usage import used_so_far
from peen.hub.router import Router
from peen.ids import derived_id
from peen.store import audit, feed, images, messages, turns
from peen.store.blobs.errors import BlobMissing
from peen.store.messages import MessageRow
from peen.store.spending import NOTHING_SPENT, Spent
from peen.store.turns import TurnRow
from peen.wire.image import media_type_of
from peen.wire.records import ImageRef, RefusedImage
from peen.wire.rest import FeedPage, Image, Message, MessagePage, ToolCall, Turn, TurnPage, rfc3339

NO_IMAGE: Final = "the session has no image with this hash"
MAX_FEED_LIMIT = 1000
DEFAULT_FEED_LIMIT = 100

_decode_calls = msgspec.json.Decoder(list[ToolCall]).decode


def add_transcript(router: Router) -> None:
    router.add("GET", "/api/v1/messages", list_messages, session=True)
    router.add("GET", "/api/v1/session/turns", list_turns, session=True)
    router.add("GET", "/api/v1/session/feed", read_feed, session=True)
    router.add("GET", "/api/v1/session/images/{sha256}", get_image, session=True, any_accept=True)


def list_messages(api: Api, request: ApiRequest) -> ApiResponse:
    """In the order the model received them, or newest first with `order=desc`."""
    session, wanted = api.session(request.session), page(request, ordered=True)
    rows, has_more = messages.page(
        api.database.reader,
        session.no,
        limit=wanted.limit,
        offset=wanted.offset,
        newest_first=wanted.order == "desc",
        max_bytes=MAX_PAGE_BYTES,
    )
    refused = {each.sha256: each for each in images.refused(api.database.reader, session.no)}
    items = [_message(session.id, row, refused) for row in rows]
    return json_response(MessagePage(items=items, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def list_turns(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first."""
    session, wanted = api.session(request.session), page(request)
    rows = turns.page(api.database.reader, session.no, limit=wanted.limit + 1, offset=wanted.offset)
    spent = audit.spent_of_turns(api.database.reader, [row.no for row in rows])
    items = [_turn(session.uuid, row, spent.get(row.no, NOTHING_SPENT)) for row in rows[: wanted.limit]]
    has_more = len(rows) > wanted.limit
    return json_response(TurnPage(turns=items, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def read_feed(api: Api, request: ApiRequest) -> ApiResponse:
    """Frames after `cursor`, oldest first, byte for byte as they went out live."""
    session = api.session(request.session)
    wanted = cursor_page(request, default_limit=DEFAULT_FEED_LIMIT, max_limit=MAX_FEED_LIMIT)
    rows = []
    if wanted.cursor < session.feed_sequence:  # a cursor past the end is no error: nothing has come after it yet
        rows = feed.after(api.database.reader, session.no, wanted.cursor, limit=wanted.limit, max_bytes=MAX_PAGE_BYTES)
    items = [Raw(render(row, session=session.id, session_id=session.uuid)) for row in rows]
    next_cursor = rows[-1].sequence if rows else wanted.cursor
    return json_response(FeedPage(items=items, next_cursor=next_cursor, has_more=next_cursor < session.feed_sequence))


async def get_image(api: Api, request: ApiRequest) -> ApiResponse:
    """An image of the session by its hash. What another session has, or what is no image, is not there."""
    session, digest = api.session(request.session), path_sha256(request, "sha256")
    try:
        data = await api.scan(partial(api.blobs.fetch, session_no=session.no, digest=digest))
    except BlobMissing:
        raise NotFound(NO_IMAGE) from None
    media_type = media_type_of(data)
    if media_type is None:  # some other part of the session that is stored by its hash
        raise NotFound(NO_IMAGE)
    headers = {
        "content-type": media_type,
        "cache-control": "private, max-age=3600, immutable",
        "vary": "X-Session-ID, Authorization",
        "content-security-policy": "default-src 'none'; sandbox",
        "etag": f'"{digest.hex()}"',
    }
    return ApiResponse(200, data, headers)


def _images(row: MessageRow, refused: Mapping[str, RefusedImage]) -> list[Image] | None:
    return [_image(row, ref, refused.get(ref.sha256)) for ref in images.decode_refs(row.images)] or None


def _image(row: MessageRow, ref: ImageRef, refusal: RefusedImage | None) -> Image:
    stands = refusal is None or row.sequence > refusal.up_to_sequence
    return Image(
        media_type=ref.media_type,
        size_bytes=ref.size_bytes,
        sha256=ref.sha256,
        refused=None if stands or refusal is None else refusal.reason,
    )


def _message(session: bytes, row: MessageRow, refused: Mapping[str, RefusedImage]) -> Message:
    return Message(
        id=derived_id("message", session, row.sequence),
        sequence=row.sequence,
        role=cast('Literal["user", "assistant", "tool", "system"]', row.role),
        content=row.content,
        workspace=row.workspace,
        model=row.model,
        thinking=row.thinking,
        tool_calls=None if row.tool_calls is None else _decode_calls(row.tool_calls),
        tool_call_id=row.tool_call_id,
        is_error=bool(row.is_error),
        incomplete=bool(row.incomplete),
        injected=bool(row.injected),
        injected_kind=row.injected_kind,
        images=_images(row, refused),
        turn_id=str(UUID(bytes=row.turn_id)),
        compaction_id=None if row.compaction is None else derived_id("compaction", session, row.compaction),
        created_at=rfc3339(row.created_at_ms),
    )


def _turn(session_id: str, row: TurnRow, spent: Spent) -> Turn:
    return Turn(
        id=str(UUID(bytes=row.id)),
        session_id=session_id,
        request_id=str(UUID(bytes=row.request_id)),
        workspace=row.workspace,
        state=cast('Literal["running", "completed", "failed", "cancelled", "interrupted"]', row.state),
        cancel_requested=bool(row.cancel_requested),
        started_at=rfc3339(row.started_at_ms),
        completed_at=None if row.completed_at_ms is None else rfc3339(row.completed_at_ms),
        failure_classification=row.failure_classification,
        context_snapshot_hash=None if row.context_sha256 is None else row.context_sha256.hex(),
        prompt_snapshot_hash=None if row.prompt_sha256 is None else row.prompt_sha256.hex(),
        worker_generation_id=None if row.generation_id is None else str(UUID(bytes=row.generation_id)),
        usage=used_so_far(spent),
    )
