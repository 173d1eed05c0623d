"""What must hold of a simulated world when all is over, whatever went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sim_client import Client
from sim_jobs import check_jobs
from sim_model import ToolRun, label_of
from sim_told import told as what_was_told
from sim_world import START_S, Home, World
from world_kit import check_sequences

from peen.actors import holds
from peen.errors import LinkLost, StaleClaim
from peen.feed.project import render
from peen.store import controlevents, executions, feed, keys, turns
from peen.store.database import Reader
from peen.testing.faults import SimulatedCrash
from peen.wire.websocket import payload_of, text_frame

TERMINAL: Final = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})
BEGINNING: Final = frozenset({"turn.started", "turn.resumed"})
PLENTY: Final = 1_000_000
STOP_S: Final = 5.0
MILLISECOND: Final = 0.001
RECORDED: Final = frozenset({"look", "change", "runCommand"})
"""Tools that write down that they ran."""
NEVER_MS: Final = 1 << 62


class Broken(AssertionError):
    """Promises that a world did not keep."""


def check(world: World) -> None:
    """Hold a finished world against the numbered promises of docs/durability.md.

    Raises: Broken, with a line for each breach and the command that repeats the world.
    """
    reader = world.reader()
    problems = [*_program(world)]
    try:
        check_sequences(reader)
    except AssertionError as gap:
        problems.append(f"1: a sequence has a gap or the log refers to nothing: {gap}")
    for home in world.homes:
        problems += _feed(world, reader, home)
        problems += what_was_told(world, reader, home)
        problems += _turns(world, reader, home)
        problems += _segments(world, reader, home)
    problems += _tools(world, reader)
    problems += _stops(world, reader)
    problems += _generations(reader)
    problems += _spending(reader)
    problems += _summaries(reader)
    problems += check_jobs(world, reader)
    for ghost in world.ghosts:
        problems += [f"4: a replaced worker's call was carried out: {call}" for call in ghost.granted]
    problems += [f"12: a strict provider refused a request: {refusal}" for refusal in world.ledger.refused]
    if problems:
        raise Broken("\n".join([f"world {world.name!r} broke its promises:", *problems, world.repeat]))


def _program(world: World) -> Iterator[str]:
    """No fault of the program itself, and nothing left behind."""
    for fault in world.space.broken:
        yield f"a worker broke: {fault!r}"
    for entry in world.logs:
        fault = entry.get("exc_info")
        is_death = fault is not None and any(holds(fault, kind) for kind in (SimulatedCrash, LinkLost, StaleClaim))
        if entry["log_level"] == "error" and not is_death and not world.disk_failed:
            yield f"an error was logged: {entry['event']} {fault!r}"
    if world.ledger.open_streams or world.ledger.running_tools:
        yield f"{world.ledger.open_streams} requests and {world.ledger.running_tools} tools still run"


def _feed(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """1: what was heard live is what is stored, byte for byte, without a gap."""
    rows = feed.after(reader, home.no, 0, limit=PLENTY, max_bytes=PLENTY * 100)
    stored = [text_frame(render(row, session=home.id, session_id=home.uuid)) for row in rows]
    for number, client in enumerate(world.clients):
        for frames in client.connections:
            live = [(_sequence(frame), frame) for frame in frames if _session(frame) == home.uuid]
            sequenced = [(sequence, frame) for sequence, frame in live if sequence is not None]
            if not sequenced:
                continue
            first = sequenced[0][0]
            expected = stored[first - 1 : first - 1 + len(sequenced)]
            if [frame for _, frame in sequenced] != expected:
                yield f"1: client {number} heard other frames of session {home.no} than are stored"


def _turns(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """8: every turn has one end each time it ran, which everybody hears of last, and before its acknowledgement."""
    rows = feed.after(reader, home.no, 0, limit=PLENTY, max_bytes=PLENTY * 100)
    for turn in turns.page(reader, home.no, limit=PLENTY, offset=0):
        if turn.state == "running":
            yield f"8: turn {turn.no} still runs"
        told = [row.type for row in rows if row.request_id == turn.request_id and row.type in BEGINNING | TERMINAL]
        ends = [frame_type in TERMINAL for frame_type in told]
        if ends != [True] and ends != [False, True] * max(1, len(ends) // 2):
            yield f"8: turn {turn.no} does not begin and end by turns: {told}"
        execution = executions.root_of(reader, turn.no)
        if execution is None:
            continue
        if _is_held(execution):
            yield f"8: turn {turn.no} has ended and its execution is {execution.state}, held"
        resumed = sum(
            event_type == "execution.resumed" for event_type, _, _ in controlevents.events(reader, execution.no)
        )
        if told.count("turn.resumed") != resumed:
            yield f"8: turn {turn.no} was resumed {resumed} times and tells of {told.count('turn.resumed')}"
    for client in world.clients:
        for frames in client.connections:
            yield from _acknowledgements(client, [msgspec.json.decode(payload_of(frame)) for frame in frames])


def _segments(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """8: one turn runs at a time, and its blocks count on from one of its segments to the next.

    Where the disk refused a result, the number of its block is not given again to the result beside it.
    """
    running: bytes | None = None
    started: dict[bytes, list[int]] = {}
    stopped: dict[bytes, list[int]] = {}
    for row in feed.after(reader, home.no, 0, limit=PLENTY, max_bytes=PLENTY * 100):
        request = row.request_id
        if request is None:
            continue
        if row.type in BEGINNING:
            if running is not None:
                yield f"8: {row.type} in frame {row.sequence} while another turn ran"
            running = request
        elif row.type in TERMINAL:
            running = None
        elif row.type == "content_block_start":
            started.setdefault(request, []).append(msgspec.json.decode(row.data)["index"])
        elif row.type == "content_block_stop":
            stopped.setdefault(request, []).append(msgspec.json.decode(row.data)["index"])
    for request, indexes in started.items():
        numbers = sorted(set(indexes)) if world.disk_failed else list(range(len(indexes)))
        if indexes != numbers:
            yield f"8: the blocks of request {UUID(bytes=request)} are numbered {indexes}"
        if sorted(stopped.get(request, [])) != indexes:
            yield f"8: of the blocks {indexes} of request {UUID(bytes=request)} {stopped.get(request)} were closed"


def _acknowledgements(client: Client, heard: list[dict[str, Any]]) -> Iterator[str]:
    """The end of a turn is heard before the answer to the message that opened it, where both are heard live."""
    ended: set[str | None] = set()
    for frame in heard:
        request = (frame.get("metadata") or {}).get("requestId")
        if frame["type"] in TERMINAL:
            ended.add(request)
        elif frame["type"] == "message.completed" and not frame["data"].get("queued") and frame.get("triggeredBy"):
            sent = client.sent.get(frame["triggeredBy"])
            if sent is not None and sent.tries == 1 and request not in ended:
                yield f"8: message {sent.message.message!r} was acknowledged before its turn had ended"


def _tools(world: World, reader: Reader) -> Iterator[str]:
    """2 and 3: a tool runs once, after its step was claimed; what came of it is stored or is called uncertain.

    Only a step that was cut off runs again, and one that may have changed something only after somebody said so.
    """
    runs: dict[str, list[ToolRun]] = {}
    for run in world.ledger.runs:
        runs.setdefault(run.label, []).append(run)
    steps: set[str] = set()
    for row in reader.rows(
        "SELECT key, kind, state, attempt, given, resolution, ended_at_ms FROM activity WHERE call_id IS NOT NULL"
    ):
        call = _Call(*row)
        if call.label in steps:
            yield f"2: call {call.label!r} was begun twice"
        steps.add(call.label)
        # A command whose row the disk refuses is not started, and its result says so.
        may_not_run = not call.is_recorded or (call.name == "runCommand" and world.disk_failed)
        yield from _runs(reader, call, runs.get(call.label, []), must_run=not may_not_run)
    for label in runs:
        if label not in steps:
            yield f"3: call {label!r} ran and its step was never claimed"


class _Call(NamedTuple):
    """A tool's step as it is stored."""

    key: int
    kind: str
    state: str
    attempt: int
    given: bytes
    resolution: bytes | None
    ended_at_ms: int | None

    @property
    def is_recorded(self) -> bool:
        """Whether runs of it are in the ledger."""
        return self.name in RECORDED

    @property
    def name(self) -> str:
        return str(msgspec.json.decode(self.given)["name"])

    @property
    def label(self) -> str:
        return label_of(msgspec.json.encode(msgspec.json.decode(self.given)["arguments"]))

    @property
    def decision(self) -> str | None:
        """What was decided about it last."""
        return None if self.resolution is None else str(msgspec.json.decode(self.resolution)["decision"])


