"""Golden frames of `/ws/v1`: an example of every frame, by the encoders that the program itself uses.

All of them belong to one story: somebody asks what a file says. Ids and times are fixed.
"""

from __future__ import annotations

from binascii import a2b_base64
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct, structs

from peen.ids import derived_id
from peen.wire import events
from peen.wire.client import MessageSend, SentImage, encode_client_frame
from peen.wire.feed import Completed, Failed, ack_frame, frame_bytes
from peen.wire.notice import Notice
from peen.wire.worker import SystemPrompt

SESSION: Final = "5e55105e-0000-4000-8000-000000000001"
REQUEST: Final = "4e90e570-0000-4000-8000-000000000002"
FRAME: Final = "f4a3ef4a-0000-4000-8000-000000000003"
ACK: Final = "acacacac-0000-4000-8000-000000000004"
SEQUENCE: Final = 42  # the same for all, so that a new type changes no other example
AT_MS: Final = 1_767_225_600_000
QUESTION: Final = "What does hello.txt say?"
ANSWER: Final = "It says: hello"
RESULT: Final = "1\thello\n"
CALL: Final = "call_0_0"
MODEL: Final = "scripted/demo"
WORKSPACE: Final = "/home/ada/project"

NOTICE: Final = Notice(
    id=derived_id("notice", UUID(SESSION).bytes, 1),
    type="ci.build.failed",
    source="api",
    summary="main is red: TestParse failed",
    data=Raw(b'{"run":1234}'),
    delivery="queue",
    created_at="2026-01-01T00:00:00.000Z",
)

EVENTS: Final[dict[str, Struct]] = {
    "userMessage.created": events.UserMessageCreated(message=QUESTION),
    "userMessage.queued": events.UserMessageQueued(message="And how long is it?"),
    "userMessage.delivered": events.UserMessageDelivered(message="And how long is it?"),
    "turn.started": events.TurnStarted(session_id=SESSION, model=MODEL, workspace=WORKSPACE),
    "turn.resumed": events.TurnResumed(execution_id=REQUEST, control_revision=3),
    "turn.completed": events.TurnCompleted(model=MODEL, text=ANSWER, finish_reason="stop"),
    "turn.failed": events.TurnFailed(reason="agentRun", error="the provider answered 500 (gave up after 11 attempts)"),
    "turn.cancelled": events.TurnCancelled(reason="stopped by the user"),
    "tool.use": events.ToolUse(call_id=CALL, name="readFile", arguments=Raw(b'{"path":"hello.txt"}')),
    "tool.result": events.ToolResult(call_id=CALL, name="readFile", content=RESULT, is_error=False),
    "provider.retry": events.ProviderRetry(attempt=1, reason="rate_limited", status=429, delay_ms=250),
    "notice.created": NOTICE,
    "session.events": events.SessionEvents(notices=[NOTICE], dropped=0),
    "content_block_start": events.ContentBlockStart(
        type="content_block_start", index=0, content_block=events.TextBlock()
    ),
    "content_block_delta": events.ContentBlockDelta(
        type="content_block_delta", index=0, delta=events.TextDelta(text="It says")
    ),
    "content_block_stop": events.ContentBlockStop(type="content_block_stop", index=0),
}
"""An example of each type of sequenced frame."""

PIXEL: Final = a2b_base64(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel, 70 bytes."""

_PARTS: Final[dict[str, Struct]] = {
    "userMessage.created.images": events.UserMessageCreated(
        message=QUESTION, images=[events.ImageNote(media_type="image/png", size_bytes=len(PIXEL))]
    ),
    "content_block_start.thinking": events.ContentBlockStart(
        type="content_block_start", index=1, content_block=events.ThinkingBlock()
    ),
    "content_block_start.tool_use": events.ContentBlockStart(
        type="content_block_start", index=2, content_block=events.ToolUseBlock(id=CALL, name="readFile")
    ),
    "content_block_start.tool_result": events.ContentBlockStart(
        type="content_block_start", index=3, content_block=events.ToolResultBlock(tool_use_id=CALL, is_error=False)
    ),
    "content_block_delta.thinking_delta": events.ContentBlockDelta(
        type="content_block_delta", index=1, delta=events.ThinkingDelta(text="The file must be read.")
    ),
    "content_block_delta.input_json_delta": events.ContentBlockDelta(
        type="content_block_delta", index=2, delta=events.InputJsonDelta(partial_json='{"path":"hel')
    ),
    "content_block_delta.json_partial": events.ContentBlockDelta(
        type="content_block_delta", index=3, delta=events.JsonPartial(text=RESULT)
    ),
}
"""The other kinds of blocks, pieces and messages: type, a dot, the kind."""


def socket_golden() -> dict[str, bytes]:
    """Name of the example -> the bytes of the frame."""
    missing = events.EVENTS.keys() - EVENTS.keys()
    if missing:
        raise LookupError(f"peen/wire/publish/golden.py has no example of {', '.join(sorted(missing))}")
    sequenced = {f"server.{name}": data for name, data in {**EVENTS, **_PARTS}.items()}
    return {**_client(), **{name: _sequenced(data) for name, data in sequenced.items()}, **_acks()}


def _client() -> dict[str, bytes]:
    plain = MessageSend(id=FRAME, session_id=SESSION, message=QUESTION)
    whole = MessageSend(
        id=FRAME,
        session_id=SESSION,
        message=QUESTION,
        model=MODEL,
        reasoning_effort="low",
        system_prompt=SystemPrompt(mode="append", content="Answer in one sentence."),
    )
    return {
        "client.message.send": encode_client_frame(plain, AT_MS),
        "client.message.send.settings": encode_client_frame(whole, AT_MS),
        "client.message.send.images": encode_client_frame(structs.replace(plain, images=(SentImage.of(PIXEL),)), AT_MS),
    }


def _sequenced(data: Struct) -> bytes:
    kind = next(kind for kind, payload in events.EVENTS.items() if type(data) is payload)
    id = derived_id("feed", UUID(SESSION).bytes, SEQUENCE)
    return frame_bytes(id, kind, Raw(msgspec.json.encode(data)), AT_MS, SESSION, REQUEST, SEQUENCE)


def _acks() -> dict[str, bytes]:
    def ack(data: Completed | Failed) -> bytes:
        return ack_frame(ACK, data, AT_MS, session_id=SESSION, request_id=REQUEST, triggered_by=FRAME)

    busy = Failed(
        code="SESSION_BUSY", message="a turn is running in this session; send the message again when it ended"
    )
    failed = Failed(code="INTERNAL_SERVER_ERROR", message="the turn failed", reason="agentRun")
    malformed = Failed(code="VALIDATION_FAILED", message="frame: is not one valid JSON value (malformed)")
    return {
        "server.message.completed": ack(Completed(queued=False)),
        "server.message.completed.queued": ack(Completed(queued=True)),
        "server.message.failed": ack_frame(ACK, busy, AT_MS, session_id=SESSION, triggered_by=FRAME),
        "server.message.failed.turn": ack(failed),
        "server.message.failed.malformed": ack_frame(ACK, malformed, AT_MS),
    }
