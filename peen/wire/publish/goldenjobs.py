"""Golden frames about jobs."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from peen.wire import jobcalls
from peen.wire.joboutput import STDERR, STDOUT, Piece, chunk_of
from peen.wire.publish.golden import AT_MS, CALL, WORKSPACE
from peen.wire.rest import rfc3339
from peen.wire.workerstruct import CallingTool

JOB: Final = "10b00000-0000-4000-8000-00000000000a"
_PID: Final = 4712
_PIECES: Final = (
    Piece(STDOUT, False, b"collected 3 items\n"),
    Piece(STDOUT, True, b"..."),
    Piece(STDERR, False, b"\xff\n"),
)
_CHUNK: Final = chunk_of(1, _PIECES)


def _job(turn_id: str) -> jobcalls.JobRecord:
    return jobcalls.JobRecord(
        job_id=JOB, turn_id=turn_id, tool_call_id=CALL, pid=_PID, purpose="run the tests", command="pytest",
        directory=WORKSPACE, state="exited", exit_code=0, lines=3, bytes=23, started_at=rfc3339(AT_MS),
        ended_at=rfc3339(AT_MS + 5321), duration_ms=5321,
    )  # fmt: skip


def job_calls(caller: CallingTool, turn_id: str) -> dict[str, tuple[Struct, Struct]]:
    """Request and reply of every call about jobs."""
    job = _job(turn_id)
    return {
        "job.create": (
            jobcalls.CreateJob(
                caller=caller, job_id=JOB, purpose=job.purpose, command=job.command, directory=job.directory
            ),
            jobcalls.JobCreated(),
        ),
        "job.started": (jobcalls.NoteJobStarted(job_id=JOB, pid=_PID), jobcalls.JobStartNoted()),
        "job.detach": (jobcalls.DetachJob(job_id=JOB, pid=_PID), jobcalls.JobDetached()),
        "job.output": (jobcalls.AppendJobOutput(job_id=JOB, chunks=[_CHUNK]), jobcalls.JobOutputAppended()),
        "job.signal": (
            jobcalls.RecordJobSignal(job_id=JOB, signal="stop"),
            jobcalls.JobSignalRecorded(found=True, accepted=True, state="running"),
        ),
        "job.end": (
            jobcalls.EndJob(job_id=JOB, pid=_PID, state="exited", exit_code=0, chunks=[_CHUNK]),
            jobcalls.JobEnded(),
        ),
        "job.list": (jobcalls.ListJobs(state="exited", limit=500), jobcalls.JobsListed(jobs=[job])),
        "job.read": (
            jobcalls.ReadJob(job_id=JOB, stdout_cursor=0, max_lines=500, max_bytes=32_640),
            jobcalls.JobRead(job=job, stdout=jobcalls.StreamRead(data=b"collected 3 items\n...", cursor=2)),
        ),
    }


def job_commands() -> dict[str, tuple[Struct, Struct]]:
    """Command and answer of every command about jobs."""
    return {"signalJob": (jobcalls.SignalJob(job_id=JOB, signal="stop"), jobcalls.JobSignalled(signalled=True))}