def _runs(reader: Reader, call: _Call, runs: list[ToolRun], *, must_run: bool) -> Iterator[str]:
    label, kind, state = call.label, call.kind, call.state
    if len(runs) > call.attempt:
        yield f"3: call {label!r} ran {len(runs)} times and its step was begun {call.attempt} times"
    allowed = _retries(reader, call)
    for before, again in pairwise(runs) if kind == "effect" else ():
        if not any(before.began_s - MILLISECOND <= at_s <= again.began_s + MILLISECOND for at_s in allowed):
            yield f"3: call {label!r} ran again and nobody had decided that"
    if state == "completed":
        assert call.ended_at_ms is not None
        stored_s = call.ended_at_ms / 1000 - START_S
        if any(run.began_s > stored_s + MILLISECOND for run in runs):
            yield f"2: call {label!r} had a stored result and was made again"
        if must_run and call.decision in (None, "retry") and not any(run.is_done for run in runs):
            yield f"2: call {label!r} has a stored result and never ran to its end"
    if state in ("running", "failed") and kind == "effect":
        yield f"3: call {label!r} was cut off and is called {state}, not uncertain"
    if state == "interrupted" and kind == "effect" and call.decision != "retry":
        yield f"3: call {label!r} was cut off and may run again, and nobody had decided that"
    if state == "uncertain" and kind != "effect":
        yield f"3: call {label!r} changes nothing and is called uncertain"


