"""readExecution: paused work of the session, looked at without resuming it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolResult
from peen.tool.retained import ENVELOPE_BYTES, told_of_work, work_of
from peen.wire.execution import Execution, ExecutionView


class ReadExecutionArguments(ToolArguments, frozen=True, kw_only=True):
    execution_id: Annotated[str, Meta(description="Which one. Without it, all paused executions are listed")] | None = (
        None
    )


class PausedExecutions(ToolResult, frozen=True, kw_only=True):
    """Newest first. `has_more` says that some are not shown."""

    paused: list[Execution]
    has_more: bool


class ExecutionShown(ToolResult, frozen=True, kw_only=True):
    """One execution. Of a long one, inputs and outputs are cut, and some ended activities left out."""

    view: ExecutionView
    omitted_activities: int


class ReadExecution(Tool[ReadExecutionArguments]):
    name = "readExecution"
    description = (
        "Look at work of this session that was paused by a stop, a crash or a shutdown. Without executionId: the list "
        "of paused executions. With it: that execution's activities (what was done and what is uncertain), decisions "
        "so far, messages that wait for it, and its controlRevision, which every decision has to name. Reading "
        "resumes nothing and changes nothing."
    )
    arguments = ReadExecutionArguments
    repeatable = True

    async def run(self, arguments: ReadExecutionArguments, context: ToolContext) -> ToolResult:
        work = work_of(context)
        with told_of_work():
            read = await work.read(arguments.execution_id, max_bytes=context.max_result_bytes - ENVELOPE_BYTES)
        if read.view is None:
            return PausedExecutions(paused=read.paused, has_more=read.has_more)
        return ExecutionShown(view=read.view, omitted_activities=read.omitted_activities)
