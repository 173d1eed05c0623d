"""The journal of an execution in a worker: calls to the controller, which commits them in their order."""

from __future__ import annotations

from collections import deque
from typing import Final

from peen.wire.worker import (
    CommitSteps,
    Committed,
    EmitEvents,
    Emitted,
    HistoryPage,
    HistoryRows,
    OpenedTurn,
    OpenTurn,
    RestoredExecution,
    RestoreExecution,
)
from peen.worker.link import ControllerLink
from peen.worker.peer import Answer

MAX_EMITS_AHEAD: Final = 8
"""Streamed pieces that may be on their way unanswered; one more waits, so a fast model feels a slow disk."""


class LinkJournal:
    """Implements `peen.execution.journal.Journal` over the worker's socket."""

    def __init__(self, link: ControllerLink) -> None:
        self._link = link
        self._emitted: deque[Answer[Emitted]] = deque()

    async def open_turn(self, request: OpenTurn) -> OpenedTurn:
        return await self._link.call(request, OpenedTurn)

    async def restore(self, request: RestoreExecution) -> RestoredExecution:
        return await self._link.call(request, RestoredExecution)

    async def history(self, request: HistoryPage) -> HistoryRows:
        return await self._link.call(request, HistoryRows)

    async def commit(self, request: CommitSteps) -> Committed:
        # A piece that could not be stored leaves a hole that no later frame may follow: the step fails with it.
        while self._emitted:
            await self._emitted.popleft()
        return await self._link.call(request, Committed)

    async def emit(self, request: EmitEvents) -> None:
        self._emitted.append(self._link.call_soon(request, Emitted))
        while len(self._emitted) > MAX_EMITS_AHEAD:
            await self._emitted.popleft()
