"""resolveExecutionActivity: what became of an effect that was interrupted."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.retained import told_of_work, work_of

MAX_OUTCOME_CHARACTERS = 16_384


class ResolveExecutionArguments(ToolArguments, frozen=True, kw_only=True):
    execution_id: Annotated[str, Meta(min_length=1, description="The paused execution")]
    activity_id: Annotated[str, Meta(min_length=1, description="Its uncertain activity, by id")]
    decision: Annotated[
        Literal["accept", "retry"],
        Meta(
            description="accept: it happened and is not done again. retry: it may be done again",
            extra_json_schema={"type": "string"},
        ),
    ]
    outcome: (
        Annotated[
            str,
            Meta(
                max_length=MAX_OUTCOME_CHARACTERS,
                description="With accept: what you found, as the result that the paused work goes on with",
            ),
        ]
        | None
    ) = None
    control_revision: Annotated[int, Meta(ge=0, description="The controlRevision that readExecution showed")]


class ActivityResolved(ToolResult, frozen=True, kw_only=True):
    """The decision is stored."""

    step: str
    decision: str
    resumed: bool


class ResolveExecutionActivity(Tool[ResolveExecutionArguments]):
    name = "resolveExecutionActivity"
    description = (
        "Record your decision about an uncertain activity of a paused execution, after you have looked at the real "
        "state: accept what happened, or allow it to be done again. It resumes nothing; continueExecution does. It is "
        "refused if the execution has changed since you read it."
    )
    arguments = ResolveExecutionArguments
    # A second attempt finds that the activity is not uncertain any more, and says so: nothing is decided twice.
    repeatable = True

    async def run(self, arguments: ResolveExecutionArguments, context: ToolContext) -> ActivityResolved:
        if arguments.decision == "retry" and arguments.outcome is not None:
            raise ToolError("validation failed", "outcome: only an accepted activity has one; leave it out, or accept")
        work = work_of(context)
        with told_of_work():
            step = await work.resolve(
                arguments.execution_id,
                arguments.activity_id,
                decision=arguments.decision,
                outcome=arguments.outcome,
                control_revision=arguments.control_revision,
            )
        return ActivityResolved(step=step, decision=arguments.decision, resumed=False)
