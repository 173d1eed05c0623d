"""Jobs: commands that run or ran, what they print, and signals for them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Final, cast
from uuid import UUID

import msgspec

from peen.hub.api import Api
from peen.hub.request import (
    ApiRequest,
    ApiResponse,
    CursorPage,
    Page,
    check_query,
    cursor_page,
    decode_body,
    json_response,
    page,
    path_uuid,
    query_choice,
)
from peen.hub.rest.pages import fill
from peen.hub.router import Router
from peen.ids import derived_id
from peen.session.jobs import ask_for_signal, found, record_of
from peen.store import jobs
from peen.store.database import Reader
from peen.store.jobs import BOTH, JobRow, SignalRow, StoredPiece
from peen.store.sessions import SessionRow
from peen.wire.job import (
    AskSignal,
    Job,
    JobOutputLine,
    JobOutputPage,
    JobPage,
    JobSignalPage,
    JobSignalRequest,
    SignalAnswer,
)
from peen.wire.jobcalls import JobSignalName, JobState
from peen.wire.joboutput import STDOUT
from peen.wire.rest import rfc3339

STATES: Final = ("running", "exited", "signalled", "failed", "interrupted")
STREAMS: Final = ("stdout", "stderr", "both")
DEFAULT_LINES: Final = 500
MAX_LINES: Final = 2000
_MASKS: Final = {"stdout": 1, "stderr": 2, "both": BOTH, None: BOTH}
_ONE: Final = "/api/v1/session/jobs/{jobId}"


def add_jobs(router: Router) -> None:
    router.add("GET", "/api/v1/session/jobs", list_jobs, session=True)
    router.add("GET", f"{_ONE}/output", read_output, session=True)
    router.add("GET", f"{_ONE}/signals", list_signals, session=True)
    router.add("POST", f"{_ONE}/signal", signal_job, session=True)


async def list_jobs(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first."""
    session, wanted = api.session(request.session), page(request, also=("state",))
    state = query_choice(request, "state", STATES)
    now_ms = api.entropy.now_ms()
    return await api.scan(partial(jobs_page, session=session, state=state, wanted=wanted, now_ms=now_ms))


def jobs_page(db: Reader, session: SessionRow, *, state: str | None, wanted: Page, now_ms: int) -> ApiResponse:
    rows = jobs.page(db, session.no, limit=wanted.limit + 1, offset=wanted.offset, state=state)
    items, has_more = fill((_job(session.uuid, row, now_ms) for row in rows), limit=wanted.limit)
    return json_response(JobPage(jobs=items, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


async def read_output(api: Api, request: ApiRequest) -> ApiResponse:
    """Lines behind the cursor, in the order in which they came."""
    wanted = cursor_page(request, default_limit=DEFAULT_LINES, max_limit=MAX_LINES, also=("stream",))
    streams = _MASKS[query_choice(request, "stream", STREAMS)]
    session = api.session(request.session)
    job = found(api.database.reader, session.no, path_uuid(request, "jobId").bytes)
    return await api.scan(partial(output_page, session=session, job=job, streams=streams, wanted=wanted))


def output_page(db: Reader, session: SessionRow, *, job: JobRow, streams: int, wanted: CursorPage) -> ApiResponse:
    """The state is read before the lines: who finds the job ended with nothing more to read has read everything."""
    # No line has a larger number, and the store cannot compare with a larger key.
    after = min(wanted.cursor, 2**32 - 2)
    rows = jobs.output(db, job.no, after=after, streams=streams)
    with closing(rows):
        lines = _lines(session.uuid, job.id, islice(rows, wanted.limit + 1))
        items, has_more = fill(lines, limit=wanted.limit)
    return json_response(
        JobOutputPage(
            job_id=str(UUID(bytes=job.id)),
            state=cast(JobState, job.state),
            lines=items,
            next_cursor=items[-1].sequence if items else wanted.cursor,
            has_more=has_more,
            unstored_bytes=job.unstored_bytes,
            output_missing=job.output_missing,
        )
    )


def list_signals(api: Api, request: ApiRequest) -> ApiResponse:
    """Oldest first."""
    session, wanted = api.session(request.session), page(request)
    job = found(api.database.reader, session.no, path_uuid(request, "jobId").bytes)
    rows = jobs.signals(api.database.reader, job.no, limit=wanted.limit + 1, offset=wanted.offset)
    return json_response(
        JobSignalPage(
            job=_job(session.uuid, job, api.entropy.now_ms()),
            signal_requests=[_signal(session.uuid, job.id, row) for row in rows[: wanted.limit]],
            limit=wanted.limit,
            offset=wanted.offset,
            has_more=len(rows) > wanted.limit,
        )
    )


async def signal_job(api: Api, request: ApiRequest) -> ApiResponse:
    """Record the request; if the job runs, begin to end it."""
    check_query(request)
    job_id = path_uuid(request, "jobId")
    body = decode_body(request, AskSignal)
    session = api.session(request.session)
    change = partial(
        ask_for_signal, session_no=session.no, job_id=job_id.bytes, signal=body.signal, at_ms=api.entropy.now_ms()
    )
    _, accepted = await api.database.write(change)
    signalled = accepted and await api.signal_job(session.uuid, str(job_id), body.signal)
    job = found(api.database.reader, session.no, job_id.bytes)
    answer = SignalAnswer(job_id=str(job_id), signalled=signalled, state=cast(JobState, job.state))
    return json_response(answer, status=202)


def _job(session_id: str, row: JobRow, now_ms: int) -> Job:
    return Job(
        session_id=session_id,
        worker_generation_id=str(UUID(bytes=row.generation_id)),
        detached=row.is_detached,
        **msgspec.structs.asdict(record_of(row, now_ms)),
    )


def _lines(session_id: str, job_id: bytes, rows: Iterator[StoredPiece]) -> Iterator[JobOutputLine]:
    shown = str(UUID(bytes=job_id))
    shown_ms, created_at = -1, ""
    for piece, created_at_ms in rows:
        if created_at_ms != shown_ms:  # many lines are of one moment, and to format it takes longer than all else
            shown_ms, created_at = created_at_ms, rfc3339(created_at_ms)
        data = piece.data.removesuffix(b"\n")
        try:
            content, is_text = data.decode(), True
        except UnicodeDecodeError:
            content, is_text = b64encode(data).decode(), False
        yield JobOutputLine(
            id=derived_id("jobOutput", job_id, piece.sequence),
            session_id=session_id,
            job_id=shown,
            sequence=piece.sequence,
            stream="stdout" if piece.stream == STDOUT else "stderr",
            content=content,
            continued=None if len(data) < len(piece.data) else True,
            encoding=None if is_text else "base64",
            created_at=created_at,
        )


def _signal(session_id: str, job_id: bytes, row: SignalRow) -> JobSignalRequest:
    return JobSignalRequest(
        id=derived_id("jobSignal", job_id, row.number),
        session_id=session_id,
        job_id=str(UUID(bytes=job_id)),
        signal=cast(JobSignalName, row.signal),
        accepted=row.accepted,
        state_at_request=cast(JobState, row.state_at_request),
        requested_at=rfc3339(row.requested_at_ms),
    )
