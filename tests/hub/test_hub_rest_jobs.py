"""Jobs over REST: listed, read by cursor, signalled."""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from job_kit import Desk, desk_in
from rest_kit import Office, office
from world_kit import make_home, uuid

from peen.wire.jobcalls import AppendJobOutput, CreateJob, DetachJob, EndJob
from peen.wire.joboutput import STDERR, STDOUT, Piece, chunk_of

JOBS = [str(uuid(70 + number)) for number in range(4)]
ABSENT = str(uuid(99))
LINES = [
    Piece(STDOUT, False, b"one\n"),
    Piece(STDERR, False, b"\xff\xfe\n"),
    Piece(STDOUT, True, "zw\u00f6".encode()),
    Piece(STDERR, False, b"\x1b[31mred\0\n"),
    Piece(STDOUT, False, b"lf\n"),
    Piece(STDOUT, True, b"no end"),
]


async def start(desk: Desk, number: int, *, detached: bool = True) -> None:
    job_id = JOBS[number]
    await desk.ask(
        CreateJob(caller=desk.caller, job_id=job_id, purpose=f"job {number}", command="make", directory="/w")
    )
    if detached:
        await desk.ask(DetachJob(job_id=job_id, pid=40 + number))


async def prints(desk: Desk, number: int, first: int, pieces: list[Piece]) -> None:
    await desk.ask(AppendJobOutput(job_id=JOBS[number], chunks=[chunk_of(first, pieces)]))


async def at_work(own: Office) -> Desk:
    """Four jobs: one ended in its call, one exited later, one was signalled, one runs."""
    desk = await desk_in(own.database)
    for number in range(4):
        await start(desk, number, detached=number > 0)
    await desk.ask(EndJob(job_id=JOBS[0], pid=40, state="exited", exit_code=0))
    await desk.ask(EndJob(job_id=JOBS[1], state="exited", exit_code=2))
    await desk.ask(EndJob(job_id=JOBS[2], state="signalled"))
    return desk


def raw(lines: list[dict[str, Any]], stream: str) -> bytes:
    """What was printed, as the lines say."""
    return b"".join(
        (b64decode(line["content"]) if line.get("encoding") == "base64" else line["content"].encode())
        + (b"" if line.get("continued") else b"\n")
        for line in lines
        if line["stream"] == stream
    )


