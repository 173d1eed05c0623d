"""The model and the tools of a simulated world: both keep a ledger of everything that reached them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
import trio
from engine_kit import MODEL_ID, Attempt, Said, Work, says

from peen.context.count import fixed_tokens, message_tokens
from peen.errors import ModelError
from peen.model.conversation import to_summarize
from peen.model.demo import summary
from peen.model.stream import CallDelta, Finished, ModelInfo, ModelRequest, StreamEvent, UsageReported
from peen.model.strict import strict_request_check
from peen.session.resumption import NOTE
from peen.tool.base import Tool, ToolContext, ToolError
from peen.wire.records import MessageRecord, Usage

NAME: Final = "up"
MODEL: Final = f"{NAME}/{MODEL_ID}"

SUMMARY: Final = "summary"
"""What a summarizer works on; its answer names every message of the user."""
PROBE: Final = "probe"
"""How messages begin that only find out whether a session still works; every script answers them."""
_PAUSED: Final = NOTE.partition("{")[0]
"""How the note of a pause begins, which stands in the middle of a turn."""

_JOB_ID: Final = re.compile(r'"jobId":"([0-9a-f-]{36})"')

Round = Sequence[Attempt]
"""The attempts of one round: all but the last one fail."""
Script = Mapping[str, Sequence[Round]]
"""The rounds that answer a message, by its text; none are one plain answer. Other messages join what is going on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One provider request. `turn_text` is the message that it works on."""

    at_s: float
    turn_text: str
    messages: list[MessageRecord]


@dataclass(slots=True)
class ToolRun:
    """One run of a tool; `label` is unique in a scenario."""

    label: str
    is_effect: bool
    began_s: float
    is_done: bool = False


@dataclass
class Ledger:
    """What happened outside of the store, over all lives and workers."""

    asked: list[Asked] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    runs: list[ToolRun] = field(default_factory=list)
    open_streams: int = 0
    running_tools: int = 0


class SimUpstream:
    """Answers from a script, by the message that is worked on and the rounds it has had; refuses what is not strict."""

    name = NAME

    def __init__(self, script: Script, ledger: Ledger) -> None:
        self._script, self._ledger = script, ledger
        self._attempts: dict[tuple[str, int], int] = {}

    async def discover(self) -> list[ModelInfo]:
        await trio.lowlevel.checkpoint()
        return [ModelInfo(name=MODEL, connection_name=NAME, model_id=MODEL_ID)]

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        await trio.lowlevel.checkpoint()
        try:
            strict_request_check(request)
        except ModelError as refusal:
            self._ledger.refused.append(str(refusal))
            raise
        for image in (image for message in request.messages for image in message.images):
            if hashlib.sha256(request.images.get(image.sha256, b"")).hexdigest() != image.sha256:
                self._ledger.refused.append(f"the bytes of the image {image.sha256} are missing or others")
        lines = to_summarize(request.messages)
        text, number = (SUMMARY, 0) if lines is not None else self._place(request)
        self._ledger.asked.append(Asked(trio.current_time(), text, list(request.messages)))
        attempt = says(summary(lines).text) if lines is not None else about_jobs(self._attempt(text, number), request)
        self._ledger.open_streams += 1
        try:
            async with aclosing(_play(attempt, counted(request))) as events:
                yield events
        finally:
            self._ledger.open_streams -= 1

    def _place(self, request: ModelRequest) -> tuple[str, int]:
        """The newest message that the script answers, and how many answers it has had."""
        answers = 0
        for message in reversed(request.messages):
            if message.role == "system" and not message.content.startswith(_PAUSED):
                break  # the end of a turn that did not complete: what was asked before it is over
            if message.role == "assistant":
                answers += 1
            elif message.role == "user" and (message.content in self._script or message.content.startswith(PROBE)):
                return message.content, answers
        last = next(message.content for message in reversed(request.messages) if message.role == "user")
        return last, answers

    def _attempt(self, text: str, number: int) -> Attempt:
        rounds = self._script.get(text, [])
        if number >= len(rounds):
            return says(f"answer to {text!r}, again")
        tries = self._attempts.get((text, number), 0)
        self._attempts[text, number] = tries + 1
        attempts = rounds[number]
        return attempts[min(tries, len(attempts) - 1)]


def counted(request: ModelRequest) -> int:
    """What the model has read, counted as Peen estimates it."""
    return fixed_tokens(request.system, request.tools) + sum(map(message_tokens, request.messages))


def about_jobs(attempt: Attempt, request: ModelRequest) -> Attempt:
    """The attempt with `{job.1}` in its calls replaced by the first job that the model was told of, and so on."""
    told = dict.fromkeys(found for message in request.messages for found in _JOB_ID.findall(message.content))
    named = {f"{{job.{number}}}": job_id for number, job_id in enumerate(told, 1)}

    def filled(text: str) -> str:
        for name, job_id in named.items():
            text = text.replace(name, job_id)
        return text

    return [CallDelta(piece.index, filled(piece.json)) if isinstance(piece, CallDelta) else piece for piece in attempt]


async def _play(attempt: Attempt, prompt_tokens: int) -> AsyncGenerator[StreamEvent, None]:
    """The attempt, which reports at once what it has read, and at its end what it has written."""
    yield UsageReported(Usage(prompt=prompt_tokens))
    for piece in attempt:
        if isinstance(piece, float):
            await trio.sleep(piece)
        elif isinstance(piece, ModelError):
            raise piece
        else:
            if isinstance(piece, Finished):
                yield UsageReported(Usage(completion=3))
            yield piece


class _Recorded(Tool[Work]):
    """Takes its time, and writes down that it ran."""

    arguments = Work

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run(self, arguments: Work, context: ToolContext) -> Said:
        run = ToolRun(arguments.say, not self.repeatable, trio.current_time())
        self._ledger.runs.append(run)
        self._ledger.running_tools += 1
        try:
            await trio.sleep(arguments.takes_s)
        finally:
            self._ledger.running_tools -= 1
        run.is_done = True
        if arguments.fail:
            raise ToolError("failed", arguments.say)
        return Said(said=arguments.say)


class SimLook(_Recorded):
    name: ClassVar[str] = "look"
    description: ClassVar[str] = "Looks."
    repeatable: ClassVar[bool] = True


class SimChange(_Recorded):
    name: ClassVar[str] = "change"
    description: ClassVar[str] = "Changes."
    repeatable: ClassVar[bool] = False


def label_of(arguments: bytes) -> str:
    """The label of a call: what it is to say, the command that it runs, or all that it was given."""
    given: dict[str, Any] = msgspec.json.decode(arguments)
    if "jobId" in given:
        return msgspec.json.encode(given).decode()
    return str(given.get("say", given.get("command", "seen")))
