"""Output of commands is the first thing that a disk with little space, or a limit, goes without."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from job_kit import Desk, desk
from world_kit import AT_MS, uuid

from peen.session.jobs import end_generation
from peen.session.outputroom import LEAST_FLOOR_BYTES, LOOK_S, MOST_FLOOR_BYTES, OutputRoom, free_space
from peen.wire.jobcalls import AppendJobOutput, CreateJob, DetachJob, EndJob, JobOutputAppended, ListJobs, ReadJob
from peen.wire.joboutput import STDERR, STDOUT, Piece, chunk_of

JOB = str(uuid(71))
MIB = 1024 * 1024
DATABASE = Path("/state/peen.db")


class Disk:
    """Its space, and a clock; counts how often it was looked at."""

    def __init__(self, free: int, total: int = 1000 * MIB) -> None:
        self.free, self.total, self.now_s, self.looks = free, total, 0.0, 0

    def space_of(self, path: Path) -> tuple[int, int]:
        self.looks += 1
        return self.free, self.total

    def room(self, *, min_free_bytes: int | None = None, max_job_bytes: int = 0) -> OutputRoom:
        return OutputRoom(
            DATABASE,
            min_free_bytes=min_free_bytes,
            max_job_bytes=max_job_bytes,
            now_s=lambda: self.now_s,
            space_of=self.space_of,
        )


async def detached(desk: Desk) -> None:
    await desk.ask(CreateJob(caller=desk.caller, job_id=JOB, purpose="print", command="yes", directory="/"))
    await desk.ask(DetachJob(job_id=JOB, pid=7))


def lines(first: int, count: int) -> AppendJobOutput:
    """Lines of ten bytes, the streams in turn."""
    pieces = [
        Piece(STDOUT if number % 2 else STDERR, False, b"%09d\n" % number) for number in range(first, first + count)
    ]
    return AppendJobOutput(job_id=JOB, chunks=[chunk_of(first, pieces)])


@pytest.mark.parametrize(
    ("total", "floor"),
    [(100 * MIB, LEAST_FLOOR_BYTES), (1000 * MIB, 50 * MIB), (1000 * 1024 * MIB, MOST_FLOOR_BYTES)],
)
def test_the_floor_is_a_share_of_the_disk_within_bounds(total: int, floor: int) -> None:
    assert Disk(floor + 200, total).room().allowance(100).refusal == ""
    refusal = Disk(floor + 199, total).room().allowance(100).refusal
    assert f"{floor} bytes" in refusal
    assert "PEEN_JOB_OUTPUT_MIN_FREE_BYTES" in refusal


def test_without_a_floor_the_disk_is_never_looked_at() -> None:
    disk = Disk(0)

    assert disk.room(min_free_bytes=0).allowance(100).refusal == ""
    assert disk.looks == 0


def test_the_disk_is_looked_at_once_a_second_while_there_is_room_and_before_it_could_be_gone() -> None:
    disk = Disk(100 * MIB)
    room = disk.room(min_free_bytes=90 * MIB)
    for _ in range(80):
        assert room.allowance(65_536).refusal == ""
    assert disk.looks == 1
    disk.free = 90 * MIB  # what was stored has come to the disk, once in the log and once in the database

    assert room.allowance(65_536).refusal != ""
    assert disk.looks == 2

    disk.free = 200 * MIB
    assert room.allowance(65_536).refusal == ""
    for _ in range(10):
        disk.now_s += LOOK_S
        room.allowance(0)
    assert disk.looks == 3 + 10


def test_the_log_is_taken_off_what_is_free(tmp_path: Path) -> None:
    database = tmp_path / "peen.db"
    before, total = free_space(database)
    with database.with_name("peen.db-wal").open("wb") as file:
        file.truncate(total)  # takes no space itself

    assert before > 0
    assert free_space(database)[0] <= 0
    assert free_space(tmp_path / "nowhere" / "peen.db")[0] == 2**63 - 1


async def test_a_job_stores_its_beginning_up_to_the_limit_and_says_what_is_missing() -> None:
    async with desk() as own:
        own.limit(Disk(0).room(min_free_bytes=0, max_job_bytes=95))
        await detached(own)

        assert await own.ask(lines(1, 8)) == JobOutputAppended()
        assert (await own.ask(lines(9, 3))).unstored_bytes == 20
        told = await own.ask(lines(12, 1))
        assert told.unstored_bytes == 10

        job = own.job(JOB)
        assert (job.line_count, job.byte_count, job.state, job.failure_detail) == (9, 90, "running", "")
        assert job.unstored_bytes == 20
        assert job.output_missing == told.output_missing
        assert told.output_missing == (
            "what it printed behind number 9 is not stored: "
            "no more than 95 bytes of a job are (PEEN_MAX_JOB_OUTPUT_BYTES)"
        )
        assert own.printed(JOB, STDOUT) == b"".join(b"%09d\n" % number for number in (1, 3, 5, 7, 9))

        end = EndJob(
            job_id=JOB, pid=7, state="exited", exit_code=3, chunks=lines(13, 1).chunks, unstored_bytes=30,
            output_missing=told.output_missing,
        )  # fmt: skip
        await own.ask(end)
        job = own.job(JOB)
        assert (job.state, job.exit_code, job.failure_detail, job.unstored_bytes) == ("exited", 3, "", 40)
        (notice,) = own.notices()
        assert notice["type"] == "job.exited"
        assert notice["summary"].endswith("exited with code 3; 40 bytes of its output are not stored")
        assert notice["data"]["unstoredBytes"] == 40


async def test_a_disk_with_little_space_takes_no_more_output_of_this_job_and_everything_else() -> None:
    disk = Disk(100 * MIB)
    async with desk() as own:
        own.limit(disk.room(min_free_bytes=90 * MIB))
        await detached(own)
        await own.ask(lines(1, 2))
        disk.free, disk.now_s = 90 * MIB, LOOK_S
        assert (await own.ask(lines(3, 1))).unstored_bytes == 10
        disk.free, disk.now_s = 100 * MIB, 2 * LOOK_S
        assert (await own.ask(lines(4, 1))).unstored_bytes == 10  # no gap: what is stored is the beginning

        told = AppendJobOutput(job_id=JOB, chunks=[], unstored_bytes=5000, output_missing="another reason")
        await own.ask(told)
        (listed,) = (await own.ask(ListJobs(limit=10))).jobs
        assert (listed.lines, listed.bytes, listed.unstored_bytes, listed.failure_detail) == (2, 20, 5000, "")
        assert listed.output_missing.startswith("what it printed behind number 2 is not stored: ")
        read = await own.ask(ReadJob(job_id=JOB, stdout_cursor=0, stderr_cursor=0, max_lines=9, max_bytes=999))
        assert (read.stdout.data, read.stderr.data) == (b"000000001\n", b"000000002\n")

        disk.free, disk.now_s = 0, 3 * LOOK_S
        await own.ask(EndJob(job_id=JOB, pid=7, state="exited", exit_code=0, chunks=lines(5, 1).chunks))
        assert (own.job(JOB).state, own.job(JOB).line_count) == ("exited", 2)


async def test_what_only_the_worker_knows_to_be_missing_is_recorded_with_the_end() -> None:
    async with desk() as own:
        await detached(own)
        await own.ask(lines(1, 1))
        missing = "what it printed behind number 1 is not stored: the disk of PEEN_STATE_DIR was full"
        end = EndJob(job_id=JOB, state="failed", failure_detail="no disk", unstored_bytes=7, output_missing=missing)
        await own.ask(end)

        job = own.job(JOB)
        assert (job.failure_detail, job.unstored_bytes, job.output_missing) == ("no disk", 7, missing)


async def test_a_crash_keeps_what_is_known_to_be_missing() -> None:
    async with desk() as own:
        await detached(own)
        await own.ask(AppendJobOutput(job_id=JOB, chunks=[], unstored_bytes=7, output_missing="a reason"))
        end = partial(
            end_generation, generation_id=uuid(2001).bytes, state="failed", detail="", exit_code=-9, at_ms=AT_MS
        )
        await own.db.write(end)

        job = own.job(JOB)
        assert (job.state, job.unstored_bytes, job.output_missing) == ("interrupted", 7, "a reason")
        assert "ended with them" in job.failure_detail
