"""Commands of a session: what its worker records about them, and what the session is told when one has ended."""

from __future__ import annotations

from contextlib import closing
from typing import Final, cast
from uuid import UUID

import msgspec

from peen.duration import format_duration_ms
from peen.errors import NotFound, StaleClaim
from peen.ids import SessionNo
from peen.session.ending import cut, one_line
from peen.session.notices import MAX_SUMMARY_BYTES, record
from peen.session.writer import Writer
from peen.store import activities, executions, generations, jobs
from peen.store.database import Reader, Tx
from peen.store.jobs import ALL, Allowance, JobRow, Missing, Owner
from peen.wire.jobcalls import (
    AppendJobOutput,
    CreateJob,
    DetachJob,
    EndJob,
    JobCreated,
    JobDetached,
    JobEnded,
    JobOutputAppended,
    JobRead,
    JobRecord,
    JobSignalRecorded,
    JobsListed,
    JobStartNoted,
    JobState,
    ListJobs,
    NoteJobStarted,
    ReadJob,
    RecordJobSignal,
    StreamRead,
)
from peen.wire.rest import rfc3339

INTERRUPTED: Final = "its worker or the controller ended before it did, and it was ended with them"
MAX_LISTED: Final = 500
MAX_READ_BYTES: Final = 1024 * 1024

MAX_DETAIL_BYTES: Final = 200
_HOW: Final = {"signalled": "was terminated by a signal", "failed": "failed to run"}


