"""Bodies of the REST API about jobs: commands, what they printed, and the signals that were asked for."""

from __future__ import annotations

from typing import Literal

from peen.wire.jobcalls import JobSignalName, JobState, StreamName
from peen.wire.rest import Answer, Body, Paged


class Job(Answer, frozen=True, kw_only=True):
    """A command. `detached`: its call returned while it went on, so that its end is told by a notice.

    `pid` is 0 until the process is known, `exit_code` -1 unless it exited, `agent_run_id` that of a child's command.
    `lines` and `bytes` count what is stored of its output. `output_missing`, if there is one, says from which line on
    nothing more is stored, and why; `unstored_bytes` how much that is so far. It changes nothing about the end.
    """

    job_id: str
    session_id: str
    turn_id: str
    tool_call_id: str
    worker_generation_id: str
    agent_run_id: str | None = None
    pid: int
    purpose: str
    command: str
    directory: str
    state: JobState
    detached: bool
    exit_code: int
    failure_detail: str
    lines: int
    bytes: int
    unstored_bytes: int = 0
    output_missing: str = ""
    started_at: str
    ended_at: str | None = None
    duration_ms: int


class JobPage(Paged, frozen=True, kw_only=True):
    jobs: list[Job]


class JobOutputLine(Answer, frozen=True, kw_only=True):
    """A line without its end, or a part of one. `sequence` counts over both streams, in the order they came.

    `continued`: no line end follows; the next line of this stream, if there is one, goes on with it.
    `encoding`: `content` is base64, since the bytes are not UTF-8.
    """

    id: str
    session_id: str
    job_id: str
    sequence: int
    stream: StreamName
    content: str
    continued: bool | None = None
    encoding: Literal["base64"] | None = None
    created_at: str


class JobOutputPage(Answer, frozen=True, kw_only=True):
    """Go on with `next_cursor` until `has_more` is false; a job in state `running` may print more later.

    `unstored_bytes` and `output_missing` are those of the job.
    """

    job_id: str
    state: JobState
    lines: list[JobOutputLine]
    next_cursor: int
    has_more: bool
    unstored_bytes: int = 0
    output_missing: str = ""


class JobSignalRequest(Answer, frozen=True, kw_only=True):
    """Somebody asked for a signal. `accepted`: the job ran then, so that there was something to signal."""

    id: str
    session_id: str
    job_id: str
    signal: JobSignalName
    accepted: bool
    state_at_request: JobState
    requested_at: str


class JobSignalPage(Paged, frozen=True, kw_only=True):
    job: Job
    signal_requests: list[JobSignalRequest]


class AskSignal(Body, frozen=True, kw_only=True):
    """`stop` is SIGTERM to all that the command started, and SIGKILL after 10 s; `kill` is SIGKILL at once."""

    signal: JobSignalName


class SignalAnswer(Answer, frozen=True, kw_only=True):
    """`signalled`: a live process is being ended. `state` is that of the job now; its end may come a moment later."""

    job_id: str
    signalled: bool
    state: JobState
