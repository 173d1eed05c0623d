"""The frames of `/ws/v1` as schemas: the client's one, and one for each type that the server sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from peen.wire.client import Effort
from peen.wire.events import EVENTS
from peen.wire.feed import Completed, Failed
from peen.wire.image import MediaType
from peen.wire.publish.envelope import UUID, UUID4, Schema, envelope, sequenced_envelope
from peen.wire.publish.schemas import Schemas, description
from peen.wire.worker import SystemPrompt


class SentImage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """An image that the model sees after the text. `data` is base64 with padding; its bytes must be what they are said
    to be.
    """

    media_type: MediaType
    data: bytes


class MessageData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The `data` of `message.send`. All settings are for this message's turn alone."""

    message: str
    model: str | None = None
    reasoning_effort: Effort | None = None
    system_prompt: SystemPrompt | None = None
    images: list[SentImage] | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One type of frame. `schema` gives its whole JSON, with references of the given collection."""

    type: str
    about: str
    schema: Callable[[Schemas], Schema]


def client_frames() -> list[Frame]:
    """What a client may send."""
    return [Frame("message.send", "A message for the agent of a session.", _message_send)]


def server_frames() -> list[Frame]:
    """What the server sends: sequenced frames in the order of `EVENTS`, then the acknowledgements."""
    sequenced = [Frame(name, description(payload), _sequenced(name, payload)) for name, payload in EVENTS.items()]
    return [
        *sequenced,
        Frame("message.completed", "A message was carried out or has joined a queue.", _ack("completed", Completed)),
        Frame("message.failed", "A message was refused, or its turn did not complete.", _ack("failed", Failed)),
    ]


def _message_send(schemas: Schemas) -> Schema:
    metadata: Schema = {
        "type": "object",
        "properties": {"sessionId": UUID4},
        "required": ["sessionId"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "id": UUID4,
            "type": {"type": "string", "const": "message.send"},
            "data": schemas.ref(MessageData),
            "metadata": metadata,
            "timestamp": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "triggeredBy": {"type": "null"},
        },
        "required": ["id", "type", "data", "metadata"],
        "additionalProperties": False,
    }


def _sequenced(name: str, payload: type[Struct]) -> Callable[[Schemas], Schema]:
    def schema(schemas: Schemas) -> Schema:
        return sequenced_envelope({"type": "string", "const": name}, schemas.ref(payload))

    return schema


def _ack(outcome: str, payload: type[Struct]) -> Callable[[Schemas], Schema]:
    def schema(schemas: Schemas) -> Schema:
        metadata: Schema = {"type": "object", "properties": {"sessionId": UUID, "requestId": UUID}}
        kind: Schema = {"type": "string", "const": f"message.{outcome}"}
        return envelope(kind, schemas.ref(payload), metadata, {"anyOf": [UUID, {"type": "null"}]})

    return schema
