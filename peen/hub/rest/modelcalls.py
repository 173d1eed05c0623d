"""Calls of a model as they were made: requests are rebuilt from what the store keeps once, answers are found there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, cast
from uuid import UUID

import msgspec

from peen.context.projection import Conversation
from peen.hub.rest.usage import failed_attempts, token_usage
from peen.ids import SessionNo, derived_id
from peen.store import messages, snapshots
from peen.store.audit import CallRow, RunRow
from peen.store.database import Reader
from peen.store.sessions import SessionRow
from peen.wire.audit import ModelCall, ModelMessage
from peen.wire.model import ToolDefinition
from peen.wire.rest import ToolCall, rfc3339
from peen.wire.worker import HistoryMessage, MessageRecord

UNPRICED: Final = "0"
"""Every amount of this release, which knows no prices."""

_decode_tools: Final = msgspec.json.Decoder(list[ToolDefinition]).decode


class TurnRequests:
    """The requests of one turn, rebuilt as its worker made them: prompt, tools, and the conversation so far.

    The conversation is what stood before the turn, and then what the turn itself has added.
    """

    def __init__(self, db: Reader, session_no: SessionNo, turn_no: int) -> None:
        own = messages.of_turn(db, turn_no)
        self._replies = [row for row in own if row.message.role == "assistant"]
        first, last = (own[0].sequence, own[-1].sequence) if own else (1, 0)
        history, _ = messages.history(db, session_no, after=0, up_to=last, max_bytes=sys.maxsize)
        self._rows = [row for row in history if row.turn == turn_no or row.sequence < first]
        prompt, tools = snapshots.of_turn(db, turn_no)
        self._system = [ModelMessage(role="system", content=prompt)] if prompt else []
        self.tools = _decode_tools(tools or "[]")

    def messages(self, sequence: int) -> list[ModelMessage]:
        """What the model was given when `sequence` was the session's last message."""
        conversation = Conversation()
        conversation.add_history(row for row in self._rows if row.sequence <= sequence)
        return [*self._system, *map(_as_sent, conversation.messages)]

    def reply(self, sequence: int) -> ModelMessage | None:
        """The answer to that request, if it was stored."""
        return next((model_message(row.message) for row in self._replies if row.sequence > sequence), None)


def model_calls(
    session: SessionRow, run: RunRow, requests: TurnRequests, rounds: Iterable[Sequence[CallRow]]
) -> Iterator[ModelCall]:
    """Each round of `run`, one when it is asked for: a request may be large."""
    for attempts in rounds:
        yield _model_call(session, run, requests, attempts)


def model_message(record: MessageRecord) -> ModelMessage:
    """A stored message with all that came with it."""
    calls = record.tool_calls
    return ModelMessage(
        role=record.role,
        content=record.content,
        thinking=record.thinking,
        tool_calls=[ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in calls]
        if calls
        else None,
        tool_call_id=record.tool_call_id,
        is_error=True if record.is_error else None,
    )


def messages_of(rows: Iterable[HistoryMessage]) -> list[ModelMessage]:
    return [model_message(row.message) for row in rows]


def _as_sent(record: MessageRecord) -> ModelMessage:
    """Without reasoning: what of it goes back is for its own provider alone, and no text."""
    return msgspec.structs.replace(model_message(record), thinking=None)


def _model_call(session: SessionRow, run: RunRow, requests: TurnRequests, attempts: Sequence[CallRow]) -> ModelCall:
    last = attempts[-1]
    usage = token_usage(attempts, [last])
    failed = [attempt for attempt in attempts if attempt.state != "completed"]
    wasted = token_usage(failed, failed)
    retried = failed_attempts(attempts[:-1], then=last)
    return ModelCall(
        id=derived_id("modelCall", run.id, last.round),
        session_id=session.uuid,
        model_run_id=str(UUID(bytes=run.id)),
        round=last.round,
        request_messages=requests.messages(last.request_sequence),
        request_tools=requests.tools,
        response_message=requests.reply(last.request_sequence) if last.state == "completed" else None,
        response_usage=usage,
        retry_attempts=retried,
        retry_attempt_count=len(retried),
        total_attempts=len(attempts),
        prompt_tokens=usage.prompt or 0,
        completion_tokens=usage.completion or 0,
        total_tokens=usage.total or 0,
        reasoning_tokens=usage.reasoning or 0,
        cache_read_tokens=usage.cache_read or 0,
        cache_write_tokens=usage.cache_write or 0,
        cache_write_long_ttl_tokens=0,
        wasted_prompt_tokens=wasted.prompt or 0,
        wasted_completion_tokens=wasted.completion or 0,
        wasted_total_tokens=wasted.total or 0,
        response_model_id=last.response_model or "",
        finish_reason=last.finish_reason or "",
        state=cast('Literal["completed", "failed", "cancelled"]', last.state),
        failure_classification=last.failure_kind or "",
        failure_detail=last.failure_detail or "",
        response_cost_amount=UNPRICED,
        retry_cost_amount=UNPRICED,
        billed_cost_amount=UNPRICED,
        cost_known=False,
        started_at=rfc3339(attempts[0].started_at_ms),
        completed_at=rfc3339(last.completed_at_ms),
    )
