"""What a turn was told: its prompt, and what that was resolved from. A session reads only what it has used itself."""

from __future__ import annotations

from typing import Final

import msgspec

from peen.errors import NotFound
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_query, json_response, path_sha256
from peen.hub.router import Router
from peen.store import snapshots
from peen.store.snapshots import Kind, SnapshotRow
from peen.wire.rest import ContextSnapshot, ManifestEntry, PromptSnapshot, rfc3339


class _Manifest(msgspec.Struct):
    entries: list[ManifestEntry] = []


_decode_manifest: Final = msgspec.json.Decoder(_Manifest).decode


def add_snapshots(router: Router) -> None:
    router.add("GET", "/api/v1/session/context-snapshots/{contextHash}", get_context_snapshot, session=True)
    router.add("GET", "/api/v1/session/prompt-snapshots/{promptHash}", get_prompt_snapshot, session=True)


def get_context_snapshot(api: Api, request: ApiRequest) -> ApiResponse:
    row, digest = _used(api, request, "context")
    return json_response(
        ContextSnapshot(
            hash=digest.hex(),
            manifest=_decode_manifest(row.manifest or b"{}").entries,
            resolved_content=row.content,
            created_at=rfc3339(row.created_at_ms),
        )
    )


def get_prompt_snapshot(api: Api, request: ApiRequest) -> ApiResponse:
    row, digest = _used(api, request, "prompt")
    return json_response(
        PromptSnapshot(hash=digest.hex(), effective_prompt=row.content, created_at=rfc3339(row.created_at_ms))
    )


def _used(api: Api, request: ApiRequest, kind: Kind) -> tuple[SnapshotRow, bytes]:
    """The snapshot that the path names, and its hash."""
    session = api.session(request.session)
    check_query(request)
    digest = path_sha256(request, f"{kind}Hash")
    row = snapshots.read(api.database.reader, session.no, kind, digest)
    if row is None:
        raise NotFound(f"this session has no {kind} snapshot with this hash")
    return row, digest
