"""What all frames of `/ws/v1` have in common, as schemas."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

UUID: Final[Schema] = {"type": "string", "format": "uuid"}
UUID4: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
}
SHA256: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
MILLISECONDS: Final[Schema] = {"type": "integer", "description": "Milliseconds since the epoch, UTC."}


def envelope(kind: Schema, data: Schema, metadata: Schema, triggered_by: Schema) -> Schema:
    """A frame of the server."""
    members: Schema = {
        "id": UUID, "type": kind, "data": data, "timestamp": MILLISECONDS, "metadata": metadata,
        "triggeredBy": triggered_by,
    }  # fmt: skip
    return {"type": "object", "properties": members, "required": list(members)}


def sequenced_envelope(kind: Schema, data: Schema) -> Schema:
    """A frame that has a place in a session's feed."""
    sequence: Schema = {"type": "integer", "minimum": 1}
    metadata: Schema = {
        "type": "object",
        "properties": {"sessionId": UUID, "requestId": UUID, "sequence": sequence},
        "required": ["sessionId", "sequence"],
    }
    return envelope(kind, data, metadata, {"type": "null"})


def any_feed_frame() -> Schema:
    """A sequenced frame of whatever type, as `GET /session/feed` returns them."""
    schema = sequenced_envelope({"type": "string"}, {"type": "object"})
    return {"description": "A frame of the feed. Its type says what `data` holds: see asyncapi.yaml.", **schema}
