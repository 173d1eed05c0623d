"""What a client may send over `/ws/v1`: the frame `message.send`, decoded strictly."""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from peen.errors import ValidationFailed
from peen.ids import parse_uuid4
from peen.wire.image import MEDIA_TYPES, MediaType, checked_media_type, known_media_type, media_type_of
from peen.wire.problem import problem_text
from peen.wire.records import ImageRef
from peen.wire.worker import SystemPrompt

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]

_ESCAPED: Final = 6  # one byte of text may arrive as \u00XX; longer UTF-8 sequences grow by less
_ENVELOPE_BYTES: Final = 16_384  # ids, names of fields, model and white space around the two texts
_SLASHED: Final = 2  # base64 holds slashes, which some encoders escape
_IMAGE_ENVELOPE_BYTES: Final = 256  # names of fields, type and white space around the bytes of one image


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Sizes in bytes, of UTF-8 or of a decoded image, as configured by the variables of the same names."""

    max_message_bytes: int = 262_144
    max_system_prompt_bytes: int = 65_536
    max_images_per_message: int = 4
    max_image_bytes: int = 5_242_880


def max_frame_bytes(limits: ClientLimits) -> int:
    """The largest frame that can carry an allowed message: all texts and images at their limits, escaped throughout."""
    texts = _ESCAPED * (limits.max_message_bytes + limits.max_system_prompt_bytes)
    image = _SLASHED * 4 * -(-limits.max_image_bytes // 3) + _IMAGE_ENVELOPE_BYTES
    return texts + limits.max_images_per_message * image + _ENVELOPE_BYTES


class SentImage(Struct, frozen=True, kw_only=True):
    """One image of a message. `data` is a whole file of its type, as far as that is looked at; `sha256` is hex."""

    media_type: MediaType
    data: bytes
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> SentImage:
        """Raises: ValueError if `data` is in none of the formats that models take, or broken."""
        return cls(media_type=checked_media_type(data), data=data, sha256=hashlib.sha256(data).hexdigest())

    @property
    def ref(self) -> ImageRef:
        return ImageRef(media_type=self.media_type, size_bytes=len(self.data), sha256=self.sha256)


class MessageSend(Struct, frozen=True, kw_only=True):
    """One checked message. Settings are for this turn only; None means that the client left them out."""

    id: str
    session_id: str
    message: str
    model: str | None = None
    reasoning_effort: Effort | None = None
    system_prompt: SystemPrompt | None = None
    images: tuple[SentImage, ...] = ()


def content_digest(message: MessageSend) -> bytes:
    """SHA-256 (32 bytes) of what the message says, without its id: equal digests mean equal content."""
    content: list[object] = [
        message.session_id, message.message, message.model, message.reasoning_effort, message.system_prompt
    ]  # fmt: skip
    if message.images:  # without them a digest is the one that earlier releases have stored
        content.append([image.sha256 for image in message.images])
    return hashlib.sha256(msgspec.json.encode(content)).digest()


def encode_client_frame(message: MessageSend, timestamp_ms: int) -> bytes:
    """The frame `message.send` as a client sends it; `decode_client_frame` gives `message` back."""
    data: dict[str, object] = {"message": message.message}
    if message.model is not None:
        data["model"] = message.model
    if message.reasoning_effort is not None:
        data["reasoningEffort"] = message.reasoning_effort
    if message.system_prompt is not None:
        data["systemPrompt"] = message.system_prompt
    if message.images:
        data["images"] = [{"mediaType": image.media_type, "data": image.data} for image in message.images]
    return msgspec.json.encode(
        {
            "id": message.id,
            "type": "message.send",
            "data": data,
            "metadata": {"sessionId": message.session_id},
            "timestamp": timestamp_ms,
            "triggeredBy": None,
        }
    )


class FrameRefused(ValidationFailed):
    """A frame that breaks the contract. `frame_id` and `session_id` are there when the frame named them properly."""

    def __init__(self, message: str, *, frame_id: str | None = None, session_id: str | None = None) -> None:
        super().__init__(message)
        self.frame_id, self.session_id = frame_id, session_id


_SKILL: Final = re.compile(r"(?:^|(?<=\s))(:(?:core:)?[a-z0-9]+(?:-[a-z0-9]+)*)(?=$|[\s,.;!?)\]}])")
_NULL: Final = Raw(b"null")  # `Raw | None` would decode to nothing but null


class _Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    media_type: str
    data: str


class _Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    message: str
    model: str | None = None
    reasoning_effort: Effort | None = None
    system_prompt: SystemPrompt | None = None
    to: Raw = _NULL
    images: list[_Image] | None = None
    system: Raw = _NULL
    workspace: Raw = _NULL


class _Metadata(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    session_id: str


class _Frame(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    id: str
    type: str
    data: _Data
    metadata: _Metadata
    timestamp: int | float | None = None
    triggered_by: None = None


class _Known(Struct, frozen=True):
    """The two ids of a frame that is otherwise wrong."""

    id: Any = None
    metadata: Any = None


_decode: Final = msgspec.json.Decoder(_Frame).decode
_decode_known: Final = msgspec.json.Decoder(_Known).decode

_REFUSED_FIELDS: Final = {
    "to": "messages to a child agent are not part of this release",
    "system": "the system session is not part of this release",
    "workspace": "is not accepted; POST /api/v1/sessions/open names the workspace of a session",
}


def decode_client_frame(data: bytes | str, limits: ClientLimits) -> MessageSend:
    """The message that `data` holds.

    Raises: FrameRefused (a ValidationFailed), whose text names the field.
    """
    try:
        frame = _decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _refusal(data, problem_text(error, whole="frame", kind=_Frame)) from error
    problem = _envelope_problem(frame) or _data_problem(frame.data, limits)
    if problem is not None:
        raise _refusal(data, problem)
    try:
        images = _images(frame.data.images or (), limits)
    except ValueError as error:
        raise _refusal(data, str(error)) from error
    return MessageSend(
        id=frame.id,
        session_id=frame.metadata.session_id,
        message=frame.data.message,
        model=frame.data.model,
        reasoning_effort=frame.data.reasoning_effort,
        system_prompt=frame.data.system_prompt,
        images=images,
    )


def _envelope_problem(frame: _Frame) -> str | None:
    if frame.type != "message.send":
        return "type: a client sends message.send and nothing else"
    if parse_uuid4(frame.id) is None:
        return "id: must be a version 4 UUID in lower case with dashes"
    if parse_uuid4(frame.metadata.session_id) is None:
        return "metadata.sessionId: must be a version 4 UUID in lower case with dashes"
    return None


def _data_problem(data: _Data, limits: ClientLimits) -> str | None:
    for field, reason in _REFUSED_FIELDS.items():
        if bytes(getattr(data, field)) != b"null":
            return f"data.{field}: {reason}"
    if named := _SKILL.search(data.message):
        return (
            f"data.message: names the skill {named[1]}, and skills are not part of this release; "
            "leave the name out, or write it without the colon"
        )
    if problem := _text_problem("data.message", data.message, limits.max_message_bytes):
        return problem
    if data.model == "":
        return "data.model: must not be empty; leave it out for the default model"
    if data.system_prompt is not None:
        return _text_problem("data.systemPrompt.content", data.system_prompt.content, limits.max_system_prompt_bytes)
    return None


def _images(given: Sequence[_Image], limits: ClientLimits) -> tuple[SentImage, ...]:
    """Raises: ValueError, whose text names the field."""
    if len(given) > limits.max_images_per_message:
        raise ValueError(
            f"data.images: has {len(given)} images; a message may have {limits.max_images_per_message} "
            "(PEEN_MAX_IMAGES_PER_MESSAGE)"
        )
    return tuple(_image(f"data.images[{at}]", image, limits.max_image_bytes) for at, image in enumerate(given))


def _image(field: str, image: _Image, max_bytes: int) -> SentImage:
    declared = known_media_type(image.media_type)
    if declared is None:
        raise ValueError(f"{field}.mediaType: must be one of {', '.join(MEDIA_TYPES)}")
    try:
        data = binascii.a2b_base64(image.data, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"{field}.data: must be base64 with padding and without white space") from error
    if len(data) > max_bytes:
        raise ValueError(
            f"{field}.data: has {len(data)} bytes, more than the limit of {max_bytes} (PEEN_MAX_IMAGE_BYTES)"
        )
    if (found := media_type_of(data)) not in (None, declared):
        raise ValueError(f"{field}.mediaType: says {declared}, but the bytes are {found}")
    try:
        return SentImage.of(data)
    except ValueError as error:
        raise ValueError(f"{field}.data: {error}") from error


def _text_problem(field: str, text: str, max_bytes: int) -> str | None:
    if not text.strip():
        return f"{field}: must not be empty"
    # A string cannot take fewer bytes than it has characters; encode only where that does not decide.
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        return f"{field}: is larger than the limit of {max_bytes} bytes"
    return None


def _refusal(data: bytes | str, problem: str) -> FrameRefused:
    try:
        known = _decode_known(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return FrameRefused(problem)
    session_id = known.metadata.get("sessionId") if isinstance(known.metadata, dict) else None
    return FrameRefused(problem, frame_id=_uuid_or_none(known.id), session_id=_uuid_or_none(session_id))


def _uuid_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and parse_uuid4(value) is not None else None
