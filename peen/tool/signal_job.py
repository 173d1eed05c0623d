"""signalJob: end a job, with everything that it started."""

from __future__ import annotations

from typing import Annotated, Final

import trio
from msgspec import Meta

from peen.ids import parse_uuid4
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolResult
from peen.tool.job_output import UNKNOWN_JOB, JobId
from peen.tool.jobs import jobs_of
from peen.wire.jobcalls import JobSignalName, JobState

PROMPT_S: Final = 1.0
"""Most jobs end within this, and then the result can say so."""


class SignalJobArguments(ToolArguments, frozen=True, kw_only=True):
    job_id: JobId
    signal: Annotated[
        JobSignalName,
        Meta(
            description="stop: SIGTERM, and SIGKILL after 10 s to what is left. kill: SIGKILL at once.",
            extra_json_schema={"type": "string"},
        ),
    ]


class SignalJobResult(ToolResult, frozen=True, kw_only=True, omit_defaults=True):
    """`state` is that of the job a moment after the signal; `running`: it has not ended yet.

    `note` says why a job is `failed`, such as which process could not be ended.
    """

    job_id: str
    found: bool
    signal: str
    state: JobState | None = None
    note: str = ""


class SignalJob(Tool[SignalJobArguments]):
    name = "signalJob"
    description = (
        "End a job with everything that it started. A job that has ended already is left as it is, which is no error. "
        "What cannot be ended, such as a process of another account, is named; the job is failed then."
    )
    arguments = SignalJobArguments
    repeatable = False

    async def run(self, arguments: SignalJobArguments, context: ToolContext) -> SignalJobResult:
        jobs, job_id, signal = jobs_of(context), arguments.job_id, arguments.signal
        unknown = SignalJobResult(job_id=job_id[:64], found=False, signal=signal, note=UNKNOWN_JOB)
        if parse_uuid4(job_id) is None or not (await jobs.signal(job_id, signal)).found:
            return unknown
        with trio.move_on_after(PROMPT_S):
            await jobs.ended(job_id)
        read = await jobs.read(job_id, stdout_cursor=None, stderr_cursor=None, max_lines=1, max_bytes=0)
        if read.job is None:
            return unknown
        note = read.job.failure_detail
        return SignalJobResult(job_id=job_id, found=True, signal=signal, state=read.job.state, note=note)
