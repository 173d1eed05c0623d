"""continueExecution: paused work goes on, once the turn that says so is over."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolResult
from peen.tool.retained import told_of_work, work_of


class ContinueExecutionArguments(ToolArguments, frozen=True, kw_only=True):
    execution_id: Annotated[str, Meta(min_length=1, description="The paused execution")]
    control_revision: Annotated[int, Meta(ge=0, description="The controlRevision that readExecution showed")]


class ContinuationAdmitted(ToolResult, frozen=True, kw_only=True):
    """`begins` says when."""

    execution_id: str
    admitted: bool
    begins: str


class ContinueExecution(Tool[ContinueExecutionArguments]):
    name = "continueExecution"
    description = (
        "Let a paused execution go on, with the messages that wait for it. It begins when your own turn has ended, in "
        "its own context and without what happened here, so end your turn soon and do not do its work yourself. Every "
        "uncertain activity has to be resolved first. A stop of the session drops the request."
    )
    arguments = ContinueExecutionArguments
    # Asking twice for the same revision is asking once.
    repeatable = True

    async def run(self, arguments: ContinueExecutionArguments, context: ToolContext) -> ContinuationAdmitted:
        work = work_of(context)
        with told_of_work():
            await work.resume_later(arguments.execution_id, control_revision=arguments.control_revision)
        return ContinuationAdmitted(
            execution_id=arguments.execution_id, admitted=True, begins="when this turn has ended"
        )