class EndedJob(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Data of a `job.*` notice. `exit_code` is -1 unless the command exited; `reason` is told of an interrupted one.

    `unstored_bytes` of its output cannot be read again.
    """

    job_id: str
    exit_code: int
    duration_ms: int
    duration: str
    reason: str | None = None
    unstored_bytes: int = 0


def create(tx: Tx, writer: Writer, request: CreateJob, *, at_ms: int) -> JobCreated:
    """A command is about to start, for a tool call that runs. Raises: StaleClaim if it does not (any more)."""
    generations.check_live(tx, writer.generation_no)
    caller = request.caller
    execution = executions.held(
        tx, UUID(caller.execution_id).bytes, holder=bytes.fromhex(caller.holder), generation_no=writer.generation_no
    )
    if execution.session_no != writer.session_no or execution.state != "running":
        raise StaleClaim("the execution that starts a command does not run in this session (any more)")
    if activities.live_call(tx, execution.no, caller.call_id, generation_no=writer.generation_no) is None:
        raise StaleClaim("the tool call that starts a command is not running under this worker generation")
    jobs.create(
        tx,
        _owner(writer),
        job_id=UUID(request.job_id).bytes,
        turn_no=execution.turn_no,
        execution_no=execution.no,
        call_id=caller.call_id,
        purpose=request.purpose,
        command=request.command,
        directory=request.directory,
        at_ms=at_ms,
    )
    return JobCreated()


def started(tx: Tx, writer: Writer, request: NoteJobStarted, *, at_ms: int) -> JobStartNoted:
    jobs.started(tx, _owner(writer), UUID(request.job_id).bytes, pid=request.pid)
    return JobStartNoted()


def detach(tx: Tx, writer: Writer, request: DetachJob, *, at_ms: int) -> JobDetached:
    jobs.detach(tx, _owner(writer), UUID(request.job_id).bytes, pid=request.pid)
    return JobDetached()


def append(
    tx: Tx, writer: Writer, request: AppendJobOutput, *, at_ms: int, allowance: Allowance = ALL
) -> JobOutputAppended:
    """What is printed, as far as it may be stored, and what the worker no longer sends."""
    left_out = jobs.append(
        tx,
        _owner(writer),
        UUID(request.job_id).bytes,
        request.chunks,
        at_ms=at_ms,
        allowance=allowance,
        missing=Missing(request.unstored_bytes, request.output_missing),
    )
    return JobOutputAppended(unstored_bytes=left_out.unstored_bytes, output_missing=left_out.text)


def record_signal(tx: Tx, writer: Writer, request: RecordJobSignal, *, at_ms: int) -> JobSignalRecorded:
    """A tool, or a Stop, asks for a signal. Raises: StaleClaim."""
    generations.check_live(tx, writer.generation_no)
    job = jobs.by_id(tx, writer.session_no, UUID(request.job_id).bytes)
    if job is None:
        return JobSignalRecorded(found=False)
    accepted = jobs.add_signal(tx, job, signal=request.signal, at_ms=at_ms)
    return JobSignalRecorded(found=True, accepted=accepted, state=cast(JobState, job.state))


def end(tx: Tx, writer: Writer, request: EndJob, *, at_ms: int, allowance: Allowance = ALL) -> JobEnded:
    """The last output and the end; with them, if no call tells it, the notice about it."""
    job = jobs.end(
        tx,
        _owner(writer),
        UUID(request.job_id).bytes,
        state=request.state,
        exit_code=request.exit_code,
        detail=request.failure_detail,
        pid=request.pid,
        at_ms=at_ms,
        chunks=request.chunks,
        allowance=allowance,
        missing=Missing(request.unstored_bytes, request.output_missing),
    )
    # A call that a Stop cut off tells nothing; that its command could not be ended somebody has to know.
    if job.is_detached or (job.state == "failed" and jobs.signals(tx, job.no, limit=1, offset=0)):
        _report(tx, job)
    return JobEnded()


def end_generation(
    tx: Tx, generation_id: bytes, *, state: str, detail: str | None, exit_code: int | None, at_ms: int
) -> None:
    """Record the end of a worker generation, which nothing of it outlives: commands that it ran end with it.

    One whose call was under way is told as well, since no result will tell of it, unless a Stop was ending it already.
    """
    generation = generations.by_id(tx, generation_id)
    assert generation is not None
    generations.ended(tx, generation_id, state=state, detail=detail, exit_code=exit_code, at_ms=at_ms)
    for job in jobs.end_left(tx, Owner(generation.session_no, generation.no), detail=INTERRUPTED, at_ms=at_ms):
        if job.is_detached or not jobs.signals(tx, job.no, limit=1, offset=0):
            _report(tx, job)


def ask_for_signal(tx: Tx, session_no: SessionNo, job_id: bytes, *, signal: str, at_ms: int) -> tuple[JobRow, bool]:
    """A client asks for a signal: the job as it is, and whether there is somebody to send it to. Raises: NotFound."""
    job = found(tx, session_no, job_id)
    return job, jobs.add_signal(tx, job, signal=signal, at_ms=at_ms)


def found(db: Reader | Tx, session_no: SessionNo, job_id: bytes) -> JobRow:
    """Raises: NotFound."""
    job = jobs.by_id(db, session_no, job_id)
    if job is None:
        raise NotFound("the session has no such job")
    return job


def listed(db: Reader, writer: Writer, request: ListJobs, *, at_ms: int) -> JobsListed:
    """For the model: jobs whose handle it was given, or is about to be, by a result or by a notice."""
    limit = min(request.limit, MAX_LISTED)
    rows = jobs.page(db, writer.session_no, limit=limit + 1, offset=0, state=request.state, known_only=True)
    return JobsListed(jobs=[record_of(row, at_ms) for row in rows[:limit]], has_more=len(rows) > limit)


def read(db: Reader, writer: Writer, request: ReadJob, *, at_ms: int) -> JobRead:
    """What a job has printed behind two cursors."""
    job = jobs.by_id(db, writer.session_no, UUID(request.job_id).bytes)
    if job is None:
        return JobRead()
    wanted = [request.stdout_cursor, request.stderr_cursor]
    share = min(request.max_bytes, MAX_READ_BYTES) // max(1, len([each for each in wanted if each is not None]))
    parts = [
        None if after is None else _read(db, job.no, stream, after, max_lines=request.max_lines, max_bytes=share)
        for stream, after in enumerate(wanted)
    ]
    return JobRead(job=record_of(job, at_ms), stdout=parts[0], stderr=parts[1])


def _read(db: Reader, job_no: int, stream: int, after: int, *, max_lines: int, max_bytes: int) -> StreamRead:
    data, lines, cursor = bytearray(), 0, after
    rows = jobs.output(db, job_no, after=after, streams=1 << stream)
    with closing(rows):
        for row in rows:
            if lines == max_lines or (data and len(data) + len(row.piece.data) > max_bytes):
                return StreamRead(data=bytes(data), cursor=cursor, cut=True)
            data += row.piece.data
            lines += not row.piece.goes_on
            cursor = row.piece.sequence
    return StreamRead(data=bytes(data), cursor=cursor)


def duration_ms(job: JobRow, now_ms: int) -> int:
    """How long it ran, or has run so far; never negative, whatever the wall clock did."""
    return max(0, (now_ms if job.ended_at_ms is None else job.ended_at_ms) - job.started_at_ms)


def record_of(job: JobRow, now_ms: int) -> JobRecord:
    """What is told of a job."""
    return JobRecord(
        job_id=str(UUID(bytes=job.id)),
        turn_id=str(UUID(bytes=job.turn_id)),
        tool_call_id=job.call_id,
        pid=job.pid or 0,
        purpose=job.purpose,
        command=job.command,
        directory=job.directory,
        state=cast(JobState, job.state),
        exit_code=job.exit_code,
        failure_detail=job.failure_detail,
        lines=job.line_count,
        bytes=job.byte_count,
        unstored_bytes=job.unstored_bytes,
        output_missing=job.output_missing,
        started_at=rfc3339(job.started_at_ms),
        ended_at=None if job.ended_at_ms is None else rfc3339(job.ended_at_ms),
        duration_ms=duration_ms(job, now_ms),
    )


def _report(tx: Tx, job: JobRow) -> None:
    """The notice of this end, in the transaction that ends it."""
    job_id = str(UUID(bytes=job.id))
    took_ms = duration_ms(job, job.started_at_ms)
    state = "failed" if job.state == "interrupted" else job.state
    how = f"exited with code {job.exit_code}" if state == "exited" else _HOW[state]
    if job.state == "failed" and job.failure_detail:
        how = f"failed: {cut(one_line(job.failure_detail), MAX_DETAIL_BYTES)}"
    data = EndedJob(
        job_id=job_id,
        exit_code=job.exit_code,
        duration_ms=took_ms,
        duration=format_duration_ms(took_ms),
        reason="interrupted" if job.state == "interrupted" else None,
        unstored_bytes=job.unstored_bytes,
    )
    missing = f"; {job.unstored_bytes} bytes of its output are not stored" if job.output_missing else ""
    tail = f") {how}{missing}"
    head = cut(f"job {job_id} ({one_line(job.purpose)}", MAX_SUMMARY_BYTES - len(tail))
    record(
        tx,
        job.session_no,
        notice_type=f"job.{state}",
        source="tools.job",
        summary=head + tail,
        data=msgspec.json.encode(data),
        delivery="queue",
        at_ms=job.ended_at_ms or job.started_at_ms,
    )


def _owner(writer: Writer) -> Owner:
    return Owner(writer.session_no, writer.generation_no)
