"""Maintenance: what nobody has used for long is removed."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from peen.duration import parse_duration_ms
from peen.errors import ValidationFailed
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_query, decode_body, json_response
from peen.hub.router import Router
from peen.store import deletion, pruning
from peen.wire.rest import AGE_PATTERN, Prune, Pruned

_AGE: Final = re.compile(AGE_PATTERN)


def add_maintenance(router: Router) -> None:
    router.add("POST", "/api/v1/maintenance/prune", prune)


async def prune(api: Api, request: ApiRequest) -> ApiResponse:
    """Remove sessions that were left alone for long, one after the other, each in small steps.

    What is marked is removed even if the controller ends meanwhile; the others are left for the next time.
    """
    check_query(request)
    before_ms = api.entropy.now_ms() - _age_ms(decode_body(request, Prune).older_than)
    old = await api.scan(partial(pruning.old_sessions, before_ms=before_ms))
    size = pruning.size_bytes(api.database.reader)
    deleted = 0
    for found in old:
        if not found.is_paused and await _remove(api, found, before_ms):
            deleted += 1
    if deleted:
        await deletion.give_back(api.database)
    # Others may have written more than was given back.
    freed = max(0, size - pruning.size_bytes(api.database.reader))
    kept = sum(found.is_paused for found in old)
    return json_response(Pruned(deleted=deleted, kept_paused=kept, freed_bytes=freed))


async def _remove(api: Api, found: pruning.OldSession, before_ms: int) -> bool:
    mark = partial(pruning.mark_old, no=found.no, before_ms=before_ms, at_ms=api.entropy.now_ms())
    session = await api.database.write(mark, terminal=True)
    if session is None:
        return False
    await api.release(session)
    await deletion.remove(api.database, session.no)
    return True


def _age_ms(text: str) -> int:
    if not _AGE.fullmatch(text):
        raise ValidationFailed(
            'olderThan: must be hours, minutes, seconds, up to six digits each and not all zero, like "720h"'
        )
    return parse_duration_ms(text)
