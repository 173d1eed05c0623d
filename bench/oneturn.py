"""One turn of the real engine with nothing behind it: models and tools are real, and records go nowhere."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import trio

from peen.entropy import SystemEntropy
from peen.model.registry import Models
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolResult
from peen.tool.registry import Tools
from peen.turn.actor import TurnActor
from peen.turn.workshop import Workshop
from peen.wire.launch import UpstreamConfig, WorkerSettings
from peen.wire.turncalls import (
    CommitSteps,
    Committed,
    EmitEvents,
    HistoryMessage,
    HistoryPage,
    HistoryRows,
    LeasesRenewed,
    OpenedTurn,
    OpenTurn,
    RenewLeases,
    RestoredExecution,
    RestoreExecution,
)
from peen.wire.worker import RunTurn

ID: Final = "11111111-1111-4111-8111-111111111111"
RESULT: Final = "0123456789abcdef" * 36
"""What the tool finds: with the call about as much as a message of a real turn."""


class Moment(NamedTuple):
    """When a model step was committed, by the wall and by the CPU time of this process, in seconds."""

    wall_s: float
    cpu_s: float


class Nothing(ToolArguments, frozen=True):
    pass


class Found(ToolResult, frozen=True):
    found: str


class Look(Tool[Nothing]):
    """A tool that costs nothing."""

    name: ClassVar[str] = "look"
    description: ClassVar[str] = "Looks."
    repeatable: ClassVar[bool] = True
    arguments = Nothing

    async def run(self, arguments: Nothing, context: ToolContext) -> Found:
        await trio.lowlevel.checkpoint()
        return Found(found=RESULT)


class Nowhere:
    """Implements `Journal`: agrees to everything, and notes when answers came."""

    def __init__(self, history: Sequence[HistoryMessage]) -> None:
        self._history = list(history)
        self._sequence = len(self._history)
        self.moments: list[Moment] = []
        self.state = ""

    async def open_turn(self, request: OpenTurn) -> OpenedTurn:
        await trio.lowlevel.checkpoint()
        before, self._sequence = self._sequence, self._sequence + len(request.messages)
        return OpenedTurn(
            execution_id=ID, turn=1, history_sequence=before, message_sequence=self._sequence, history=self._history
        )

    async def commit(self, request: CommitSteps) -> Committed:
        await trio.lowlevel.checkpoint()
        self._sequence += len(request.messages)
        if request.calls:
            self.moments.append(Moment(time.perf_counter(), time.process_time()))
        if request.terminal is not None:
            self.state = f"{request.terminal.state} {request.terminal.error}".rstrip()
        return Committed(message_sequence=self._sequence)

    async def emit(self, request: EmitEvents) -> None:
        await trio.lowlevel.checkpoint()

    async def note(self, request: EmitEvents) -> None:
        await trio.lowlevel.checkpoint()

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        await trio.lowlevel.checkpoint()
        return LeasesRenewed()

    async def history(self, request: HistoryPage) -> HistoryRows:
        raise AssertionError("the whole history came with the admission")

    async def blob(self, digest: bytes) -> bytes:
        raise AssertionError("nothing is read back here")

    async def restore(self, request: RestoreExecution) -> RestoredExecution:
        raise AssertionError("nothing is resumed here")


async def one_turn(upstream: UpstreamConfig, model: str, history: Sequence[HistoryMessage] = ()) -> list[Moment]:
    """Carry out a turn; when each of its answers was committed. Raises: SystemExit if it did not complete."""
    models = Models.build([upstream], os.environ)
    await models.discover()
    journal = Nowhere(history)
    directory = Path.cwd()
    shop = Workshop(
        session_id=ID, workspace=directory, home=directory, models=models, tools=Tools([Look()]),
        settings=WorkerSettings(upstreams=[upstream], default_model=f"{upstream.name}/{model}", max_tool_rounds=1000),
        command_environment={}, journal=journal, entropy=SystemEntropy(),
    )  # fmt: skip
    await TurnActor(RunTurn(turn_id=ID, request_id=ID, message="go"), shop).run()
    if journal.state != "completed":
        raise SystemExit(f"the turn did not complete: {journal.state}")
    return journal.moments
