"""readJobOutput: what a job has printed, behind a cursor."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from peen.tool.base import Tool, ToolContext
from peen.tool.job_output import MAX_LINES, CursorArguments, JobOutput, read_output
from peen.tool.jobs import jobs_of
from peen.wire.jobcalls import StreamName


class ReadJobOutputArguments(CursorArguments, frozen=True, kw_only=True):
    stream: Annotated[StreamName | None, Meta(description="Only this one.", extra_json_schema={"type": "string"})] = (
        None
    )
    max_lines: Annotated[int, Meta(ge=1, le=MAX_LINES, description="Lines of each stream at most.")] = MAX_LINES


class ReadJobOutput(Tool[ReadJobOutputArguments]):
    name = "readJobOutput"
    description = (
        "Read what a command of this session has printed, running or ended, without waiting. Go on behind "
        "nextStdoutCursor and nextStderrCursor; more says that there is more already."
    )
    arguments = ReadJobOutputArguments
    repeatable = True

    async def run(self, arguments: ReadJobOutputArguments, context: ToolContext) -> JobOutput:
        return await read_output(
            jobs_of(context), arguments, context, stream=arguments.stream, max_lines=arguments.max_lines
        )
