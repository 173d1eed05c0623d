"""Retained work over the worker's socket."""

from __future__ import annotations

from peen.wire.turncalls import (
    ContinuationAdmitted,
    ContinueExecution,
    ExecutionActivityResolved,
    ExecutionsRead,
    ReadExecution,
    ResolveExecutionActivity,
)
from peen.worker.link import ControllerLink


class LinkWork:
    """Implements `peen.turn.retained.WorkCalls`."""

    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    async def read(self, request: ReadExecution) -> ExecutionsRead:
        return await self._link.call(request, ExecutionsRead)

    async def resolve(self, request: ResolveExecutionActivity) -> ExecutionActivityResolved:
        return await self._link.call(request, ExecutionActivityResolved)

    async def continue_later(self, request: ContinueExecution) -> ContinuationAdmitted:
        return await self._link.call(request, ContinuationAdmitted)
