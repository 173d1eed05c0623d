"""Retained work as one tool call reaches it: every decision carries the call that takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from peen.wire.turncalls import (
    ContinuationAdmitted,
    ContinueExecution,
    ExecutionActivityResolved,
    ExecutionsRead,
    ReadExecution,
    ResolveExecutionActivity,
)
from peen.wire.workerstruct import CallingTool


class WorkCalls(Protocol):
    """The controller's side. Each call raises the PeenError that it was refused with, or LinkLost."""

    async def read(self, request: ReadExecution) -> ExecutionsRead:
        """Look, and change nothing."""

    async def resolve(self, request: ResolveExecutionActivity) -> ExecutionActivityResolved:
        """Record a decision."""

    async def continue_later(self, request: ContinueExecution) -> ContinuationAdmitted:
        """Have paused work go on after the calling turn."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One execution of this worker, whose calls may decide about others."""

    calls: WorkCalls
    execution_id: str
    holder: str

    def work(self, call_id: str) -> CallersWork:
        """Retained work for the tool call with this id."""
        return CallersWork(self.calls, CallingTool(execution_id=self.execution_id, holder=self.holder, call_id=call_id))


class CallersWork:
    """Implements `peen.tool.work.RetainedWork`."""

    def __init__(self, calls: WorkCalls, caller: CallingTool) -> None:
        self._calls, self._caller = calls, caller

    async def read(self, execution_id: str | None, *, max_bytes: int) -> ExecutionsRead:
        return await self._calls.read(ReadExecution(execution_id=execution_id, max_bytes=max_bytes))

    async def resolve(
        self,
        execution_id: str,
        activity_id: str,
        *,
        decision: Literal["accept", "retry"],
        outcome: str | None,
        control_revision: int,
    ) -> str:
        request = ResolveExecutionActivity(
            caller=self._caller,
            execution_id=execution_id,
            activity_id=activity_id,
            decision=decision,
            outcome=outcome,
            control_revision=control_revision,
        )
        return (await self._calls.resolve(request)).step

    async def resume_later(self, execution_id: str, *, control_revision: int) -> None:
        request = ContinueExecution(caller=self._caller, execution_id=execution_id, control_revision=control_revision)
        await self._calls.continue_later(request)
