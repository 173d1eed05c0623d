"""The one workflow: prepare, ask the model, run its tools, again, until an answer without calls ends it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
import trio

from peen.context.pictures import shown_image
from peen.context.projection import Conversation
from peen.execution import decide, limits
from peen.execution.ask import reply_message
from peen.execution.blocks import Blocks, event
from peen.execution.decide import CompactOutput, Dispatch, Finish, ModelOutput, ReadImage, ToolOutput
from peen.execution.keeper import ContextKeeper
from peen.execution.pictures import Pictures
from peen.execution.restore import BEGINNING, Start, read_images
from peen.execution.steps import MODEL, NOTHING, Done, Next, Step, Steps
from peen.wire.records import EventRecord, MessageRecord, Terminal, ToolCallRecord

_encode: Final = msgspec.json.encode


class ToolRunner(Protocol):
    """Carries out calls. A tool's own failure is an output with `is_error`; raising means a fault of Peen."""

    def is_repeatable(self, name: str) -> bool:
        """Whether an interrupted call may simply be made again."""

    async def call(self, call: ToolCallRecord) -> ToolOutput:
        """Run one call to its end."""


class _Batch:
    """The calls of one round: at most `lanes` run at once, each lane takes the next waiting one."""

    def __init__(self, reply: MessageRecord, calls: list[ToolCallRecord], *, lanes: int) -> None:
        self.reply, self.calls, self.lanes = reply, calls, lanes
        self.waiting: Iterator[int] = iter(range(len(calls)))
        self.results: dict[int, MessageRecord] = {}
        self.outputs: dict[int, ToolOutput] = {}
        self.follows: dict[int, int | None] = {}
        self.shown: list[MessageRecord] = []  # images that the calls have read


