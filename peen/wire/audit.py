"""Bodies of the REST API that tell what was asked of models, what they answered and what that used."""

from __future__ import annotations

from typing import Literal

from peen.wire.model import ToolDefinition
from peen.wire.rest import Answer, Image, Paged, ToolCall


class ModelMessage(Answer, frozen=True, kw_only=True):
    """A message as it went to the model or came from it. `is_error` is there on results of calls that failed.

    `images` stood behind the text, with their bytes.
    """

    role: Literal["user", "assistant", "tool", "system"]
    content: str
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    is_error: bool | None = None
    images: list[Image] | None = None


class FailedAttempt(Answer, frozen=True, kw_only=True):
    """An attempt that failed. `attempt` counts from 1; `delay_ms` went by before the next one, if there was one."""

    attempt: int
    reason: str
    error: str
    delay_ms: int | None = None
    started_at: str
    completed_at: str


class TokenUsage(Answer, frozen=True, kw_only=True):
    """Tokens as the provider reported them. What it did not report is left out: that is not zero."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_long_ttl: int | None = None
    total_attempts: int
    failed_attempts: list[FailedAttempt]


class _Billed(Answer, frozen=True, kw_only=True):
    """Amounts are decimal numbers as text. They mean something only where `cost_known` is true."""

    response_cost_amount: str
    retry_cost_amount: str
    billed_cost_amount: str
    cost_known: bool


class ModelRun(_Billed, frozen=True, kw_only=True):
    """All that one turn (or one summary of it) asked of a model.

    `response_messages` are the answers and the results of their calls so far; `response_text` and `response_thinking`
    those of the answer that completed the run, empty until then.
    """

    id: str
    session_id: str
    turn_id: str
    agent_run_id: str | None = None
    stage: Literal["turn", "child", "compaction"]
    model_reference: str
    connection_name: str
    requested_model_id: str
    response_model_id: str
    request_settings: dict[str, object]
    state: Literal["running", "completed", "failed", "cancelled", "interrupted"]
    response_text: str
    response_thinking: str
    finish_reason: str
    response_messages: list[ModelMessage]
    response_injections: list[ModelMessage]
    response_usage: TokenUsage
    failure_classification: str
    failure_detail: str
    started_at: str
    completed_at: str | None = None


class ModelRunPage(Paged, frozen=True, kw_only=True):
    model_runs: list[ModelRun]


class ModelCall(_Billed, frozen=True, kw_only=True):
    """One round: a request, with as many attempts as it took, and the answer.

    `request_messages` begin with the system prompt and are all that the model was given. Counts of tokens are 0 where
    the provider reported none; `response_usage` tells that apart.
    """

    id: str
    session_id: str
    model_run_id: str
    round: int
    request_messages: list[ModelMessage]
    request_tools: list[ToolDefinition]
    response_message: ModelMessage | None = None
    response_usage: TokenUsage
    retry_attempts: list[FailedAttempt]
    retry_attempt_count: int
    total_attempts: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    reasoning_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_long_ttl_tokens: int
    wasted_prompt_tokens: int
    wasted_completion_tokens: int
    wasted_total_tokens: int
    response_model_id: str
    finish_reason: str
    state: Literal["completed", "failed", "cancelled"]
    failure_classification: str
    failure_detail: str
    started_at: str
    completed_at: str | None = None


class ModelCallPage(Paged, frozen=True, kw_only=True):
    model_run: ModelRun
    calls: list[ModelCall]
