"""What the tools for jobs share: reading within the limit of a result, and words for a job that is not there."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peen.ids import parse_uuid4
from peen.tool.base import ToolArguments, ToolContext, ToolResult
from peen.tool.bounds import fit_head, json_bytes, readable
from peen.tool.jobs import SessionJobs
from peen.tool.output import clean
from peen.wire.jobcalls import JobRead, JobRecord, JobState, StreamName, StreamRead

MAX_LINES: Final = 500
_ENVELOPE_BYTES: Final = 480
_MIN_BYTES: Final = 16
UNKNOWN_JOB: Final = "This session has no such job; listJobs shows those that there are."

JobId = Annotated[str, Meta(description="The jobId that runCommand returned.")]
Cursor = Annotated[int, Meta(ge=0, description="Show what came behind this; 0 is the beginning.")]


class CursorArguments(ToolArguments, frozen=True, kw_only=True):
    """Arguments that say what to read of a job."""

    job_id: JobId
    stdout_cursor: Cursor | None = None
    stderr_cursor: Cursor | None = None


class JobOutput(ToolResult, frozen=True, kw_only=True, omit_defaults=True):
    """What a job has printed behind two cursors. `more` says that the next call shows more at once."""

    job_id: str
    found: bool
    state: JobState | None = None
    running: bool | None = None
    exit_code: int | None = None
    duration_ms: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    next_stdout_cursor: int | None = None
    next_stderr_cursor: int | None = None
    more: bool = False
    note: str = ""


async def read_output(
    jobs: SessionJobs,
    arguments: CursorArguments,
    context: ToolContext,
    *,
    stream: StreamName | None = None,
    max_lines: int = MAX_LINES,
    note: str = "",
) -> JobOutput:
    """The lines behind the cursors, as a model sees them, and as many of them as a result can hold."""
    if parse_uuid4(arguments.job_id) is None:
        return JobOutput(job_id=arguments.job_id[:64], found=False, note=UNKNOWN_JOB)
    most = context.max_result_bytes - _ENVELOPE_BYTES
    max_bytes = max(most - json_bytes(note), _MIN_BYTES)
    while True:
        read = await jobs.read(
            arguments.job_id,
            stdout_cursor=None if stream == "stderr" else arguments.stdout_cursor or 0,
            stderr_cursor=None if stream == "stdout" else arguments.stderr_cursor or 0,
            max_lines=max_lines,
            max_bytes=max_bytes,
        )
        if read.job is None:
            return JobOutput(job_id=arguments.job_id, found=False, note=UNKNOWN_JOB)
        told = _note(read.job, note)
        room = max(most - json_bytes(told), _MIN_BYTES)
        stdout, stderr = _text(read.stdout), _text(read.stderr)
        if json_bytes(stdout) + json_bytes(stderr) <= room or max_bytes <= 1:
            break
        max_bytes //= 2  # fewer lines, not shorter ones: the cursors stay true
    return _shown(read, read.job, arguments, stdout, stderr, room, told)


def _shown(
    read: JobRead, job: JobRecord, arguments: CursorArguments, stdout: str, stderr: str, room: int, note: str
) -> JobOutput:
    # One line of each alone may still be too long for a small window.
    stdout = fit_head(stdout, max(room // 2, room - json_bytes(stderr)))
    stderr = fit_head(stderr, room - json_bytes(stdout))
    return JobOutput(
        job_id=job.job_id,
        found=True,
        state=job.state,
        running=job.state == "running",
        exit_code=job.exit_code,
        duration_ms=job.duration_ms,
        stdout=None if read.stdout is None else stdout,
        stderr=None if read.stderr is None else stderr,
        next_stdout_cursor=arguments.stdout_cursor if read.stdout is None else read.stdout.cursor,
        next_stderr_cursor=arguments.stderr_cursor if read.stderr is None else read.stderr.cursor,
        more=any(part is not None and part.cut for part in (read.stdout, read.stderr)),
        note=note,
    )


def _note(job: JobRecord, note: str) -> str:
    missing = f"Not all of its output can be read: {job.output_missing} ({job.unstored_bytes} bytes so far)."
    return " ".join(part for part in (note, job.failure_detail, missing if job.output_missing else "") if part)


def _text(read: StreamRead | None) -> str:
    return "" if read is None else clean(readable(read.data))
