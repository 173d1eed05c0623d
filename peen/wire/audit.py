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


class Tokens(Answer, frozen=True, kw_only=True):
    """Tokens as the provider reported them. What it did not report is left out: that is not zero."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


class FailedAttempt(Answer, frozen=True, kw_only=True):
    """An attempt that brought no answer. `attempt` counts from 1 within its round.

    `reason` is the kind of its failure; `cancelled` if the turn ended meanwhile by a Stop or a failure of its own,
    `interrupted` if its worker or the controller did. `status` is the HTTP status that it was answered with, if it was.
    `streamed` says that some of the answer had come, which in a turn reached the feed; it is left out where nobody
    knows. `tokens` were reported before it ended. `delay_ms` went by before the next attempt, if there was one that
    followed it without a break of the turn.
    """

    attempt: int
    reason: str
    error: str
    status: int | None = None
    streamed: bool | None = None
    tokens: Tokens
    delay_ms: int | None = None
    started_at: str
    completed_at: str


class TokenUsage(Answer, frozen=True, kw_only=True):
    """Tokens of answers, as the provider reported them. What it did not report is left out: that is not zero.

    `wasted_prompt`, `wasted_completion` and `wasted_total` are the sums over `failed_attempts`.
    """

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_long_ttl: int | None = None
    total_attempts: int
    failed_attempts: list[FailedAttempt]
    wasted_prompt: int | None = None
    wasted_completion: int | None = None
    wasted_total: int | None = None


class _Billed(Answer, frozen=True, kw_only=True):
    """Amounts are decimal numbers of US dollars, as text, at the prices of the time.

    `cost_known` is false if some attempt may have cost more than its part of them: the price or the tokens are unknown.
    """

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

    `request_messages` begin with the system prompt and are all that the model was given. Counts of tokens are those of
    the answer, 0 where there is none or the provider reported none; `response_usage` tells that apart. Those that were
    wasted are the sums over `response_usage.failed_attempts`.
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
