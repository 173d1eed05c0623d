"""waitJob: wait for the end of a job, and read what it has printed."""

from __future__ import annotations

from typing import Annotated

import trio
from msgspec import Meta

from peen.duration import format_duration_ms
from peen.tool.base import Tool, ToolContext
from peen.tool.job_output import CursorArguments, JobOutput, read_output
from peen.tool.jobs import jobs_of
from peen.tool.waiting import wait_ms


class WaitJobArguments(CursorArguments, frozen=True, kw_only=True):
    timeout: Annotated[
        str | None, Meta(description='How long to wait, such as "90s" or "1h". Default 2m unless configured.')
    ] = None


class WaitJob(Tool[WaitJobArguments]):
    name = "waitJob"
    description = (
        "Wait until a job has ended, and read what it has printed behind the cursors. If it still runs at the timeout, "
        "nothing happens to it: wait again, or end it with signalJob."
    )
    arguments = WaitJobArguments
    repeatable = True
    own_deadline = True

    async def run(self, arguments: WaitJobArguments, context: ToolContext) -> JobOutput:
        jobs = jobs_of(context)
        timeout_ms = wait_ms(arguments.timeout, context)
        with trio.move_on_after(timeout_ms / 1000) as limit:
            await jobs.ended(arguments.job_id)
        note = f"It still runs after a wait of {format_duration_ms(timeout_ms)}." if limit.cancelled_caught else ""
        return await read_output(jobs, arguments, context, note=note)