def _retries(reader: Reader, call: _Call) -> list[float]:
    """When somebody decided that the call may be made again."""
    step = keys.step_id(keys.sequence_of(call.key))
    events = controlevents.events(reader, call.key >> 32)
    decided = [(msgspec.json.decode(data), at_ms) for name, data, at_ms in events if name == "activity.resolved"]
    return [
        at_ms / 1000 - START_S
        for data, at_ms in decided
        if data["step"] == step and data["decision"] == "retry"
    ]  # fmt: skip


def _stops(world: World, reader: Reader) -> Iterator[str]:
    """7 and 9: after a Stop nothing begins until somebody resumes it, and within 5 s nothing runs."""
    for (execution_no,) in reader.rows("SELECT no FROM execution"):
        events = [(name, at_ms) for name, _, at_ms in controlevents.events(reader, execution_no)]
        marks = [mark for mark in events if mark[0] in ("execution.paused", "execution.resumed")]
        for (name, from_ms), (_, until_ms) in pairwise([*marks, ("", NEVER_MS)]):
            if name != "execution.paused":
                continue
            late = reader.rows(
                "SELECT count(*) FROM activity WHERE key >> 32 = ? AND started_at_ms > ? AND started_at_ms < ?",
                (execution_no, from_ms, until_ms),
            )
            if late[0][0]:
                yield f"7: {late[0][0]} steps of execution {execution_no} began after it was paused"
    for turn_no, state in reader.rows("SELECT no, state FROM turn WHERE cancel_requested = 1"):
        if state not in ("cancelled", "interrupted"):
            yield f"7: turn {turn_no} was told to end by a Stop and is called {state}"
    for home, at_s in world.stopped_s:
        for turn_no, ended_ms, began_ms in reader.rows(
            "SELECT no, completed_at_ms, started_at_ms FROM turn WHERE session_no = ? AND state = 'cancelled'",
            (home.no,),
        ):
            took_s = ended_ms / 1000 - START_S - at_s
            if began_ms / 1000 - START_S <= at_s and took_s > STOP_S and not world.faults.fired:
                yield f"9: turn {turn_no} ended {took_s:g} s after its Stop"


