"""The WebSocket as an AsyncAPI 3.0.0 document."""

from __future__ import annotations

from typing import Any, Final

from peen.wire.client import ClientLimits, max_frame_bytes
from peen.wire.publish.envelope import UUID4
from peen.wire.publish.frames import Frame, client_frames, server_frames
from peen.wire.publish.openapi import VERSION
from peen.wire.publish.schemas import Schemas

_ABOUT: Final = """\
One socket carries messages to the agents of all sessions, and everything that happens in them back. Text frames, one
JSON object each. A client sends message.send only. The server sends sequenced frames, which are stored first, are the
same bytes whenever they are read, and can be read again at GET /api/v1/session/feed; and acknowledgements, which answer
one message and are never sent twice on their own. Unknown types and unknown members are to be ignored.

The handshake is refused with an HTTP answer and the error envelope of the REST API. A browser sends the token as the
subprotocols peen.v1 and peen.bearer.<token as unpadded base64url>; the server selects peen.v1. Never put it in the URL.

The server pings an idle socket every 30 s and drops one that it has not heard of for 60 s, or for which more than 8 MiB
or 50000 frames wait. A client that comes back reads the feed from its last sequence. Closing a socket stops no work.
"""


def asyncapi_document() -> dict[str, Any]:
    schemas = Schemas("#/components/schemas/")
    to_server, to_client = client_frames(), server_frames()
    messages = {frame.type: _message(frame, schemas) for frame in [*to_server, *to_client]}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Peen WebSocket API",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "MIT"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "controller": {
                "host": "127.0.0.1:8080",
                "protocol": "ws",
                "description": "PEEN_HTTP_LISTEN_ADDRESS; this is the default.",
                "security": [{"$ref": "#/components/securitySchemes/bearer"}],
            }
        },
        "channels": {"socket": _channel(list(messages))},
        "operations": {
            "sendMessage": _operation("receive", "What clients may send.", to_server),
            "hear": _operation("send", "What clients hear.", to_client),
        },
        "components": {
            "messages": messages,
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Asked for where PEEN_API_TOKEN is set.",
                }
            },
        },
    }


def _channel(names: list[str]) -> dict[str, Any]:
    query = {
        "type": "object",
        "properties": {"sessionId": {**UUID4, "description": "Hear this session only; left out: all sessions."}},
        "additionalProperties": False,
    }
    largest = max_frame_bytes(ClientLimits())
    return {
        "address": "/ws/v1",
        "description": f"A client frame may have {largest} bytes; PEEN_MAX_MESSAGE_BYTES and others change that.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {"ws": {"method": "GET", "query": query, "bindingVersion": "0.1.0"}},
    }


def _operation(action: str, summary: str, frames: list[Frame]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": "#/channels/socket"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/socket/messages/{frame.type}"} for frame in frames],
    }


def _message(frame: Frame, schemas: Schemas) -> dict[str, Any]:
    return {"name": frame.type, "summary": frame.about, "payload": frame.schema(schemas)}
