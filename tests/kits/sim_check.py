"""What must hold of a simulated world when all is over, whatever went wrong in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import msgspec
from sim_client import Client
from sim_model import label_of
from sim_world import Home, World
from world_kit import check_sequences

from peen.actors import holds
from peen.errors import LinkLost, StaleClaim
from peen.feed.project import render
from peen.store import executions, feed, inbox, messages, turns
from peen.store.database import Reader
from peen.testing.faults import SimulatedCrash
from peen.wire.summary import OMITTED_KIND
from peen.wire.websocket import payload_of, text_frame

TERMINAL: Final = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})
PLENTY: Final = 1_000_000
STOP_S: Final = 5.0


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
        problems += _messages(world, reader, home)
        problems += _notices(world, reader, home)
        problems += _turns(world, reader, home)
    problems += _tools(world, reader)
    problems += _stops(world, reader)
    problems += _generations(reader)
    problems += _summaries(reader)
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
        is_disk = bool(world.plan.full or world.plan.ioerr or world.plan.failed_commit) or world.disk_was_filled
        if entry["log_level"] == "error" and not is_death and not is_disk:
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


def _messages(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """5: every accepted message reaches the model once, in order, or is listed as undelivered."""
    rows = [row for row in _inbox(reader) if row.session_no == home.no]
    spoken = [text for role, text, injected, _ in _transcript(reader, home) if role == "user" and not injected]
    told = "\n".join(text for role, text, _, _ in _transcript(reader, home) if role == "system")
    held = {row.content for row in rows if row.state == "queued"}
    for text, count in Counter(spoken).items():
        if count > 1:
            yield f"5: message {text!r} stands {count} times in the transcript"
    for row in rows:
        match row.state:
            case "delivered":
                if row.content not in spoken:
                    yield f"5: message {row.content!r} is called delivered and is not in the transcript"
            case "undelivered":
                if row.content not in spoken and row.content not in told:
                    yield f"5: message {row.content!r} is called undelivered and nobody was told"
            case "queued":
                if home not in [stopped for stopped, _ in world.stopped_s]:
                    yield f"5: message {row.content!r} still waits"
            case _:
                yield f"5: message {row.content!r} is left in state {row.state}"
    accepted = [row.content for row in rows if row.content in spoken]
    if accepted != [text for text in spoken if text in accepted]:
        yield f"5: messages were accepted as {accepted} and told as {spoken}"
    requests = [asked for asked in world.ledger.asked if _belongs(asked.messages, rows)]
    for asked in requests:
        said = [message.content for message in asked.messages if message.role == "user" and not message.injected]
        if len(set(said)) != len(said):
            yield f"5: a request holds a message twice: {said}"
        if said != [text for text in spoken if text in said]:
            yield f"5: a request has its messages in another order: {said}, not {spoken}"
    # What a note says was left out was heard before.
    is_cut = bool(requests) and any(message.injected_kind == OMITTED_KIND for message in requests[-1].messages)
    telling = requests if is_cut else requests[-1:]
    last = "\n".join(message.content for asked in telling for message in asked.messages)
    for row in rows:
        if row.content not in last and row.content not in held:
            yield f"5: the model never heard of {row.content!r}"
    for sent in _sent(world, home):
        if sent.answer is None or sent.is_refused:
            yield f"5: message {sent.message.message!r} has no answer after {sent.tries} tries"
        elif UUID(sent.message.id).bytes not in [row.frame_id for row in rows]:
            yield f"5: message {sent.message.message!r} was acknowledged and is not stored"


def _notices(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """6: every notice that is meant for the model is told once."""
    told = [text for role, text, injected, _ in _transcript(reader, home) if role == "user" and injected]
    for summary, state in reader.rows(
        "SELECT summary, state FROM notice WHERE source = 'api' AND key >> 32 = ? ORDER BY key", (home.no,)
    ):
        count = sum(summary in text for text in told)
        if state != "delivered" or count != 1:
            yield f"6: notice {summary!r} is {state} and was told {count} times"
    for asked in world.ledger.asked:
        blocks = [message.content for message in asked.messages if message.injected]
        if len(set(blocks)) != len(blocks):
            yield f"6: a request tells the same notices twice: {blocks}"


def _turns(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """8: every turn has one end, which everybody hears of last, and before its acknowledgement."""
    rows = feed.after(reader, home.no, 0, limit=PLENTY, max_bytes=PLENTY * 100)
    ends = Counter(row.request_id for row in rows if row.type in TERMINAL)
    for turn in turns.page(reader, home.no, limit=PLENTY, offset=0):
        if turn.state == "running":
            yield f"8: turn {turn.no} still runs"
        if ends[turn.request_id] != 1:
            yield f"8: turn {turn.no} has {ends[turn.request_id]} terminal frames"
        execution = executions.root_of(reader, turn.no)
        if execution is not None and _is_held(execution):
            yield f"8: turn {turn.no} has ended and its execution is {execution.state}, held"
    for client in world.clients:
        for frames in client.connections:
            yield from _acknowledgements(client, [msgspec.json.decode(payload_of(frame)) for frame in frames])


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
    """2 and 3: a tool runs once, after its step was claimed; what came of it is stored or is called uncertain."""
    runs = Counter(run.label for run in world.ledger.runs)
    done = {run.label for run in world.ledger.runs if run.is_done}
    steps: dict[str, tuple[str, str]] = {}
    for kind, state, given in reader.rows("SELECT kind, state, given FROM activity WHERE call_id IS NOT NULL"):
        label = label_of(msgspec.json.encode(msgspec.json.decode(given)["arguments"]))
        if label in steps:
            yield f"2: call {label!r} was begun twice"
        steps[label] = kind, state
    for label, count in runs.items():
        if count > 1:
            yield f"3: call {label!r} ran {count} times"
        if label not in steps:
            yield f"3: call {label!r} ran and its step was never claimed"
    for label, (kind, state) in steps.items():
        if state == "completed" and label not in done:
            yield f"2: call {label!r} has a stored result and never ran to its end"
        if state in ("running", "failed") and kind == "effect":
            yield f"3: call {label!r} was cut off and is called {state}, not uncertain"
        if state == "uncertain" and kind != "effect":
            yield f"3: call {label!r} changes nothing and is called uncertain"


def _stops(world: World, reader: Reader) -> Iterator[str]:
    """7 and 9: after a Stop nothing begins, and within 5 s nothing runs."""
    fences = reader.rows("SELECT key >> 32, created_at_ms FROM control_event WHERE type = 'execution.paused'")
    for execution_no, at_ms in fences:
        late = reader.rows(
            "SELECT count(*) FROM activity WHERE key >> 32 = ? AND started_at_ms > ?", (execution_no, at_ms)
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
            took_s = ended_ms / 1000 - 1_700_000_000 - at_s
            if began_ms / 1000 - 1_700_000_000 <= at_s and took_s > STOP_S and not world.faults.fired:
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


def _summaries(reader: Reader) -> Iterator[str]:
    """13: a summary, its step and the links of what it covers are stored together; each takes over from the last."""
    made = reader.rows("SELECT count(*) FROM activity WHERE kind = 'compact' AND state = 'completed'")[0][0]
    stored = reader.rows(
        "SELECT key, supersedes, from_sequence, to_sequence, message_count FROM compaction ORDER BY key"
    )
    if made != len(stored):
        yield f"13: {made} compactions were completed and {len(stored)} summaries are stored"
    linked = dict(
        reader.rows(
            "SELECT key >> 32 << 32 | compaction_no, count(*) FROM message WHERE compaction_no IS NOT NULL GROUP BY 1"
        )
    )
    if linked != {key: count for key, *_, count in stored}:
        yield f"13: messages are linked as {linked}"
    for key, supersedes, first, last, _ in stored:
        free = reader.rows(
            "SELECT count(*) FROM message WHERE key >= ? AND key <= ? AND compaction_no IS NULL",
            (key >> 32 << 32 | first, key >> 32 << 32 | last),
        )
        if first != 1 or free != [(0,)] or (supersedes or key - 1) != key - 1:
            yield f"13: summary {key & 0xFFFFFFFF} covers {first}..{last} with gaps, or follows {supersedes}"


# --- helpers


def _is_held(execution: executions.ExecutionRow) -> bool:
    return execution.state == "running" or (execution.state == "paused" and execution.holder is not None)


def _inbox(reader: Reader) -> list[inbox.InboxRow]:
    return [inbox.InboxRow(*row) for row in reader.rows(inbox._SELECT + " ORDER BY no")]


def _transcript(reader: Reader, home: Home) -> list[tuple[str, str, bool, int]]:
    """(role, content, injected, turn) of every message."""
    found, _ = messages.history(reader, home.no, after=0, up_to=PLENTY, max_bytes=PLENTY * 100)
    return [(row.message.role, row.message.content, row.message.injected, row.turn) for row in found]


def _belongs(said: list[Any], rows: list[inbox.InboxRow]) -> bool:
    own = {row.content for row in rows}
    return any(message.role == "user" and message.content in own for message in said)


def _sent(world: World, home: Home) -> list[Any]:
    return [
        sent for client in world.clients for sent in client.sent.values() if sent.message.session_id == home.uuid
    ]  # fmt: skip


def _sequence(frame: bytes) -> int | None:
    number: int | None = (msgspec.json.decode(payload_of(frame)).get("metadata") or {}).get("sequence")
    return number


def _session(frame: bytes) -> str | None:
    session: str | None = (msgspec.json.decode(payload_of(frame)).get("metadata") or {}).get("sessionId")
    return session