def _generations(reader: Reader) -> Iterator[str]:
    """4: a generation writes nothing after its end; two of one session never live at once."""
    for table, column in (("feed", "created_at_ms"), ("activity", "started_at_ms")):
        late = reader.rows(
            f"SELECT t.generation_no, count(*) FROM {table} t JOIN generation g ON g.no = t.generation_no "
            f"WHERE t.{column} > g.ended_at_ms GROUP BY t.generation_no"
        )
        for generation_no, count in late:
            yield f"4: generation {generation_no} wrote {count} rows of {table} after its end"
    overlaps = reader.rows(
        "SELECT a.no, b.no FROM generation a JOIN generation b ON a.session_no = b.session_no AND a.no < b.no "
        "WHERE a.ended_at_ms IS NULL OR a.ended_at_ms > b.created_at_ms"
    )
    for first, second in overlaps:
        yield f"4: generation {second} began before generation {first} had ended"


def _spending(reader: Reader) -> Iterator[str]:
    """16: sessions and runs have counted what the records of their calls say."""
    counted = "sum(prompt_tokens), sum(completion_tokens), coalesce(sum(cost), 0), coalesce(sum(unpriced), 0)"
    kept_by_session = "SELECT no, prompt_tokens, completion_tokens, cost, unpriced_calls FROM session"
    for no, *kept in reader.rows(kept_by_session):
        calls = f"SELECT {counted} FROM model_call WHERE key >> 32 IN (SELECT no FROM model_run WHERE session_no = ?)"
        (found,) = reader.rows(calls, (no,))
        if tuple(kept) != found:
            yield f"16: session {no} has counted {kept}, and its calls used {found} (tokens, cost, calls without one)"
    for run_no, *kept in reader.rows(
        "SELECT r.no, run_prompt_tokens, run_completion_tokens, run_cost, run_unpriced_calls "
        "FROM model_run r JOIN model_call c ON c.key = (SELECT max(key) FROM model_call WHERE key >> 32 = r.no)"
    ):
        (found,) = reader.rows(f"SELECT {counted} FROM model_call WHERE key >> 32 = ?", (run_no,))
        if tuple(kept) != found:
            yield f"16: model run {run_no} has counted {kept}, and its calls used {found} (tokens, cost, calls without)"
    for run_no, count in reader.rows(
        "SELECT key >> 32, count(*) FROM model_call "
        "WHERE state <> 'completed' AND coalesce(failure_kind, '') = '' GROUP BY 1"
    ):
        yield f"16: {count} attempts of model run {run_no} do not say why they brought no answer"


def _summaries(reader: Reader) -> Iterator[str]:
    """17: a summary, its step and the links of what it covers are stored together; each takes over from the last."""
    made = reader.rows("SELECT count(*) FROM activity WHERE kind = 'compact' AND state = 'completed'")[0][0]
    stored = reader.rows(
        "SELECT key, supersedes, from_sequence, to_sequence, message_count FROM compaction ORDER BY key"
    )
    if made != len(stored):
        yield f"17: {made} compactions were completed and {len(stored)} summaries are stored"
    linked = dict(
        reader.rows(
            "SELECT key >> 32 << 32 | compaction_no, count(*) FROM message WHERE compaction_no IS NOT NULL GROUP BY 1"
        )
    )
    if linked != {key: count for key, *_, count in stored}:
        yield f"17: messages are linked as {linked}"
    for key, supersedes, first, last, _ in stored:
        free = reader.rows(
            "SELECT count(*) FROM message WHERE key >= ? AND key <= ? AND compaction_no IS NULL",
            (key >> 32 << 32 | first, key >> 32 << 32 | last),
        )
        if first != 1 or free != [(0,)] or (supersedes or key - 1) != key - 1:
            yield f"17: summary {key & 0xFFFFFFFF} covers {first}..{last} with gaps, or follows {supersedes}"


# --- helpers


def _is_held(execution: executions.ExecutionRow) -> bool:
    return execution.state == "running" or (execution.state == "paused" and execution.holder is not None)


def _sequence(frame: bytes) -> int | None:
    number: int | None = (msgspec.json.decode(payload_of(frame)).get("metadata") or {}).get("sequence")
    return number


def _session(frame: bytes) -> str | None:
    session: str | None = (msgspec.json.decode(payload_of(frame)).get("metadata") or {}).get("sessionId")
    return session
