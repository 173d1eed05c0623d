"""Calls and commands of the worker socket that are about jobs: commands as the session knows them."""

from __future__ import annotations

from typing import Literal

from peen.wire.joboutput import OutputChunk
from peen.wire.workerstruct import CallingTool, WorkerStruct

JobState = Literal["running", "exited", "signalled", "failed", "interrupted"]
EndState = Literal["exited", "signalled", "failed"]
JobSignalName = Literal["stop", "kill"]
StreamName = Literal["stdout", "stderr"]


class CreateJob(WorkerStruct, frozen=True, kw_only=True):
    """A command is about to start: its process does so only when this is stored."""

    caller: CallingTool
    job_id: str
    purpose: str
    command: str
    directory: str


class JobCreated(WorkerStruct, frozen=True, kw_only=True):
    pass


class NoteJobStarted(WorkerStruct, frozen=True, kw_only=True):
    job_id: str
    pid: int


class JobStartNoted(WorkerStruct, frozen=True, kw_only=True):
    pass


class DetachJob(WorkerStruct, frozen=True, kw_only=True):
    """The call returns while the command goes on: from here on its end is told by a notice."""

    job_id: str
    pid: int


class JobDetached(WorkerStruct, frozen=True, kw_only=True):
    pass


class AppendJobOutput(WorkerStruct, frozen=True, kw_only=True):
    """`unstored_bytes` and `output_missing` tell what the worker no longer sends: how much so far, and why."""

    job_id: str
    chunks: list[OutputChunk]
    unstored_bytes: int = 0
    output_missing: str = ""


class JobOutputAppended(WorkerStruct, frozen=True, kw_only=True):
    """`output_missing`: why `unstored_bytes` of this request were left out. No more output of this job is stored."""

    unstored_bytes: int = 0
    output_missing: str = ""


class RecordJobSignal(WorkerStruct, frozen=True, kw_only=True):
    """Record that a tool, or the end of its call, asks for a signal. Sending it is the worker's own affair."""

    job_id: str
    signal: JobSignalName


class JobSignalRecorded(WorkerStruct, frozen=True, kw_only=True):
    """`found` False: the session has no such job, and nothing was recorded. `state` is the job's at the request."""

    found: bool
    accepted: bool = False
    state: JobState | None = None


class EndJob(WorkerStruct, frozen=True, kw_only=True):
    """The end of a command, with the last of its output. `exit_code` is -1 unless it exited.

    `unstored_bytes` and `output_missing` as in `AppendJobOutput`.
    """

    job_id: str
    pid: int | None = None
    state: EndState
    exit_code: int = -1
    failure_detail: str = ""
    chunks: list[OutputChunk] = []
    unstored_bytes: int = 0
    output_missing: str = ""


class JobEnded(WorkerStruct, frozen=True, kw_only=True):
    pass


class ListJobs(WorkerStruct, frozen=True, kw_only=True):
    """The newest jobs whose handle was returned, at most `limit` of them."""

    state: JobState | None = None
    limit: int


class JobRecord(WorkerStruct, frozen=True, kw_only=True):
    job_id: str
    turn_id: str
    tool_call_id: str
    pid: int = 0
    purpose: str
    command: str
    directory: str
    state: JobState
    exit_code: int
    failure_detail: str = ""
    lines: int
    bytes: int
    unstored_bytes: int = 0
    output_missing: str = ""
    started_at: str
    ended_at: str | None = None
    duration_ms: int


class JobsListed(WorkerStruct, frozen=True, kw_only=True):
    """Newest first."""

    jobs: list[JobRecord]
    has_more: bool = False


class ReadJob(WorkerStruct, frozen=True, kw_only=True):
    """Lines of each stream behind its cursor, at most `max_lines` of each and `max_bytes` of both; None: not wanted."""

    job_id: str
    stdout_cursor: int | None = None
    stderr_cursor: int | None = None
    max_lines: int
    max_bytes: int


class StreamRead(WorkerStruct, frozen=True, kw_only=True):
    """What was found of one stream; go on behind `cursor`. `cut` says that there is more already."""

    data: bytes = b""
    cursor: int
    cut: bool = False


class JobRead(WorkerStruct, frozen=True, kw_only=True):
    """`job` is None where the session has no such job."""

    job: JobRecord | None = None
    stdout: StreamRead | None = None
    stderr: StreamRead | None = None


class SignalJob(WorkerStruct, frozen=True, kw_only=True):
    """Controller to worker: `stop` is SIGTERM to the whole tree and SIGKILL after 10 s, `kill` is SIGKILL at once."""

    job_id: str
    signal: JobSignalName


class JobSignalled(WorkerStruct, frozen=True, kw_only=True):
    """`signalled` False: no process of that job lives (any more)."""

    signalled: bool
