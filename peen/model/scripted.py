"""The `scripted` upstream: models that answer from a script, and the demo model that obeys plain requests.

It needs no key and no network. Which round plays follows from the request's messages alone; only the number of
faults that a round has had already is remembered, and only by this process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec
import trio
from msgspec import Struct

from peen.errors import ModelError
from peen.model import demo
from peen.model.conversation import Position, describe_images, position, to_summarize
from peen.model.refusal import TOO_LONG, is_too_long
from peen.model.script import Fault, ModelScript, Round, Script
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    ModelInfo,
    ModelRequest,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from peen.model.strict import strict_request_check
from peen.wire.records import Usage

DEMO_MODEL: Final = "demo"
DEMO_CONTEXT_TOKENS: Final = 131_072
_CHARACTERS_PER_TOKEN: Final = 4
_LAST_RESULT: Final = "{lastResult}"
_IMAGES: Final = "{images}"


class Performance(Struct, frozen=True):
    """What one request gets: the answer, where in the script it stands, and the fault of this attempt."""

    request: ModelRequest
    answer: Round
    where: Position
    fault: Fault | None

    @property
    def pauses(self) -> bool:
        """Whether it waits between its pieces, or for ever behind some of them."""
        silent = self.fault is not None and self.fault.kind == "silence"
        waits = any(piece.pause_ms or piece.stop == "silence" for piece in self.answer.raw or ())
        return silent or waits or bool(self.answer.delay_ms or self.answer.piece_delay_ms)

    async def answer_status(self) -> None:
        """First of all. Raises: ModelError if the script answers with a status in place of a stream."""
        if self.fault is not None and self.fault.kind == "status":
            await trio.sleep(self.answer.delay_ms / 1000)
            raise _status_error(self.fault)

    async def play(self) -> AsyncGenerator[StreamEvent, None]:
        """Then the events of the stream. Raises: ModelError for the provider's own error in it."""
        answer, fault = self.answer, self.fault
        pieces = answer_pieces(answer, self.where)
        if answer.delay_ms:
            await trio.sleep(answer.delay_ms / 1000)
        for number, piece in enumerate(pieces):
            if fault is not None and number >= fault.after_pieces:
                break
            if number and answer.piece_delay_ms:
                await trio.sleep(answer.piece_delay_ms / 1000)
            yield piece
        if fault is not None:
            await _break_stream(fault)
            return
        yield UsageReported(answer.usage if answer.usage is not None else _estimate(self.request, answer))
        reason = answer.finish_reason or ("tool_calls" if answer.calls else "stop")
        yield Finished(reason=reason, response_model=self.request.model_id)


class ScriptedUpstream:
    """Plays `script`, and the demo model too where `with_demo` is set.

    Raises: ValueError if the script has a model called like the demo.
    """

    def __init__(self, name: str, script: Script | None, *, with_demo: bool, image_input: bool = True) -> None:
        if with_demo and script is not None and DEMO_MODEL in script.models:
            raise ValueError(f"{script.source}: the model id {DEMO_MODEL!r} is taken by the built-in demo; rename it")
        self._name, self._script = name, script
        self._with_demo, self._image_input = with_demo, image_input
        self._faults_had: dict[tuple[str, Position, int], int] = {}

    @property
    def name(self) -> str:
        return self._name

    async def discover(self) -> list[ModelInfo]:
        await trio.lowlevel.checkpoint()
        models = [
            self._info(model_id, model.context_window, self._image_input)
            for model_id, model in (self._script.models if self._script is not None else {}).items()
        ]
        if self._with_demo:
            models.append(self._info(DEMO_MODEL, DEMO_CONTEXT_TOKENS, self._image_input))
        return models

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        await trio.lowlevel.checkpoint()  # the only one of an instant answer: it can be cancelled, and costs no more
        strict_request_check(request)
        performance = self.perform(request)
        if performance.answer.raw is not None:
            raise _script_ended("a `raw` round is the bytes of a provider: only `peen dev upstream` plays it")
        await performance.answer_status()
        async with aclosing(performance.play()) as events:
            yield events

    def perform(self, request: ModelRequest) -> Performance:
        """What this request gets; it counts as an attempt. Raises: ModelError if the script has nothing for it."""
        where = position(request.messages)
        answer = self._round(request, where)
        return Performance(request, answer, where, self._fault_now(request, where, answer))

    def _info(self, model_id: str, context_window_tokens: int | None, image_input: bool) -> ModelInfo:
        return ModelInfo(
            name=f"{self._name}/{model_id}",
            connection_name=self._name,
            model_id=model_id,
            context_window_tokens=context_window_tokens,
            image_input=image_input,
        )

    def _round(self, request: ModelRequest, where: Position) -> Round:
        if self._with_demo and request.model_id == DEMO_MODEL:
            return demo.answer(request)
        model = self._script.models.get(request.model_id) if self._script is not None else None
        if self._script is None or model is None:
            raise ModelError(
                f"upstream {self._name!r} has no model {request.model_id!r}",
                kind="invalid_request",
                retryable=False,
                status=404,
            )
        if model.refuse_over is not None and _request_tokens(request) > model.refuse_over:
            raise ModelError(
                f"the request has {_request_tokens(request)} tokens, more than the maximum context length of "
                f"{model.refuse_over}",
                kind=TOO_LONG,
                retryable=False,
                status=400,
            )
        lines = to_summarize(request.messages)
        if lines is not None:
            return demo.summary(lines) if model.summary is None else model.summary
        found = _scripted_round(model, where, f"{self._script.source}: model {request.model_id!r}")
        text = found.text
        if _LAST_RESULT in text:
            results = [message.content for message in request.messages if message.role == "tool"]
            text = text.replace(_LAST_RESULT, results[-1] if results else "")
        if _IMAGES in text:
            seen = [image for message in request.messages for image in message.images]
            text = text.replace(_IMAGES, describe_images(seen) or "none")
        return found if text is found.text else msgspec.structs.replace(found, text=text)

    def _fault_now(self, request: ModelRequest, where: Position, answer: Round) -> Fault | None:
        fault = answer.fault
        if fault is None or fault.times is None:
            return fault
        # Conversations share this object where many are served; what they say tells them apart.
        conversation = hash(tuple(message.content for message in request.messages))
        key = (request.model_id, where, conversation)
        had = self._faults_had.get(key, 0)
        if had >= fault.times:
            return None
        self._faults_had[key] = had + 1
        return fault