async def test_jobs_are_listed_newest_first_and_by_state(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = (await at_work(own)).home
        whole = (await own.get("/session/jobs", home))["jobs"]
        page = await own.get("/session/jobs", home, limit=2, offset=1)
        running = (await own.get("/session/jobs", home, state="running"))["jobs"]

    assert [job["jobId"] for job in whole] == JOBS[::-1]
    assert [(job["state"], job["exitCode"], job["detached"], job["pid"]) for job in whole] == [
        ("running", -1, True, 43),
        ("signalled", -1, True, 42),
        ("exited", 2, True, 41),
        ("exited", 0, False, 40),
    ]
    assert ["endedAt" in job for job in whole] == [False, True, True, True]
    assert ([job["jobId"] for job in page["jobs"]], page["hasMore"]) == ([JOBS[2], JOBS[1]], True)
    assert [job["jobId"] for job in running] == [JOBS[3]]
    assert {job["turnId"] for job in whole} == {str(uuid(3001))}


async def test_output_is_read_onwards_from_a_cursor_with_every_byte(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        desk = await at_work(own)
        await prints(desk, 3, 1, LINES[:4])
        await prints(desk, 3, 5, LINES[4:])
        path = f"/session/jobs/{JOBS[3]}/output"
        whole = await own.get(path, desk.home)
        pages = [await own.get(path, desk.home, limit=2, cursor=cursor) for cursor in (0, 2, 4, 6)]
        errors = await own.get(path, desk.home, stream="stderr")
        past = await own.get(path, desk.home, cursor=2**63 - 1)

    assert (whole["state"], whole["nextCursor"], whole["hasMore"]) == ("running", 6, False)
    assert [line["sequence"] for line in whole["lines"]] == [1, 2, 3, 4, 5, 6]
    assert raw(whole["lines"], "stdout") == b"one\n" + "zw\u00f6lf\n".encode() + b"no end"
    assert raw(whole["lines"], "stderr") == b"\xff\xfe\n\x1b[31mred\0\n"
    assert whole["lines"][1]["content"] == b64encode(b"\xff\xfe").decode()
    assert [line for page in pages for line in page["lines"]] == whole["lines"]
    assert [(page["nextCursor"], page["hasMore"]) for page in pages] == [(2, True), (4, True), (6, False), (6, False)]
    assert [line["sequence"] for line in errors["lines"]] == [2, 4]
    assert (past["lines"], past["hasMore"]) == ([], False)
    assert len({line["id"] for line in whole["lines"]}) == 6


async def test_a_signal_is_recorded_and_passed_on_while_the_job_runs(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = (await at_work(own)).home
        status, told = await own.ask("POST", f"/session/jobs/{JOBS[3]}/signal", session=home, body=b'{"signal":"kill"}')
        over, late = await own.ask("POST", f"/session/jobs/{JOBS[1]}/signal", session=home, body=b'{"signal":"stop"}')
        kept = await own.get(f"/session/jobs/{JOBS[3]}/signals", home)
        kept_late = await own.get(f"/session/jobs/{JOBS[1]}/signals", home)

    assert (status, told) == (202, {"jobId": JOBS[3], "signalled": True, "state": "running"})
    assert (over, late) == (202, {"jobId": JOBS[1], "signalled": False, "state": "exited"})
    assert own.signalled == [(home.uuid, JOBS[3], "kill")]
    (request,) = kept["signalRequests"]
    assert (request["signal"], request["accepted"], request["stateAtRequest"]) == ("kill", True, "running")
    assert kept["job"]["jobId"] == JOBS[3]
    (request,) = kept_late["signalRequests"]
    assert (request["signal"], request["accepted"], request["stateAtRequest"]) == ("stop", False, "exited")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"signal":"hup"}', b'{"signal":"stop","x":1}', b'"stop"'])
async def test_what_is_no_signal_is_refused_and_not_recorded(tmp_path: Path, body: bytes) -> None:
    async with office(tmp_path) as own:
        home = (await at_work(own)).home
        status, _ = await own.ask("POST", f"/session/jobs/{JOBS[3]}/signal", session=home, body=body)
        kept = await own.get(f"/session/jobs/{JOBS[3]}/signals", home)

    assert status == 400
    assert (kept["signalRequests"], own.signalled) == ([], [])


async def test_a_job_of_another_session_does_not_exist(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = (await at_work(own)).home
        stranger = await make_home(own.database, 2)
        for session, job_id in ((stranger, JOBS[3]), (home, ABSENT)):
            assert await own.refusal("GET", f"/session/jobs/{job_id}/output", session) == (404, "NOT_FOUND")
            assert await own.refusal("GET", f"/session/jobs/{job_id}/signals", session) == (404, "NOT_FOUND")
            status, _ = await own.ask(
                "POST", f"/session/jobs/{job_id}/signal", session=session, body=b'{"signal":"stop"}'
            )
            assert status == 404
        assert (await own.get("/session/jobs", stranger))["jobs"] == []


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 2001}, {"cursor": -1}, {"stream": "stdin"}, {"state": "x"}])
async def test_bounds_of_the_query_are_checked(tmp_path: Path, query: dict[str, Any]) -> None:
    async with office(tmp_path) as own:
        home = (await at_work(own)).home
        refused = await own.refusal("GET", f"/session/jobs/{JOBS[3]}/output", home, **query)
        assert refused == (400, "VALIDATION_FAILED")
        assert await own.refusal("GET", "/session/jobs", home, state="over") == (400, "VALIDATION_FAILED")
        assert await own.refusal("GET", "/session/jobs/nonsense/output", home) == (400, "VALIDATION_FAILED")