class AgentLoop:
    """Runs one execution from its first round to its terminal commit."""

    def __init__(
        self,
        *,
        steps: Steps,
        keeper: ContextKeeper,
        blocks: Blocks,
        ask: Callable[[str, int], Awaitable[Done[ModelOutput]]],
        tools: ToolRunner,
        pictures: Pictures,
        model: str,
        round_limit: int,
        parallelism: int,
    ) -> None:
        self._steps, self._keeper, self._blocks = steps, keeper, blocks
        self._conversation: Conversation = keeper.conversation
        self._ask, self._tools, self._model = ask, tools, model
        self._pictures = pictures
        self._round_limit, self._parallelism = round_limit, parallelism

    async def run(self, start: Start = BEGINNING, *, note: MessageRecord | None = None) -> Terminal:
        """How the execution ended; that end is committed when this returns.

        `start` is where a resumed execution goes on: what it has saved is used and not done again. `note` tells the
        model of the pause, before it is asked again.
        """
        first = start.turn_round
        if start.answer is not None:
            await self._finish_round(first, start.answer, start.results)
            first += 1
        elif not start.is_begun:
            shown = _shown(start.unshown)
            await self._steps.commit(self._next_round(first, shown=shown))
            self._add_shown(shown)
        if note is not None:
            self._conversation.add(note)
        self._add_delivered()  # what had waited and came with the round that was begun here
        for turn_round in itertools.count(first):
            step = self._model_step(turn_round)
            if limits.reached(self._steps.budget) is None:  # a summary costs as well
                await self._make_room(turn_round)
            if (refused := await self._begin_within_budget(step)) is not None:
                return refused
            output = await self._steps.run(
                step,
                partial(self._ask, step.id, turn_round),
                partial(self._after_answer, turn_round),
            )
            match decide.after_answer(output, turn_round=turn_round, round_limit=self._round_limit):
                case Finish(terminal=terminal):
                    if not self._steps.take_continued():
                        return terminal
                    self._conversation.add(reply_message(output, self._model))
                    self._add_delivered()
                case Dispatch():
                    await self._finish_round(turn_round, output, {})
        raise AssertionError("itertools.count ended")

    async def _begin_within_budget(self, step: Step) -> Terminal | None:
        """Begin a model step; if the session has used up its budget, end the turn instead, and tell how."""
        if limits.reached(self._steps.budget) is None:
            await self._steps.begin(step)  # in vain, if somebody else has used up the rest meanwhile
        refusal = limits.reached(self._steps.budget)
        if refusal is None:
            return None
        terminal = decide.failure(refusal, reason=limits.REASON)
        await self._steps.commit(Next(terminal=terminal))
        return terminal

    async def _make_room(self, turn_round: int) -> None:
        """Afterwards the conversation fits, as far as that can be had. Mostly it does, and nothing is done."""
        step = self._keeper.due(turn_round)
        if step is not None:
            compact = partial(self._keeper.compact, turn_round, tell=self._steps.note)
            output = await self._steps.run(step, compact, partial(self._after_compaction, turn_round))
            self._keeper.compacted(output, self._steps.take_summary())
        self._keeper.fit()

    def _after_compaction(self, turn_round: int, _done: Done[CompactOutput]) -> Next:
        model = self._model_step(turn_round)
        # It has begun where only messages that came with the same commit made the conversation too long.
        return NOTHING if self._steps.has_begun(model) else Next(begin=(model,))

    async def _finish_round(self, turn_round: int, output: ModelOutput, saved: Mapping[int, ToolOutput]) -> None:
        """Run the calls that have no result yet; afterwards the next round has begun."""
        reply = reply_message(output, self._model)
        batch = await self._run_tools(turn_round, _Batch(reply, output.calls, lanes=self._parallelism), saved)
        self._conversation.add_exchange(reply, [batch.results[at] for at in range(len(output.calls))])
        self._add_shown(batch.shown)
        self._add_delivered()

    def _add_shown(self, shown: Sequence[MessageRecord]) -> None:
        for message in shown:
            self._conversation.add(message)

    def _add_delivered(self) -> None:
        for message in self._steps.take_delivered():
            self._conversation.add(message)

    def _after_answer(self, turn_round: int, done: Done[ModelOutput]) -> Next:
        match decide.after_answer(done.output, turn_round=turn_round, round_limit=self._round_limit):
            case Finish(terminal=terminal):
                final = Step(f"r{turn_round}.final", "final", b"{}")
                may_go_on = terminal.state == "completed" and turn_round + 1 < self._round_limit
                return Next(
                    passed=((final, _encode({"state": terminal.state})),),
                    terminal=terminal,
                    otherwise=self._next_round(turn_round + 1, done.messages) if may_go_on else None,
                )
            case Dispatch(calls=calls):
                begin = [self._tool_step(turn_round, i, call) for i, call in enumerate(calls[: self._parallelism])]
                return Next(events=[_use_event(call) for call in calls], begin=begin)

    async def _run_tools(self, turn_round: int, batch: _Batch, saved: Mapping[int, ToolOutput]) -> _Batch:
        """Results of all calls; each new one is committed as soon as it is there."""
        calls = batch.calls
        batch.results |= {index: result_message(calls[index], output) for index, output in saved.items()}
        batch.outputs |= saved
        batch.waiting = (index for index in range(len(calls)) if index not in saved)
        async with trio.open_nursery() as nursery:
            for first in itertools.islice(batch.waiting, batch.lanes):
                nursery.start_soon(self._lane, turn_round, batch, first)
        return batch

    async def _lane(self, turn_round: int, batch: _Batch, first: int) -> None:
        index: int | None = first
        while index is not None:
            step = self._tool_step(turn_round, index, batch.calls[index])
            after = partial(self._after_tool, turn_round, batch, index)
            await self._steps.run(step, partial(self._call_tool, batch.calls[index]), after)
            index = batch.follows[index]

    def _after_tool(self, turn_round: int, batch: _Batch, index: int, done: Done[ToolOutput]) -> Next:
        """The commit that ends a call begins the next one of its lane or, after the last call, the next round."""
        batch.results[index], batch.outputs[index] = done.messages[0], done.output
        batch.follows[index] = upcoming = next(batch.waiting, None)
        if upcoming is not None:
            return Next(begin=(self._tool_step(turn_round, upcoming, batch.calls[upcoming]),))
        if len(batch.results) < len(batch.calls):
            return NOTHING
        batch.shown = _shown(read_images(batch.outputs))
        return self._next_round(turn_round + 1, [batch.reply, *batch.results.values()], shown=batch.shown)

    async def _call_tool(self, call: ToolCallRecord) -> Done[ToolOutput]:
        output = await self._tools.call(call)
        message = result_message(call, output)
        result: dict[str, object] = {
            "callId": call.id, "name": call.name, "content": output.content, "isError": output.is_error
        }  # fmt: skip
        shown = self._blocks.tool_result(call.id, output.content, is_error=output.is_error)
        blobs = [] if output.image is None else [self._pictures.blob(output.image.image)]
        return Done(output=output, messages=[message], events=[*shown, event("tool.result", result)], blobs=blobs)

    def _next_round(
        self, turn_round: int, coming: Sequence[MessageRecord] = (), *, shown: Sequence[MessageRecord] = ()
    ) -> Next:
        """The round begins with its model step or, if the conversation with what is `coming` is too long, before that
        with its compaction. `shown` are images that were read in the round before it; they come behind the rest."""
        prepared = Step(f"r{turn_round}.prepare", "prepare", b"{}")
        first = self._keeper.due(turn_round, [*coming, *shown]) or self._model_step(turn_round)
        return Next(passed=((prepared, b"{}"),), begin=(first,), opening=shown)

    def _model_step(self, turn_round: int) -> Step:
        return Step(f"r{turn_round}.model", MODEL, _encode({"model": self._model, "round": turn_round}))

    def _tool_step(self, turn_round: int, index: int, call: ToolCallRecord) -> Step:
        kind = "read" if self._tools.is_repeatable(call.name) else "effect"
        given = _encode({"name": call.name, "arguments": call.arguments})
        return Step(f"r{turn_round}.t{index}.handler", kind, given, call_id=call.id)


def result_message(call: ToolCallRecord, output: ToolOutput) -> MessageRecord:
    """The tool message of a result."""
    return MessageRecord(role="tool", content=output.content, tool_call_id=call.id, is_error=output.is_error)


def _shown(images: Sequence[ReadImage]) -> list[MessageRecord]:
    return [shown_image(each.path, each.image) for each in images]


def _use_event(call: ToolCallRecord) -> EventRecord:
    return event("tool.use", {"callId": call.id, "name": call.name, "arguments": call.arguments})
