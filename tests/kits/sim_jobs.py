"""What must hold of the commands of a simulated world: their ends, their output, and what was said about both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import msgspec
import trio
from sim_programs import SimProgram
from sim_watch import left_running, untold_ends
from sim_world import START_S, Home, World

from peen.store import jobs
from peen.store.blobs.rows import Blobs, _codec_of
from peen.store.database import Reader
from peen.store.jobs import JobRow
from peen.wire.joboutput import NumberedPiece

MILLISECOND: Final = 0.001
GAP_S: Final = 0.3
"""Lines of two streams that were printed so far apart keep their order; a line without its end waits 0.1 s for it."""
MOMENT_S: Final = 60.0
"""A worker that stands still is lost after 20 s; an end on a full disk is tried again after 1, 2, 4 ... 30 s."""
STREAMS: Final = (0, 1)
PLENTY: Final = 1_000_000
_CALLS: Final = """
SELECT a.call_id, a.key >> 32, a.given, a.output FROM activity a JOIN execution e ON e.no = a.key >> 32
 WHERE e.session_no = ? AND a.call_id IS NOT NULL AND a.state = 'completed' AND a.output IS NOT NULL
"""


@dataclass(frozen=True)
class Job:
    """A stored job, its output, and the program that it was; None if that never started, or nobody knows it."""

    row: JobRow
    pieces: list[NumberedPiece]
    program: SimProgram | None

    def stored(self, stream: int, *, after: int = 0, up_to: int = PLENTY) -> bytes:
        return b"".join(
            piece.data for piece in self.pieces if piece.stream == stream and after < piece.sequence <= up_to
        )


def check_jobs(world: World, reader: Reader) -> Iterator[str]:
    """Breaches of the promises 10, 18 and 19."""
    yield from world.seen
    yield from untold_ends(reader)
    yield from (f"18: {left} although the controller was stopped" for left in left_running(reader))
    for program in world.space.programs:
        if program.ended_s is None:
            yield f"10: {program.command!r} still lives"
    for home in world.homes:
        found = {
            row.id: Job(row, [each.piece for each in jobs.output(reader, row.no, after=0)], _program(world, row))
            for row in jobs.page(reader, home.no, limit=PLENTY, offset=0)
        }
        for job in found.values():
            yield from _end(world, reader, job)
            yield from _output(world, job)
        yield from _results(world, reader, home, list(found.values()))
        yield from _notices(reader, list(found.values()))
    told = reader.rows("SELECT count(*) FROM feed WHERE type = 'notice.created'")
    kept = reader.rows("SELECT count(*) FROM notice")
    if told != kept:
        yield f"18: {kept[0][0]} notices are stored and {told[0][0]} were shown"


def _program(world: World, row: JobRow) -> SimProgram | None:
    """Where no pid was stored in time, the first one with that command that began during the job."""
    began_s = row.started_at_ms / 1000 - START_S - MILLISECOND
    ended_s = math.inf if row.ended_at_ms is None else row.ended_at_ms / 1000 - START_S + MILLISECOND
    fitting = [
        program for program in world.space.programs
        if program.command == row.command
        and (program.pid == row.pid if row.pid is not None else began_s <= program.began_s <= ended_s)
    ]  # fmt: skip
    return fitting[0] if fitting else None


def _end(world: World, reader: Reader, job: Job) -> Iterator[str]:
    """18: what is stored of an end is how the program ended, and it had ended by then."""
    row, program = job.row, job.program
    name = f"job of {row.command!r}"
    if program is None:
        if row.state == "exited" or row.pid is not None:
            yield f"18: {name} is {row.state}, with pid {row.pid}, and nothing ran"
        return
    if row.ended_at_ms is not None and program.ended_s is not None and not program.is_haunted:
        stored_s = row.ended_at_ms / 1000 - START_S
        is_told = row.state == "failed" and program.is_unendable and "still runs" in row.failure_detail
        if program.ended_s > stored_s + MILLISECOND and not is_told:
            yield f"10: {name} is stored as {row.state} at {stored_s:g} s and lived until {program.ended_s:g} s"
    status = program.poll()
    if row.state == "exited" and status != row.exit_code:
        yield f"18: {name} is stored as exited with {row.exit_code}, and it was {status}"
    if row.state != "exited" and row.exit_code != -1:
        yield f"18: {name} is {row.state} with an exit code"
    asked = jobs.signals(reader, row.no, limit=PLENTY, offset=0)
    if row.state == "signalled" and status is not None and status >= 0 and len(program.members) == 1:
        yield f"18: {name} is called signalled, and exited with {status}"
    was_closing = world.closing_s is not None and row.ended_at_ms is not None and (
        row.ended_at_ms / 1000 - START_S >= world.closing_s - MILLISECOND
    )  # fmt: skip
    if row.state == "signalled" and not asked and not was_closing and not world.faults.fired:
        yield f"18: {name} was ended by a signal that nobody has recorded"


def _output(world: World, job: Job) -> Iterator[str]:
    """19: what is stored is what was printed, in order, without holes; of a command that was cut off a beginning."""
    row, program = job.row, job.program
    name = f"output of {row.command!r}"
    if [piece.sequence for piece in job.pieces] != list(range(1, row.line_count + 1)):
        yield f"19: {name} has gaps: {row.line_count} pieces are counted"
    if sum(len(piece.data) for piece in job.pieces) != row.byte_count:
        yield f"19: {name} is counted as {row.byte_count} bytes"
    if program is None:
        if job.pieces:
            yield f"19: {name} is stored, and nothing ran"
        return
    for stream in STREAMS:
        stored, printed = job.stored(stream), program.printed(stream)
        if not printed.startswith(stored):
            yield f"19: {name} on stream {stream} is not what was printed"
        elif row.state in ("exited", "signalled") and stored != printed and not row.output_missing:
            yield f"19: {name} on stream {stream} has {len(stored)} of {len(printed)} bytes and the job is {row.state}"
    whole = sum(len(program.printed(stream)) for stream in STREAMS)
    if row.output_missing and row.state in ("exited", "signalled") and row.byte_count + row.unstored_bytes != whole:
        yield f"19: {name} has {row.byte_count} bytes stored and {row.unstored_bytes} counted as missing, of {whole}"
    if row.output_missing and not world.disk_failed:
        yield f"19: {name} is said to be missing: {row.output_missing}"
    yield from _order(program, job.pieces, name)


def _order(program: SimProgram, pieces: list[NumberedPiece], name: str) -> Iterator[str]:
    """Over both streams: nothing stands before what was printed well before it."""
    times: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
    for written in program.written:
        ends = times[written.stream]
        ends.append(((ends[-1][0] if ends else 0) + len(written.data), written.at_s))
    at = [0, 0]
    placed = []
    for piece in pieces:
        at[piece.stream] += len(piece.data)
        came_s = next((came_s for end, came_s in times[piece.stream] if end >= at[piece.stream]), None)
        if came_s is not None:
            placed.append((came_s, piece.stream))
    for (first_s, first), (second_s, second) in pairwise(placed):
        if first != second and first_s > second_s + GAP_S:
            yield f"19: {name} has its streams in another order than they were printed"


def _results(world: World, reader: Reader, home: Home, found: list[Job]) -> Iterator[str]:
    """18 and 19: what calls were told about jobs is what is stored of them."""
    by_id = {str(UUID(bytes=job.row.id)): job for job in found}
    codec = _codec_of(reader)
    assert codec is not None
    blobs = Blobs(codec)
    for call_id, execution_no, given, output in reader.rows(_CALLS, (home.no,)):
        name, arguments = _call(blobs.take(reader, home.no, given))
        result = _content(blobs.take(reader, home.no, output))
        job = by_id.get(result.get("jobId", ""))
        if job is None:
            continue
        if name == "runCommand":
            if (job.row.call_id, job.row.execution_no) != (call_id, execution_no):
                yield f"18: the call {call_id} returned a job of another call"
            yield from _returned(world, job, result)
        elif result["state"] not in ("running", job.row.state):
            yield f"18: a call was told that {job.row.command!r} is {result['state']}: it is {job.row.state}"
        yield from _shown(world, job, name, arguments, result)


def _returned(world: World, job: Job, result: dict[str, Any]) -> Iterator[str]:
    """A call that returned a handle has a job whose end is told; another one has told the end itself.

    If the command ended while the handle was stored, the call tells both: the end, and that its notice comes.
    """
    row, goes_on = job.row, result.get("running", False)
    if (goes_on or "notice that it has ended follows" in result.get("note", "")) != row.is_detached:
        told = "goes on" if goes_on else "has ended"
        yield f"18: a call was told that {row.command!r} {told}, and detached is {row.is_detached}"
    stored = (row.state, row.exit_code)
    # Output that the disk refuses makes a job fail; how its shell ended the call has seen all the same.
    if not goes_on and stored != (result["state"], result["exitCode"]) and not world.disk_failed:
        yield f"18: a call was told that {row.command!r} is {result['state']}: it is {row.state}, {row.exit_code}"


def _shown(
    world: World, job: Job, name: str, arguments: dict[str, Any], result: dict[str, Any]
) -> Iterator[str]:  # fmt: skip
    """What a result holds of the output is what stands between its cursors."""
    if result.get("stdoutOmittedBytes") or result.get("stderrOmittedBytes"):
        return
    for stream, kind in enumerate(("stdout", "stderr")):
        shown = result.get(kind)
        after, up_to = arguments.get(f"{kind}Cursor", 0), result.get(f"next{kind.title()}Cursor", PLENTY)
        if shown is None or shown.encode() == job.stored(stream, after=after, up_to=up_to):
            continue
        # What the disk did not take the call has seen all the same.
        printed = b"" if job.program is None else job.program.printed(stream)
        if not (world.disk_failed and name == "runCommand" and printed.startswith(shown.encode())):
            yield f"19: {name} showed {shown!r} of {job.row.command!r}, which is not what is stored there"


def _notices(reader: Reader, found: list[Job]) -> Iterator[str]:
    """18: a notice says of an end what is stored of it."""
    by_id = {str(UUID(bytes=job.row.id)): job.row for job in found}
    for (data,) in reader.rows("SELECT data FROM notice WHERE source = 'tools.job' AND data IS NOT NULL"):
        told = msgspec.json.decode(data)
        row = by_id.get(told["jobId"])
        if row is None:
            continue
        is_interrupted = told.get("reason") == "interrupted"
        if told["exitCode"] != row.exit_code or is_interrupted != (row.state == "interrupted"):
            yield f"18: the notice of {row.command!r} says {told}: it is {row.state}, {row.exit_code}"


def unattended(world: World, reader: Reader) -> Iterator[str]:
    """18: while the controller runs, a job that counts as running has a process, or had one until a moment ago."""
    for home in world.homes:
        for row in jobs.page(reader, home.no, limit=PLENTY, offset=0, state="running"):
            program = _program(world, row)
            ended_s = row.started_at_ms / 1000 - START_S if program is None else program.ended_s
            if ended_s is not None and trio.current_time() - ended_s > MOMENT_S:
                yield f"18: job of {row.command!r} counts as running and ended at {ended_s:g} s"


def _call(given: bytes) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a call."""
    call = msgspec.json.decode(given)
    return call["name"], call["arguments"]


def _content(output: bytes) -> dict[str, Any]:
    """The result that was saved of a call, or nothing where it was an error."""
    try:
        content = msgspec.json.decode(msgspec.json.decode(output)["content"])
    except msgspec.DecodeError:
        return {}
    return content if isinstance(content, dict) else {}
