"""What adapters do with replies that are no stream: read them whole, read errors in time, and hide the key."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
import trio

from peen.errors import ModelError
from peen.model.chatwire import ErrorObject
from peen.model.transport import Reply

MAX_ERROR_BYTES: Final = 64 * 1024
ERROR_BODY_S: Final = 10.0
"""How long the rest of an answer with an error status may take; what has come by then must do."""
_HIDDEN: Final = "[key]"


async def whole_body(reply: Reply, most: int) -> bytes:
    """The body, cut at `most` bytes. Raises: ModelError `transport`."""
    body = bytearray()
    await _read_into(body, reply, most)
    return bytes(body[:most])


async def error_body(reply: Reply, key: str | None) -> bytes:
    """The body of an error without the key: what of it came in time and before it broke off.

    More is not needed, since the status alone is enough.
    """
    body = bytearray()
    with trio.move_on_after(ERROR_BODY_S), suppress(ModelError):
        await _read_into(body, reply, MAX_ERROR_BYTES)
    found = bytes(body[:MAX_ERROR_BYTES])
    return found if key is None else found.replace(key.encode(), _HIDDEN.encode())


def without_key(error: ErrorObject | str, key: str | None) -> ErrorObject | str:
    """The same without the key, which some servers repeat when they refuse it."""
    if key is None:
        return error
    if isinstance(error, str):
        return error.replace(key, _HIDDEN)
    return msgspec.structs.replace(error, message=(error.message or "").replace(key, _HIDDEN) or None)


async def _read_into(body: bytearray, reply: Reply, most: int) -> None:
    while len(body) < most and (piece := await reply.receive()):
        body += piece
