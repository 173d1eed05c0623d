"""The payloads of protocol events: one struct for each type of sequenced frame, for schemas and for checking.

A type that is new gets a struct here and a row in `EVENTS`; schemas, the AsyncAPI document and the check follow.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from peen.wire.notice import Notice
from peen.wire.problem import problem_text

Count = Annotated[int, Meta(ge=0)]

FailureReason = Literal[
    "agentRun", "timeout", "budgetReached", "hookDenied", "harness", "storage", "interrupted", "shutdown"
]


class Payload(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Base of what a frame carries as `data`. Members that are None are left out.

    Here an unknown member is a mistake of ours. Readers must ignore it: later releases add members.
    """


# --- messages of the user -------------------------------------------------------------------------------------------


class ImageNote(Payload, frozen=True, kw_only=True):
    """An attached image without its bytes."""

    media_type: str
    size_bytes: Count


class UserMessageCreated(Payload, frozen=True, kw_only=True):
    """A message was accepted and stored. The first frame of every accepted message."""

    message: str
    source_event_id: str | None = None
    images: list[ImageNote] | None = None


class UserMessageQueued(Payload, frozen=True, kw_only=True):
    """The message waits for the end of the running turn's current model round."""

    message: str
    source_event_id: str | None = None


class UserMessageDelivered(Payload, frozen=True, kw_only=True):
    """A queued message reached the model."""

    message: str
    source_event_id: str | None = None


# --- turns ----------------------------------------------------------------------------------------------------------


class TurnStarted(Payload, frozen=True, kw_only=True):
    """The turn was admitted. `originEventId` and `originEventType` name the notice that woke it, if one did."""

    session_id: str
    model: str
    workspace: str
    origin_event_id: str | None = None
    origin_event_type: str | None = None


class TurnCompleted(Payload, frozen=True, kw_only=True):
    """The turn ended with an answer: `text`.

    `finishReason` is the provider's word for why the model stopped; `length` means that the answer was cut off.
    """

    model: str
    text: str
    finish_reason: str | None = None


class TurnResumed(Payload, frozen=True, kw_only=True):
    """A turn that had ended unfinished goes on: a new segment with the same ids, block indexes go on."""

    execution_id: str
    control_revision: Count


class TurnFailed(Payload, frozen=True, kw_only=True):
    """The turn ended without an answer. `reason` is a word for programs, `error` a text for people."""

    reason: FailureReason
    error: str | None = None


class TurnCancelled(Payload, frozen=True, kw_only=True):
    """Somebody stopped the turn."""

    reason: str


# --- tools and the provider -----------------------------------------------------------------------------------------


class ToolUse(Payload, frozen=True, kw_only=True):
    """The model asked for a call. `arguments` is the JSON that it wrote: an object, unless it made a mistake."""

    call_id: str
    name: str
    arguments: Raw


class ToolResult(Payload, frozen=True, kw_only=True):
    """The call ended. `content` is what the model reads."""

    call_id: str
    name: str
    content: str
    is_error: bool


class ProviderRetry(Payload, frozen=True, kw_only=True):
    """Attempt number `attempt` failed; the next follows in `delayMs` milliseconds. `status` 0: there was no answer."""

    attempt: Annotated[int, Meta(ge=1)]
    reason: str
    status: Count
    delay_ms: Count


# --- notices --------------------------------------------------------------------------------------------------------


class SessionEvents(Payload, frozen=True, kw_only=True):
    """Notices reached the model. `dropped` is always 0: every stored notice is delivered."""

    notices: list[Notice]
    dropped: Annotated[int, Meta(ge=0, le=0)]


# --- content blocks -------------------------------------------------------------------------------------------------


# The members of these are spelt with underscores on the wire.


class _Block(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Part(_Block, frozen=True, kw_only=True, tag_field="type"):
    pass


class TextBlock(_Part, frozen=True, kw_only=True, tag="text"):
    """Part of the answer."""


class ThinkingBlock(_Part, frozen=True, kw_only=True, tag="thinking"):
    """The model's reasoning, as far as the provider shows it."""


class ToolUseBlock(_Part, frozen=True, kw_only=True, tag="tool_use"):
    """A call that the model writes."""

    id: str
    name: str


class ToolResultBlock(_Part, frozen=True, kw_only=True, tag="tool_result"):
    """The result of the call whose `tool_use` block has the id `tool_use_id`."""

    tool_use_id: str
    is_error: bool


class TextDelta(_Part, frozen=True, kw_only=True, tag="text_delta"):
    """Goes on a `text` block."""

    text: str


class ThinkingDelta(_Part, frozen=True, kw_only=True, tag="thinking_delta"):
    """Goes on a `thinking` block."""

    text: str


class InputJsonDelta(_Part, frozen=True, kw_only=True, tag="input_json_delta"):
    """Goes on a `tool_use` block: a piece of the text of its arguments, not JSON in itself."""

    partial_json: str


class JsonPartial(_Part, frozen=True, kw_only=True, tag="json_partial"):
    """Goes on a `tool_result` block: a piece of its text."""

    text: str


class ContentBlockStart(_Block, frozen=True, kw_only=True):
    """Opens block `index` of the turn."""

    type: Literal["content_block_start"]
    index: Count
    content_block: TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class ContentBlockDelta(_Block, frozen=True, kw_only=True):
    """Goes on block `index`."""

    type: Literal["content_block_delta"]
    index: Count
    delta: TextDelta | ThinkingDelta | InputJsonDelta | JsonPartial


class ContentBlockStop(_Block, frozen=True, kw_only=True):
    """Closes block `index`. A block that an end of the turn left open is closed just before the terminal frame."""

    type: Literal["content_block_stop"]
    index: Count


EVENTS: Final[dict[str, type[Struct]]] = {
    "userMessage.created": UserMessageCreated,
    "userMessage.queued": UserMessageQueued,
    "userMessage.delivered": UserMessageDelivered,
    "turn.started": TurnStarted,
    "turn.resumed": TurnResumed,
    "turn.completed": TurnCompleted,
    "turn.failed": TurnFailed,
    "turn.cancelled": TurnCancelled,
    "tool.use": ToolUse,
    "tool.result": ToolResult,
    "provider.retry": ProviderRetry,
    "notice.created": Notice,
    "session.events": SessionEvents,
    "content_block_start": ContentBlockStart,
    "content_block_delta": ContentBlockDelta,
    "content_block_stop": ContentBlockStop,
}
"""Every type of sequenced frame and its payload."""

_DECODERS: Final = {name: msgspec.json.Decoder(payload).decode for name, payload in EVENTS.items()}


def check_event(type: str, data: bytes) -> str | None:
    """What is wrong with the payload `data` (JSON) of an event, in one line; None if it is as published.

    Pure and quick enough for every event that is written. It never raises: a mismatch is logged, and the frame is
    sent all the same, so that a mistake in the contract makes no gap in a feed.
    """
    decode = _DECODERS.get(type)
    if decode is None:
        return f"type: {type[:100]} is not an event of this release"
    try:
        decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return problem_text(error, whole="data")
    return None
