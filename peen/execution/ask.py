"""The model step: one answer, with as many attempts as the retry rules allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from msgspec import Raw

from peen.context.pictures import describe
from peen.context.projection import Conversation
from peen.entropy import Entropy
from peen.errors import ModelError
from peen.execution import limits
from peen.execution.attempts import Attempts
from peen.execution.blocks import MOST_BYTES, Blocks, Streaming, event
from peen.execution.decide import ModelOutput
from peen.execution.keeper import ContextKeeper
from peen.execution.pictures import Pictures
from peen.execution.requests import SentRequests
from peen.execution.steps import Done, Steps
from peen.model.fold import Answer, Fold
from peen.model.images import refused_images, takes_none
from peen.model.reasoning import REASONING_MISSED, REASONING_REFUSED, kept_reasoning, without_reasoning
from peen.model.refusal import TOO_LONG
from peen.model.retry import final_error, plan_retry, retry_reason
from peen.model.stream import ModelInfo, ModelRequest, Upstream
from peen.wire.launch import WorkerSettings
from peen.wire.model import ToolDefinition
from peen.wire.records import EventRecord, ImageRef, MessageRecord, ModelCallRecord, RefusedImage

log = structlog.get_logger(__name__)

_encode: Final = msgspec.json.encode

MAX_REASON: Final = 300
"""Characters of why an image was refused, as the note in its place says it."""
MAX_SHORTENED: Final = 2
"""How often a request that is too long is tried again with less."""


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """What stays the same over all rounds of one execution."""

    upstream: Upstream
    model: ModelInfo
    prompt: str
    tools: tuple[ToolDefinition, ...]
    settings: WorkerSettings
    reasoning_effort: str | None = None


class Asker:
    """Asks the model for one answer and shows it while it comes."""

    def __init__(
        self,
        setup: ModelSetup,
        *,
        keeper: ContextKeeper,
        blocks: Blocks,
        steps: Steps,
        sent: SentRequests,
        pictures: Pictures,
        entropy: Entropy,
    ) -> None:
        self._setup, self._keeper, self._blocks = setup, keeper, blocks
        self._conversation = keeper.conversation
        self._steps, self._sent, self._entropy = steps, sent, entropy
        self._pictures = pictures

    async def answer(self, step: str, turn_round: int) -> Done[ModelOutput]:
        """The outcome of round `turn_round`: a whole answer or, after the last attempt, why there is none.

        Each failed attempt leaves an audit record and, if another follows, a `provider.retry` event; blocks that
        it had opened are stopped, and its partial text never becomes part of the answer. A request that the provider
        refuses as too long is followed by a shorter one, `MAX_SHORTENED` times, and one that it refuses for the
        reasoning in it by one without, or for want of it by one with something in its place. `step` is the step that is
        carried out.
        """
        attempts = Attempts(
            step, tell=self._steps.note, entropy=self._entropy, sequence=lambda: self._steps.message_sequence
        )
        request, first = await self._request(), 0
        shortened = refused_up_to = 0

        async def show(pieces: list[EventRecord]) -> None:
            await self._steps.emit(pieces, attempts.news())

        streaming = Streaming(self._blocks, show)
        done: Done[ModelOutput] | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(streaming.run)
            attempt = 0
            while done is None:
                attempt += 1
                await attempts.begin(turn_round)
                try:
                    answer = await self._attempt(request, turn_round, streaming, attempts)
                except ModelError as error:
                    self._blocks.close()
                    attempts.fail(error)
                    if self._forget_reasoning(error):
                        has_less, refused_up_to = True, self._steps.message_sequence
                    elif error.kind == REASONING_MISSED:  # said once by an upstream, which sends another request then
                        has_less = True
                    else:
                        has_less = shortened < MAX_SHORTENED and self._shorten(error)
                        shortened += has_less
                    done = await self._after_failure(attempt, error, streaming, attempts.calls, has_less=has_less)
                    if has_less and done is None:
                        request, first = await self._request(), len(attempts.calls)
                else:
                    self._blocks.close()
                    attempts.complete(answer, response=self._kept_response(answer))
                    done = self._completed(answer)
            nursery.cancel_scope.cancel()
        # What was not shown yet commits with the answer, behind every piece that was.
        done.events = [*self._blocks.take(), *done.events]
        value, done.blobs = self._sent.save(request)
        done.recall, done.forget = self._sent.blobs, self._sent.forget_last
        attempts.keep_request(first, value)
        done.reasoning_refused_up_to = refused_up_to
        done.calls = attempts.calls
        return done

    async def _request(self) -> ModelRequest:
        return ModelRequest(
            model_id=self._setup.model.model_id,
            system=self._setup.prompt,
            messages=self._conversation.messages,
            tools=self._setup.tools,
            max_output_tokens=self._setup.settings.output_reserve_tokens,
            reasoning_effort=self._setup.reasoning_effort,
            images=await self._pictures.of(self._conversation.images),
        )

    def _shorten(self, error: ModelError) -> bool:
        """Whether another attempt with less makes sense: it was too long, and there was something to leave out."""
        if error.kind != TOO_LONG:
            return False
        dropped = self._keeper.refused()
        if dropped:
            log.warning("the provider refused a request as too long", dropped_messages=dropped)
        return dropped > 0

    def _forget_reasoning(self, error: ModelError) -> bool:
        """Whether the request was refused for its reasoning, which is left out from here on."""
        if error.kind != REASONING_REFUSED:
            return False
        model = self._setup.model
        without = partial(without_reasoning, upstream=model.connection_name, model=model.model_id)
        log.info("reasoning is not sent again, since the provider refused it", model=model.name)
        return self._conversation.change(without)

    async def _attempt(
        self, request: ModelRequest, turn_round: int, streaming: Streaming, attempts: Attempts
    ) -> Answer:
        fold = Fold(f"call_{turn_round}", taken=self._conversation.call_ids)
        idle_s = self._setup.settings.provider_idle_timeout_ms / 1000
        with trio.move_on_after(idle_s) as silence:
            async with self._setup.upstream.stream(request) as items:
                attempts.answered(items, fold)
                async for item in items:
                    silence.deadline = trio.current_time() + idle_s
                    self._blocks.feed(fold.add(item))
                    streaming.poke()
                    if self._blocks.waiting_bytes > MOST_BYTES:
                        silence.deadline = math.inf  # it is the store that is waited for, not the provider
                        await streaming.room()
                        silence.deadline = trio.current_time() + idle_s
        if silence.cancelled_caught:
            raise ModelError(f"the provider was silent for {idle_s:g} s", kind="silence", retryable=True)
        return fold.finish()

    async def _after_failure(
        self,
        attempt: int,
        error: ModelError,
        streaming: Streaming,
        calls: Sequence[ModelCallRecord],
        *,
        has_less: bool,
    ) -> Done[ModelOutput] | None:
        """How the step ends; None once it is time for another attempt, which may be one with less."""
        ceiling_ms = self._setup.settings.provider_retry_max_delay_ms
        if has_less:
            reason, delay_ms = error.kind, 0
        else:
            planned_ms = plan_retry(attempt, error, self._entropy.chance(), max_retry_after_ms=ceiling_ms)
            if planned_ms is None:
                last = final_error(attempt, error, max_retry_after_ms=ceiling_ms)
                refused = _refused(error, self._conversation)
                output = ModelOutput(error_kind=error.kind, error=f"{last}{self._about(error, refused)}")
                return Done(output=output, failed=True, refused_images=[said for _, said in refused])
            reason, delay_ms = retry_reason(error), planned_ms
        used_up = limits.refusal(
            self._steps.budget, calls, model=self._setup.model.name, upstreams=self._setup.settings.upstreams
        )
        if used_up is not None:
            return Done(output=ModelOutput(error_kind=limits.REASON, error=used_up), failed=True)
        log.info("model call failed, trying again", kind=error.kind, attempt=attempt, delay_ms=delay_ms)
        self._show_retry(attempt, reason, error, delay_ms, streaming)
        await trio.sleep(delay_ms / 1000)
        return None

    def _about(self, error: ModelError, refused: Sequence[tuple[ImageRef, RefusedImage]]) -> str:
        if self._conversation.images and takes_none(error):
            return (
                f" (the model {self._setup.model.name} takes no images, and this session holds some: choose another "
                "model; imageInput: false in the entry of its upstream says so before anything is sent)"
            )
        return _about(refused)

    def _show_retry(self, attempt: int, reason: str, error: ModelError, delay_ms: int, streaming: Streaming) -> None:
        status = error.http_status or 0
        retry: dict[str, object] = {"attempt": attempt, "reason": reason, "status": status, "delayMs": delay_ms}
        self._blocks.note(event("provider.retry", retry))
        streaming.poke()

    def _completed(self, answer: Answer) -> Done[ModelOutput]:
        output = ModelOutput(
            text=answer.text,
            thinking=answer.thinking,
            calls=list(answer.calls),
            finish_reason=answer.finish_reason,
            response_model=answer.response_model,
            usage=answer.usage,
            provider_reasoning=kept_reasoning(
                answer.reasoning, upstream=self._setup.upstream.name, model=self._setup.model.model_id
            ),
        )
        return Done(output=output, messages=[reply_message(output, self._setup.model.name)])

    def _kept_response(self, answer: Answer) -> Raw:
        """Text and thinking stand in the transcript; the audit keeps what does not."""
        self._keeper.reported(answer.usage.prompt)
        return Raw(
            _encode(
                {
                    "calls": len(answer.calls),
                    "textBytes": len(answer.text.encode()),
                    "truncated": answer.truncated,
                    "estimatedTokens": self._keeper.counted,
                }
            )
        )


def _refused(error: ModelError, conversation: Conversation) -> list[tuple[ImageRef, RefusedImage]]:
    """Images that the provider does not take, each with what is recorded of it."""
    if not conversation.images:
        return []
    reason = _cut(str(error))
    found = refused_images(error, conversation.messages)
    return [(image, RefusedImage(sha256=image.sha256, reason=reason)) for image in found]


def _about(refused: Sequence[tuple[ImageRef, RefusedImage]]) -> str:
    """What that means for the turns that follow."""
    if not refused:
        return ""
    names = ", ".join(f"{image.sha256[:12]} ({describe(image)})" for image, _ in refused)
    return f" (refused image {names}: a note stands in its place from now on)"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"


def reply_message(output: ModelOutput, model: str) -> MessageRecord:
    """The assistant message of an answer."""
    return MessageRecord(
        role="assistant",
        content=output.text,
        model=model,
        thinking=output.thinking or None,
        tool_calls=output.calls or None,
        provider_reasoning=output.provider_reasoning,
    )
