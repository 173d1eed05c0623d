"""The summarizer: one model call, with the attempts that the retry rules allow, within one limit of time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog
import trio
from msgspec import Raw

from peen.context.compact import Earlier, Source, stands_for, transcript
from peen.context.count import Gauge, message_tokens, text_tokens
from peen.entropy import Entropy
from peen.errors import ModelError
from peen.execution import limits
from peen.execution.attempts import Attempts, Tell
from peen.execution.decide import CompactOutput
from peen.execution.requests import SentRequests
from peen.execution.steps import Done, Steps
from peen.model.fold import Answer, Fold
from peen.model.refusal import TOO_LONG
from peen.model.retry import final_error, plan_retry
from peen.model.stream import ModelInfo, ModelRequest, Upstream
from peen.wire.launch import WorkerSettings
from peen.wire.records import CompactionRecord, MessageRecord, NewBlob, NewSummary
from peen.wire.summary import summary_text

log = structlog.get_logger(__name__)

MARGIN_TOKENS: Final = 64
"""Left free beside the estimate of a summarizer's request."""
LEAST_TOKENS: Final = 256
"""Of history that a summarizer is shown, whatever its window: below that there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class SummaryModel:
    """Who writes summaries and how: fixed for an execution when it starts."""

    upstream: Upstream
    model: ModelInfo
    prompt: str
    max_output_tokens: int
    timeout_ms: int


@dataclass(slots=True)
class _Asking:
    """What was asked so far. Each request that differs is a round of its own."""

    attempts: Attempts
    requests: list[SentRequests] = field(default_factory=list)
    blobs: list[NewBlob] = field(default_factory=list)
    first: int = 0
    """Number of the first call with the latest request."""
    value: bytes = b""

    def recall(self, hashes: Collection[bytes]) -> list[NewBlob]:
        return [blob for request in self.requests for blob in request.blobs(hashes)]

    def forget(self) -> None:
        for request in self.requests:
            request.forget_last()


class Summarizer:
    """Asks a model for summaries. What it says is shown to nobody; its calls are in the audit."""

    def __init__(
        self,
        setup: SummaryModel,
        *,
        steps: Steps,
        gauge: Gauge,
        settings: WorkerSettings,
        known_blobs: set[bytes],
        entropy: Entropy,
    ) -> None:
        self._setup, self._steps, self._gauge, self._settings = setup, steps, gauge, settings
        self._known_blobs, self._entropy = known_blobs, entropy

    @property
    def output_tokens(self) -> int:
        """The most that a summary may have."""
        return self._setup.max_output_tokens

    async def summarize(
        self, source: Source, earlier: Earlier | None, turn_round: int, *, step: str, tell: Tell
    ) -> Done[CompactOutput]:
        """A summary of `source` and of the one before it, or why there is none: that is an outcome, not an error.

        `step` is the one that this is done for; `tell` saves how far it has come.
        """
        asking = _Asking(Attempts(step, tell=tell, entropy=self._entropy, sequence=lambda: source.to_sequence))
        began_ms = self._entropy.now_ms()
        outcome: Answer | ModelError
        with trio.move_on_after(self._setup.timeout_ms / 1000) as limit:
            outcome = await self._ask(asking, source, earlier, turn_round, tell)
        if limit.cancelled_caught:
            text = f"no summary within {self._setup.timeout_ms / 1000:g} s (PEEN_COMPACTION_TIMEOUT)"
            outcome = ModelError(text, kind="timeout", retryable=False)
            if asking.attempts.is_under_way:
                asking.attempts.give_up(outcome)
        self._keep_request(asking)
        summary, output = self._judge(outcome, source, earlier)
        record = CompactionRecord(
            model=self._setup.model.name,
            prompt=self._setup.prompt,
            max_output_tokens=self._setup.max_output_tokens,
            timeout_ms=self._setup.timeout_ms,
            calls=asking.attempts.calls,
            summary=summary,
            finish_reason="" if isinstance(outcome, ModelError) else outcome.finish_reason,
            failure_kind=outcome.kind if isinstance(outcome, ModelError) else "" if summary else output.outcome,
            failure_detail=output.error,
            started_at_ms=began_ms,
            completed_at_ms=self._entropy.now_ms(),
        )
        return Done(
            output=output,
            failed=summary is None,
            blobs=asking.blobs,
            recall=asking.recall,
            forget=asking.forget,
            compaction=record,
        )

    async def _ask(
        self, asking: _Asking, source: Source, earlier: Earlier | None, turn_round: int, tell: Tell
    ) -> Answer | ModelError:
        setup, attempts = self._setup, asking.attempts
        fixed = text_tokens(setup.prompt)
        room = self._gauge.counted(self._gauge.window - setup.max_output_tokens - MARGIN_TOKENS) - fixed
        request = self._request(source, earlier, max(room, LEAST_TOKENS))
        attempt, delay_ms, is_new = 0, 0, True
        while (used_up := self._used_up(asking)) is None:
            await trio.sleep(delay_ms / 1000)
            if is_new:
                self._send(asking, request)
            attempt, is_new = attempt + 1, False
            await attempts.begin(len(asking.requests) - 1)
            try:
                answer = await self._attempt(asking, request, turn_round)
            except ModelError as error:
                attempts.fail(error)
                counted = message_tokens(request.messages[0])
                if error.kind == TOO_LONG and len(asking.requests) == 1 and counted // 2 >= LEAST_TOKENS:
                    log.warning("the summarizer's request was too long, half of it is next")
                    request = self._request(source, earlier, counted // 2)
                    attempt, delay_ms, is_new = 0, 0, True
                    continue
                ceiling_ms = self._settings.provider_retry_max_delay_ms
                planned_ms = plan_retry(attempt, error, self._entropy.chance(), max_retry_after_ms=ceiling_ms)
                if planned_ms is None:
                    return final_error(attempt, error, max_retry_after_ms=ceiling_ms)
                delay_ms = planned_ms
                if (news := attempts.news()) is not None:
                    await tell(news)
            else:
                said = {"text": answer.text, "truncated": answer.truncated}
                attempts.complete(answer, response=Raw(msgspec.json.encode(said)))
                self._gauge.reported(fixed + message_tokens(request.messages[0]), answer.usage.prompt)
                return answer
        return ModelError(used_up, kind=limits.REASON, retryable=False)

    def _used_up(self, asking: _Asking) -> str | None:
        """Why nothing more may be asked."""
        return limits.refusal(
            self._steps.budget, asking.attempts.calls, model=self._setup.model.name, upstreams=self._settings.upstreams
        )

    def _request(self, source: Source, earlier: Earlier | None, room: int) -> ModelRequest:
        text = transcript(source.rows, None if earlier is None else earlier.text, most=room)
        return ModelRequest(
            model_id=self._setup.model.model_id,
            system=self._setup.prompt,
            messages=[MessageRecord(role="user", content=text)],
            max_output_tokens=self._setup.max_output_tokens,
        )

    async def _attempt(self, asking: _Asking, request: ModelRequest, turn_round: int) -> Answer:
        fold = Fold(f"summary_{turn_round}", taken=())
        idle_s = self._settings.provider_idle_timeout_ms / 1000
        with trio.move_on_after(idle_s) as silence:
            async with self._setup.upstream.stream(request) as items:
                asking.attempts.answered(items, fold)
                async for item in items:
                    silence.deadline = trio.current_time() + idle_s
                    fold.add(item)
        if silence.cancelled_caught:
            raise ModelError(f"the provider was silent for {idle_s:g} s", kind="silence", retryable=True)
        return fold.finish()

    def _send(self, asking: _Asking, request: ModelRequest) -> None:
        self._keep_request(asking)
        saved = SentRequests(self._known_blobs, self._setup.model)
        asking.value, blobs = saved.save(request)
        asking.requests.append(saved)
        asking.blobs += blobs
        asking.first = len(asking.attempts.calls)

    def _keep_request(self, asking: _Asking) -> None:
        """The first call of a request holds it."""
        if asking.first < len(asking.attempts.calls):
            asking.attempts.keep_request(asking.first, asking.value)

    def _judge(
        self, outcome: Answer | ModelError, source: Source, earlier: Earlier | None
    ) -> tuple[NewSummary | None, CompactOutput]:
        if isinstance(outcome, ModelError):
            return None, CompactOutput(outcome="failed", error=str(outcome))
        if not outcome.text.strip():
            return None, CompactOutput(outcome="empty", error="the summarizer said nothing")
        if outcome.truncated:
            error = "the summary was cut by its limit (PEEN_COMPACTION_MAX_OUTPUT_TOKENS)"
            return None, CompactOutput(outcome="failed", error=error)
        missing = stands_for(earlier, source.rows)
        tokens = text_tokens(summary_text(outcome.text, "", missing))
        replaced = source.tokens + (0 if earlier is None else text_tokens(earlier.text))
        if tokens >= replaced:
            text = f"the summary has {tokens} tokens, no less than the {replaced} that it would replace"
            return None, CompactOutput(outcome="useless", error=text)
        summary = NewSummary(
            supersedes=0 if earlier is None else earlier.sequence,
            from_sequence=source.rows[0].sequence if earlier is None else earlier.from_sequence,
            to_sequence=source.to_sequence,
            message_count=len(source.rows),
            missing_messages=missing.messages,
            missing_requests=missing.requests,
            text=outcome.text,
            input_tokens=replaced,
            summary_tokens=tokens,
        )
        number = summary.supersedes + 1
        return summary, CompactOutput(
            outcome="summarized", summary=number, to_sequence=source.to_sequence, summary_tokens=tokens
        )
