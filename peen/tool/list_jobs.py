"""listJobs: the commands of the session that went on after their call."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolResult
from peen.tool.bounds import fit_head
from peen.tool.jobs import jobs_of
from peen.wire.jobcalls import JobRecord, JobState

MAX_JOBS: Final = 500
_ENVELOPE_BYTES: Final = 64
_SHOWN_BYTES: Final = 400  # of a command line, of its purpose and of its directory


class ListJobsArguments(ToolArguments, frozen=True, kw_only=True):
    state: Annotated[
        JobState | None, Meta(description="Only jobs in this state.", extra_json_schema={"type": "string"})
    ] = None


class ListJobsResult(ToolResult, frozen=True, kw_only=True):
    """Oldest first. `truncated` says that there are older ones."""

    jobs: list[JobRecord]
    truncated: bool


class ListJobs(Tool[ListJobsArguments]):
    name = "listJobs"
    description = (
        "List the jobs of this session: commands that went on in the background after their call, in any turn, running "
        "or ended. Oldest first."
    )
    arguments = ListJobsArguments
    repeatable = True

    async def run(self, arguments: ListJobsArguments, context: ToolContext) -> ListJobsResult:
        listed = await jobs_of(context).listed(arguments.state, limit=MAX_JOBS)
        room = context.max_result_bytes - _ENVELOPE_BYTES
        shown: list[JobRecord] = []
        for job in map(_short, listed.jobs):
            room -= len(msgspec.json.encode(job)) + 1
            if room < 0:
                break
            shown.append(job)
        return ListJobsResult(jobs=shown[::-1], truncated=listed.has_more or len(shown) < len(listed.jobs))


def _short(job: JobRecord) -> JobRecord:
    return msgspec.structs.replace(
        job,
        command=fit_head(job.command, _SHOWN_BYTES),
        purpose=fit_head(job.purpose, _SHOWN_BYTES),
        directory=fit_head(job.directory, _SHOWN_BYTES),
    )
