"""What a worker may record about its commands, and that the end of one is news exactly once."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec
import pytest
from job_kit import Desk, desk
from world_kit import AT_MS, HOLDER, check_sequences, make_home, uuid

from peen.errors import SessionBusy
from peen.session.acceptance import fence
from peen.session.jobs import end_generation
from peen.session.recovery import recover
from peen.store import deletion, jobs
from peen.store.database import Tx
from peen.wire.jobcalls import (
    AppendJobOutput,
    CreateJob,
    DetachJob,
    EndJob,
    ListJobs,
    NoteJobStarted,
    ReadJob,
    RecordJobSignal,
)
from peen.wire.joboutput import MAX_CHUNK_BYTES, STDERR, STDOUT, OutputChunk, Piece, chunk_of
from peen.wire.workerstruct import CallingTool

JOB, OTHER = str(uuid(71)), str(uuid(72))


def created(desk: Desk, job_id: str = JOB, purpose: str = "run the test suite") -> CreateJob:
    return CreateJob(caller=desk.caller, job_id=job_id, purpose=purpose, command="pytest", directory="/srv")


def exited(job_id: str = JOB, code: int = 0) -> EndJob:
    return EndJob(job_id=job_id, pid=7, state="exited", exit_code=code)


async def detached(desk: Desk, job_id: str = JOB, *, purpose: str = "run the test suite") -> None:
    await desk.ask(created(desk, job_id, purpose))
    await desk.ask(DetachJob(job_id=job_id, pid=7))


async def generation_ends(desk: Desk) -> None:
    end = partial(
        end_generation,
        generation_id=uuid(2001).bytes,
        state="failed",
        detail="killed",
        exit_code=-9,
        at_ms=AT_MS + 5000,
    )
    await desk.db.write(end)


async def test_a_command_has_a_row_before_anything_else_is_known_of_it() -> None:
    async with desk() as own:
        await own.ask(created(own))

        job = own.job(JOB)
        assert (job.state, job.exit_code, job.pid, job.is_detached, job.call_id) == (
            "running",
            -1,
            None,
            False,
            "call_1",
        )
        await own.ask(NoteJobStarted(job_id=JOB, pid=4711))
        assert own.job(JOB).pid == 4711


@pytest.mark.parametrize(
    ("end", "kind", "summary", "code"),
    [
        (exited(code=3), "job.exited", "exited with code 3", 3),
        (EndJob(job_id=JOB, state="signalled"), "job.signalled", "was terminated by a signal", -1),
        (EndJob(job_id=JOB, state="failed", failure_detail="disk"), "job.failed", "failed: disk", -1),
    ],
)
async def test_the_end_of_a_job_is_told_by_one_notice(end: EndJob, kind: str, summary: str, code: int) -> None:
    async with desk() as own:
        await detached(own)
        await own.ask(end)
        assert await own.refused(end) == "STALE_CLAIM"

        (notice,) = own.notices()
        took = own.job(JOB).ended_at_ms or 0
        took_ms = took - own.job(JOB).started_at_ms
        data = notice.pop("data")
        assert (notice["type"], notice["source"], notice["delivery"]) == (kind, "tools.job", "queue")
        assert notice["summary"] == f"job {JOB} (run the test suite) {summary}"
        assert data == {"jobId": JOB, "exitCode": code, "durationMs": took_ms, "duration": data["duration"]}
        check_sequences(own.db.reader)


async def test_the_notice_of_a_job_is_one_line_whatever_its_purpose_is() -> None:
    async with desk() as own:
        await own.ask(msgspec.structs.replace(created(own), purpose="run\r\n\tit \x1b[31mnow\u2028\x9b2J\n"))
        await own.ask(DetachJob(job_id=JOB, pid=4711))
        await own.ask(exited(code=0))

        (notice,) = own.notices()
        assert notice["summary"] == f"job {JOB} (run it  [31mnow 2J) exited with code 0"


async def test_a_command_that_ended_inside_its_call_is_no_news() -> None:
    async with desk() as own:
        await own.ask(created(own))
        await own.ask(exited())

        assert own.job(JOB).state == "exited"
        assert own.notices() == []


async def test_a_long_purpose_is_cut_and_how_it_ended_stays() -> None:
    async with desk() as own:
        await detached(own, purpose="ä" * 5000)
        await own.ask(exited())

        (notice,) = own.notices()
        assert len(notice["summary"].encode()) <= 4096
        assert notice["summary"].endswith("…) exited with code 0")


async def test_jobs_of_a_worker_that_is_gone_end_as_interrupted_and_are_told_once() -> None:
    async with desk() as own:
        await detached(own)
        await own.ask(created(own, OTHER))  # its call is under way, and no result will tell of it
        await generation_ends(own)
        await generation_ends(own)

        assert [(job.state, job.exit_code) for job in own.jobs()] == [("interrupted", -1)] * 2
        assert [notice["type"] for notice in own.notices()] == ["job.failed"] * 2
        assert [notice["data"]["jobId"] for notice in own.notices()] == [JOB, OTHER]
        assert {(each["data"]["exitCode"], each["data"]["reason"]) for each in own.notices()} == {(-1, "interrupted")}
        listed = await own.ask(ListJobs(limit=10))
        assert [job.job_id for job in listed.jobs] == [OTHER, JOB]
        assert await own.refused(exited()) == "STALE_CLAIM"
        assert len(own.notices()) == 2


async def test_a_command_that_a_stop_was_ending_when_its_worker_went_is_no_news() -> None:
    async with desk() as own:
        await own.ask(created(own))
        await own.ask(RecordJobSignal(job_id=JOB, signal="stop"))
        await generation_ends(own)

        assert own.job(JOB).state == "interrupted"
        assert own.notices() == []


async def test_recovery_after_a_crash_ends_jobs_like_their_worker() -> None:
    async with desk() as own:
        await detached(own)
        await recover(own.db, own.entropy)
        await recover(own.db, own.entropy)

        assert own.job(JOB).state == "interrupted"
        assert [notice["type"] for notice in own.notices()] == ["job.failed"]


async def test_after_a_stop_no_command_starts_and_those_that_run_are_still_recorded() -> None:
    async with desk() as own:
        await detached(own)
        await own.db.write(partial(fence, session_no=own.home.no, at_ms=AT_MS))

        assert await own.refused(created(own, OTHER)) == "STALE_CLAIM"
        await own.ask(AppendJobOutput(job_id=JOB, chunks=[chunk_of(1, [Piece(STDOUT, False, b"on\n")])]))
        await own.ask(RecordJobSignal(job_id=JOB, signal="stop"))
        await own.ask(exited())
        assert [notice["type"] for notice in own.notices()] == ["job.exited"]


async def test_a_command_belongs_to_a_call_that_runs() -> None:
    async with desk() as own:
        for caller in (
            CallingTool(execution_id=own.caller.execution_id, holder=HOLDER, call_id="another"),
            CallingTool(execution_id=own.caller.execution_id, holder="ff" * 16, call_id="call_1"),
            CallingTool(execution_id=str(uuid(99)), holder=HOLDER, call_id="call_1"),
        ):
            request = CreateJob(caller=caller, job_id=JOB, purpose="", command="true", directory="/")
            assert await own.refused(request) == "STALE_CLAIM"
        assert own.jobs() == []


async def test_another_generation_and_another_session_write_nothing() -> None:
    async with desk() as own:
        await detached(own)
        await own.db.write(partial(jobs.end_left, owner=jobs.Owner(own.home.no, 99), detail="", at_ms=AT_MS))
        stranger = await make_home(own.db, 2)
        line = [chunk_of(1, [Piece(STDOUT, False, b"x\n")])]
        for change in (
            partial(jobs.append, chunks=line, at_ms=AT_MS),
            partial(jobs.started, pid=9),
            partial(jobs.detach, pid=9),
        ):
            for owner in (
                jobs.Owner(stranger.no, own.home.generation_no),
                jobs.Owner(own.home.no, stranger.generation_no),
            ):
                with pytest.raises(Exception, match="does not run under this worker generation"):
                    await own.db.write(partial(change, owner=owner, job_id=UUID(JOB).bytes))
        assert own.job(JOB).state == "running"
        assert own.job(JOB).pid == 7


async def test_output_is_read_by_cursor_one_stream_at_a_time() -> None:
    async with desk() as own:
        await detached(own)
        first = [Piece(STDOUT, False, b"a\n"), Piece(STDERR, False, b"!\n"), Piece(STDOUT, True, b"lo")]
        second = [Piece(STDERR, False, b"?\n"), Piece(STDOUT, False, b"ng\n")]
        await own.ask(AppendJobOutput(job_id=JOB, chunks=[chunk_of(1, first)]))
        await own.ask(EndJob(job_id=JOB, state="exited", exit_code=0, chunks=[chunk_of(4, second)]))

        whole = await own.ask(ReadJob(job_id=JOB, stdout_cursor=0, stderr_cursor=0, max_lines=500, max_bytes=1000))
        assert (whole.stdout.data, whole.stderr.data) == (b"a\nlong\n", b"!\n?\n")
        assert (whole.stdout.cursor, whole.stderr.cursor, whole.job.lines, whole.job.bytes) == (5, 4, 5, 11)
        page = await own.ask(ReadJob(job_id=JOB, stdout_cursor=0, max_lines=1, max_bytes=1000))
        assert (page.stdout.data, page.stdout.cursor, page.stdout.cut, page.stderr) == (b"a\n", 1, True, None)
        rest = await own.ask(ReadJob(job_id=JOB, stdout_cursor=1, max_lines=1, max_bytes=1000))
        assert (rest.stdout.data, rest.stdout.cursor, rest.stdout.cut) == (b"long\n", 5, False)
        over = await own.ask(ReadJob(job_id=JOB, stdout_cursor=5, max_lines=1, max_bytes=1000))
        assert (over.stdout.data, over.stdout.cursor) == (b"", 5)
        assert (await own.ask(ReadJob(job_id=OTHER, stdout_cursor=0, max_lines=1, max_bytes=9))).job is None


async def test_a_chunk_that_does_not_follow_or_does_not_fit_is_refused() -> None:
    async with desk() as own:
        await detached(own)
        line = Piece(STDOUT, False, b"x\n")
        for chunk, code in (
            (chunk_of(2, [line]), "STALE_CLAIM"),
            (chunk_of(1, []), "VALIDATION_FAILED"),
            (OutputChunk(first=1, index=b"\x08\0\0\0", data=b"xyz"), "VALIDATION_FAILED"),
            (chunk_of(1, [Piece(STDOUT, False, b"x" * (MAX_CHUNK_BYTES + 1))]), "VALIDATION_FAILED"),
        ):
            assert await own.refused(AppendJobOutput(job_id=JOB, chunks=[chunk])) == code
        assert own.job(JOB).line_count == 0


async def test_every_request_for_a_signal_is_kept_with_the_state_that_it_met() -> None:
    async with desk() as own:
        await detached(own)
        await own.ask(RecordJobSignal(job_id=JOB, signal="stop"))
        await own.ask(EndJob(job_id=JOB, state="signalled"))
        late = await own.ask(RecordJobSignal(job_id=JOB, signal="kill"))
        unknown = await own.ask(RecordJobSignal(job_id=OTHER, signal="kill"))

        kept = jobs.signals(own.db.reader, own.job(JOB).no, limit=10, offset=0)
        assert [(row.number, row.signal, row.accepted, row.state_at_request) for row in kept] == [
            (1, "stop", True, "running"),
            (2, "kill", False, "signalled"),
        ]
        assert (late.found, late.accepted, late.state, unknown.found) == (True, False, "signalled", False)


async def test_the_model_is_shown_jobs_whose_handle_it_has_newest_first() -> None:
    async with desk() as own:
        await detached(own, JOB)
        await own.ask(created(own, str(uuid(73))))
        await detached(own, OTHER)
        await own.ask(exited(JOB))

        assert [job.job_id for job in (await own.ask(ListJobs(limit=10))).jobs] == [OTHER, JOB]
        assert [job.job_id for job in (await own.ask(ListJobs(state="running", limit=10))).jobs] == [OTHER]
        cut = await own.ask(ListJobs(limit=1))
        assert ([job.job_id for job in cut.jobs], cut.has_more) == ([OTHER], True)


async def test_a_session_with_a_running_command_is_not_deleted() -> None:
    async with desk() as own:
        await detached(own)
        await own.db.write(partial(fence, session_no=own.home.no, at_ms=AT_MS))
        await own.db.write(_end_turns)

        with pytest.raises(SessionBusy, match="a command is running"):
            await own.db.write(partial(deletion.mark, session_id=own.home.id, at_ms=AT_MS))
        await own.ask(exited())
        await own.db.write(partial(deletion.mark, session_id=own.home.id, at_ms=AT_MS))


def _end_turns(tx: Tx) -> None:
    tx.execute("UPDATE turn SET state = 'cancelled'")