async def _break_stream(fault: Fault) -> None:
    """Return for a cut, never for silence: there the caller's own idle limit is what ends the wait."""
    if fault.kind == "silence":
        await trio.sleep_forever()
    if fault.kind == "error":
        raise ModelError(
            fault.message or "the scripted provider is overloaded",
            kind="server_error",
            retryable=True,
            retry_after_ms=_retry_after_ms(fault),
        )


def answer_pieces(answer: Round, where: Position) -> list[StreamEvent]:
    """The answer as it is streamed, without usage and end; the start and the stop of a call are pieces as well."""
    pieces: list[StreamEvent] = [ThinkingDelta(part) for part in _chunks(answer.thinking, answer.chunk)]
    pieces += [TextDelta(part) for part in _chunks(answer.text, answer.chunk)]
    for index, call in enumerate(answer.calls):
        call_id = f"call_{where.turn}_{where.round}_{index}" if call.id is None else call.id
        given = call.arguments
        text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        pieces.append(CallStarted(index=index, id=call_id, name=call.name))
        pieces += [CallDelta(index=index, json=part) for part in _chunks(text, answer.chunk)]
        pieces.append(CallStopped(index=index))
    return pieces


def _chunks(text: str, size: int | None) -> list[str]:
    if not text:
        return []
    return [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]


def _scripted_round(model: ModelScript, where: Position, subject: str) -> Round:
    turn = model.turn_at(where.turn)
    if turn is None:
        raise _script_ended(
            f"{subject} has {len(model.turns)} turns and message {where.turn + 1} of the conversation came; "
            "add a turn or set repeatLastTurn: true"
        )
    found = turn.round_at(where.round)
    if found is None:
        raise _script_ended(
            f"{subject}: turns[{min(where.turn, len(model.turns) - 1)}] has {turn.length} rounds and was asked for "
            f"round {where.round + 1}; add a round without calls to end the turn"
        )
    return found


def _script_ended(problem: str) -> ModelError:
    return ModelError(problem, kind="script_ended", retryable=False, unsent=True)


def _status_error(fault: Fault) -> ModelError:
    status = 500 if fault.status is None else fault.status
    kind = "rate_limited" if status == 429 else "server_error" if status >= 500 else "invalid_request"
    if kind == "invalid_request" and is_too_long(fault.message or ""):
        kind = TOO_LONG
    return ModelError(
        fault.message or f"the scripted provider answered with status {status}",
        kind=kind,
        retryable=status == 429 or status >= 500,
        status=status,
        retry_after_ms=_retry_after_ms(fault),
    )


def _retry_after_ms(fault: Fault) -> int | None:
    return None if fault.retry_after is None else round(fault.retry_after * 1000)


def _request_tokens(request: ModelRequest) -> int:
    texts = len(request.system) + sum(len(message.content) for message in request.messages)
    tools = sum(len(tool.name) + len(tool.description) + len(bytes(tool.parameters)) for tool in request.tools)
    calls = [call for message in request.messages for call in message.tool_calls or ()]
    return _tokens(texts + tools + sum(len(call.name) + len(bytes(call.arguments)) for call in calls))


def _estimate(request: ModelRequest, answer: Round) -> Usage:
    written = len(answer.text) + len(answer.thinking) + sum(len(str(call.arguments)) for call in answer.calls)
    return Usage(prompt=_request_tokens(request), completion=_tokens(written))


def _tokens(characters: int) -> int:
    return -(-characters // _CHARACTERS_PER_TOKEN)
