"""Calls of a model as they were made: requests as they were saved, answers as they stand in the transcript."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, cast
from uuid import UUID

import msgspec

from peen.context.projection import Conversation
from peen.execution.requests import as_sent
from peen.hub.rest.costs import costs_of
from peen.hub.rest.usage import failed_attempts, token_usage
from peen.ids import SessionNo, derived_id
from peen.model.stream import ModelInfo
from peen.store import audit, compactions, messages, snapshots
from peen.store.audit import CallRow, RunRow
from peen.store.blobs.decode import decode, earlier_values
from peen.store.blobs.rows import Blobs
from peen.store.database import Reader
from peen.store.sessions import SessionRow
from peen.wire.audit import ModelCall, ModelMessage
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord
from peen.wire.rest import Image, ToolCall, rfc3339
from peen.wire.turncalls import HistoryMessage

SUMMARIZING: Final = "compaction"
"""Stage of a run whose answers are kept by the audit itself."""

_decode_tools: Final = msgspec.json.Decoder(list[ToolDefinition]).decode


class SentRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A saved request, as `peen.execution.requests` writes it."""

    system: str
    messages: list[MessageRecord]
    tools: list[ToolDefinition] = []


_decode_sent: Final = msgspec.json.Decoder(SentRequest).decode


class RunRequests:
    """The requests of one model run.

    One whose call was cut off was not saved by its worker: it is rebuilt from the prompt and the transcript, what stood
    before the turn and then what the turn itself has added, as the worker makes them.
    """

    def __init__(self, db: Reader, blobs: Blobs, session_no: SessionNo, run: RunRow) -> None:
        self._db, self._run, self._fetch = db, run, blobs.fetcher(db, session_no)
        connection, _, model_id = run.model.partition("/")
        self._model = ModelInfo(name=run.model, connection_name=connection, model_id=model_id)
        self._session_no = session_no
        turn_no = run.turn_no
        self._own = messages.of_turn(db, turn_no)
        self._replies = [row for row in self._own if row.message.role == "assistant"]

    def of_round(self, attempts: Sequence[CallRow]) -> SentRequest:
        """What the model was given in this round, by its last attempt."""
        last = attempts[-1]
        if any(attempt.has_request for attempt in attempts):
            latest = audit.requests(self._db, self._run.no, up_to_round=last.round, limit=1)
            depth = earlier_values(latest[0])
            chain = audit.requests(self._db, self._run.no, up_to_round=last.round, limit=depth + 1)
            return _decode_sent(decode(chain, self._fetch))
        if self._run.stage == SUMMARIZING:
            return SentRequest("", [])  # it was cut off, and nobody else knows what it was about to say
        return self._rebuilt(last.request_sequence, last.started_at_ms)

    def _rebuilt(self, sequence: int, at_ms: int) -> SentRequest:
        """What a worker makes of the transcript when `sequence` is the session's last message, at that time.

        Messages that it has left out, because they were too much, stand in it all the same.
        """
        first = self._own[0].sequence if self._own else 1
        summary = compactions.up_to(self._db, self._session_no, first - 1, made_by_ms=at_ms)
        history, _ = messages.history(
            self._db, self._session_no, after=0 if summary is None else summary.to_sequence, up_to=sequence,
            max_bytes=sys.maxsize,
        )  # fmt: skip
        conversation = Conversation()
        if summary is not None:
            conversation.summarize(summary.summary, through=summary.to_sequence)
        conversation.add_history(row for row in history if row.turn == self._run.turn_no or row.sequence < first)
        prompt, tools = snapshots.of_turn(self._db, self._run.turn_no)
        sent = [as_sent(message, self._model) for message in conversation.messages]
        return SentRequest(prompt or "", sent, _decode_tools(tools or "[]"))

    def reply(self, call: CallRow) -> ModelMessage | None:
        """The answer that this call got, if it was stored."""
        sequence = call.request_sequence
        if self._run.stage == SUMMARIZING:
            said = summary_said(self._db, self._run, up_to_round=call.round)
            return None if said is None else ModelMessage(role="assistant", content=said)
        return next((model_message(row.message) for row in self._replies if row.sequence > sequence), None)


class _Said(msgspec.Struct):
    text: str = ""


_decode_said: Final = msgspec.json.Decoder(_Said | None).decode


def summary_said(db: Reader, run: RunRow, *, up_to_round: int | None = None) -> str | None:
    """What a summarizer has answered, in its own words; None if it has not."""
    said = _decode_said(audit.last_response(db, run.no, up_to_round=up_to_round))
    return None if said is None else said.text


def model_calls(
    session: SessionRow, run: RunRow, requests: RunRequests, rounds: Iterable[Sequence[CallRow]]
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
        images=[Image(media_type=ref.media_type, size_bytes=ref.size_bytes, sha256=ref.sha256) for ref in record.images]
        or None,
    )


def messages_of(rows: Iterable[HistoryMessage]) -> list[ModelMessage]:
    return [model_message(row.message) for row in rows]


def _model_call(session: SessionRow, run: RunRow, requests: RunRequests, attempts: Sequence[CallRow]) -> ModelCall:
    last = attempts[-1]
    sent = requests.of_round(attempts)
    system = [ModelMessage(role="system", content=sent.system)] if sent.system else []
    usage = token_usage(attempts)
    costs = costs_of(attempts)
    retried = failed_attempts(attempts[:-1])
    return ModelCall(
        id=derived_id("modelCall", run.id, last.round),
        session_id=session.uuid,
        model_run_id=str(UUID(bytes=run.id)),
        round=last.round,
        request_messages=[*system, *map(model_message, sent.messages)],
        request_tools=sent.tools,
        response_message=requests.reply(last) if last.state == "completed" else None,
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
        wasted_prompt_tokens=usage.wasted_prompt or 0,
        wasted_completion_tokens=usage.wasted_completion or 0,
        wasted_total_tokens=usage.wasted_total or 0,
        response_model_id=last.response_model or "",
        finish_reason=last.finish_reason or "",
        state=cast('Literal["completed", "failed", "cancelled"]', last.state),
        failure_classification=last.failure_kind or "",
        failure_detail=last.failure_detail or "",
        response_cost_amount=costs.response,
        retry_cost_amount=costs.retry,
        billed_cost_amount=costs.billed,
        cost_known=costs.known,
        started_at=rfc3339(attempts[0].started_at_ms),
        completed_at=rfc3339(last.completed_at_ms),
    )
