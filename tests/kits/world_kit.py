"""A session store in memory and what a session needs before its worker can write: shared by many tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any, Final
from uuid import UUID

import msgspec
import trio
from msgspec import Raw

from peen.entropy import SeededEntropy
from peen.ids import SessionNo
from peen.session import adoption
from peen.session.acceptance import Acceptance, accept
from peen.session.spending import Terms
from peen.session.writer import Writer
from peen.store import feed, generations, keys, messages, sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Reader, Tx
from peen.store.direct import MemoryFile
from peen.store.executions import ExecutionRow, root_of
from peen.store.opening import open_direct
from peen.store.turns import by_id
from peen.testing.faults import Faults
from peen.wire.client import MessageSend, SentImage, content_digest
from peen.wire.records import EventRecord, ImageRef, MessageRecord, ToolCallRecord
from peen.wire.turncalls import HistoryMessage, OpenedTurn, OpenTurn

MODEL: Final = "scripted/script"
HOLDER: Final = "00" * 15 + "01"
AT_MS: Final = 1_700_000_000_000
PLENTY: Final = 1_000_000


class ClockEntropy(SeededEntropy):
    """Seeded chance, and a wall clock that goes with Trio's: virtual time moves both."""

    def now_ms(self) -> int:
        return super().now_ms() + round(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        return trio.current_time()


@dataclass(frozen=True)
class Home:
    """A session with one worker generation."""

    no: SessionNo
    id: bytes
    generation_no: int
    blobs: Blobs
    terms: Terms = field(default_factory=Terms)

    @property
    def uuid(self) -> str:
        return str(UUID(bytes=self.id))

    @property
    def writer(self) -> Writer:
        return Writer(self.no, self.generation_no, self.blobs, self.terms)


def uuid(number: int) -> UUID:
    """A version 4 UUID that is easy to tell from others."""
    return UUID(int=number, version=4)


@asynccontextmanager
async def open_store(
    file: MemoryFile | None = None, *, seed: int = 1, faults: Faults | None = None
) -> AsyncIterator[Database]:
    """The store of sessions with its real schema, run on the Trio thread."""
    migrations = resources.files("peen.store") / "migrations"
    where = MemoryFile() if file is None else file
    async with open_direct(where, migrations=migrations, name="peen", seed=seed, faults=faults) as database:
        yield database


async def make_home(database: Database, number: int = 1) -> Home:
    """Session `number` and its worker generation, which is ready; made once, and then found.

    Once that one has ended, there is another.
    """
    blobs = await Blobs.open(database)
    newest = 2000 + number
    known = generations.by_id(database.reader, uuid(newest).bytes)
    while known is not None:
        if known.state == "ready":
            return Home(known.session_no, uuid(1000 + number).bytes, known.no, blobs)
        newest += 100
        session_no, known = known.session_no, generations.by_id(database.reader, uuid(newest).bytes)
    if newest > 2000 + number:
        again = await database.write(partial(make_generation, session_no=session_no, number=newest))
        return Home(session_no, uuid(1000 + number).bytes, again, blobs)

    def change(tx: Tx) -> Home:
        session, _ = sessions.open_or_create(
            tx, new_id=uuid(1000 + number).bytes, workspace=f"/srv/project-{number}", agent_space="control",
            root_agent="peen", model=MODEL, at_ms=AT_MS,
        )  # fmt: skip
        return Home(session.no, session.id, make_generation(tx, session.no, 2000 + number), blobs)

    return await database.write(change)


def make_generation(tx: Tx, session_no: SessionNo, number: int) -> int:
    """Number of a ready generation with the id `uuid(number)`."""
    generation_id = uuid(number).bytes
    generation_no = generations.create(
        tx, generation_id=generation_id, session_no=session_no, agent_space="control", workspace="/srv/project",
        credential_sha256=bytes(32), socket_path="/run/peen/worker.sock", at_ms=AT_MS,
    )  # fmt: skip
    generations.starting(tx, generation_id, pid=100, process_started=1, at_ms=AT_MS)
    generations.ready(tx, generation_id)
    return generation_no


def message_send(
    home: Home, text: str, *, frame: int = 1, model: str | None = None, images: Sequence[bytes] = ()
) -> MessageSend:
    pictures = tuple(map(SentImage.of, images))
    return MessageSend(id=str(uuid(frame)), session_id=home.uuid, message=text, model=model, images=pictures)


def acceptance(
    home: Home, text: str = "hello", *, frame: int = 1, turn_id: str | None = None, images: Sequence[bytes] = ()
) -> Acceptance:
    """A message on its way into the inbox. `frame` numbers the frame, the request and, unless given, the turn."""
    message = message_send(home, text, frame=frame, images=images)
    turn = uuid(3000 + frame) if turn_id is None else UUID(turn_id)
    return Acceptance(message, content_digest(message), uuid(4000 + frame).bytes, turn.bytes, AT_MS, home.blobs)


async def accept_message(
    database: Database, home: Home, text: str = "hello", *, frame: int = 1, images: Sequence[bytes] = ()
) -> str:
    """Accept a message; the id of the turn that it is to open. A frame number is used once per store."""
    accepted = acceptance(home, text, frame=frame, images=images)
    await database.write(partial(accept, session_no=home.no, acceptance=accepted))
    return str(uuid(3000 + frame))


def open_request(
    turn_id: str,
    text: str = "hello",
    *,
    holder: str = HOLDER,
    known_sequence: int = 0,
    images: Sequence[ImageRef] = (),
) -> OpenTurn:
    """The admission of a turn, as a worker would ask for it."""
    return OpenTurn(
        turn_id=turn_id, holder=holder, model=MODEL, prompt="You are an agent.", context_manifest=Raw(b"{}"),
        context_content="context", context_hash="ab" * 32, tools=Raw(b"[]"), round_limit=8, tool_parallelism=4,
        request_settings=Raw(b"{}"), messages=[MessageRecord(role="user", content=text, images=list(images))],
        events=[EventRecord(type="turn.started", data=Raw(b"{}"))], known_sequence=known_sequence,
    )  # fmt: skip


async def open_turn(
    database: Database, home: Home, text: str = "hello", *, frame: int = 1, holder: str = HOLDER
) -> OpenedTurn:
    """Accept a message and open its turn; a frame number is used once per store."""
    turn_id = await accept_message(database, home, text, frame=frame)
    change = partial(
        adoption.open_turn, writer=home.writer, request=open_request(turn_id, text, holder=holder),
        execution_id=uuid(5000 + frame).bytes, run_id=uuid(6000 + frame).bytes, at_ms=AT_MS,
    )  # fmt: skip
    return await database.write(change)


def execution_of(database: Database, turn_id: str) -> ExecutionRow:
    turn = by_id(database.reader, UUID(turn_id).bytes)
    assert turn is not None
    execution = root_of(database.reader, turn.no)
    assert execution is not None
    return execution


def call(call_id: str, name: str = "look", arguments: bytes = b"{}") -> ToolCallRecord:
    return ToolCallRecord(id=call_id, name=name, arguments=Raw(arguments))


def frames(database: Database, home: Home, *, after: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Type and data of the session's frames."""
    rows = feed.after(database.reader, home.no, after, limit=PLENTY, max_bytes=PLENTY * 100)
    return [(row.type, msgspec.json.decode(row.data)) for row in rows]


def frame_types(database: Database, home: Home, *, after: int = 0) -> list[str]:
    return [frame_type for frame_type, _ in frames(database, home, after=after)]


def transcript(database: Database, home: Home, *, after: int = 0) -> list[HistoryMessage]:
    found, has_more = messages.history(
        database.reader, home.no, after=after, up_to=keys.MAX_SEQUENCE, max_bytes=PLENTY * 100
    )
    assert not has_more
    return found


def dump(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    tables = database.reader.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return {name: database.reader.rows(f'SELECT * FROM "{name}"') for (name,) in tables}


def check_sequences(reader: Reader) -> None:
    """Feed, transcript and log of every session count from 1 without a gap, and the log refers to rows that exist."""
    for no, feed_sequence, message_sequence, log_sequence in reader.rows(
        "SELECT no, feed_sequence, message_sequence, log_sequence FROM session"
    ):
        assert _sequences(reader, "feed", no) == list(range(1, feed_sequence + 1))
        assert _sequences(reader, "message", no) == list(range(1, message_sequence + 1))
        assert _sequences(reader, "session_log", no) == list(range(1, log_sequence + 1))
        assert list(_dangling(reader, no)) == []
    assert reader.rows("PRAGMA foreign_key_check") == []


def _sequences(reader: Reader, table: str, no: int) -> list[int]:
    low, high = keys.join(no, 0), keys.join(no + 1, 0)
    found = reader.rows(f"SELECT key FROM {table} WHERE key >= ? AND key < ? ORDER BY key", (low, high))
    return [keys.sequence_of(key) for (key,) in found]


def _dangling(reader: Reader, no: int) -> Iterator[tuple[str, int]]:
    """Log rows whose row is missing or is not what the log calls it."""
    low, high = keys.join(no, 0), keys.join(no + 1, 0)
    for log_type, ref in reader.rows("SELECT type, ref FROM session_log WHERE key >= ? AND key < ?", (low, high)):
        key = keys.join(no, ref)
        if log_type == "agent.message":
            row = reader.row("SELECT role FROM message WHERE key = ?", (key,))
            sound = row == ("assistant",)
        elif log_type == "agent.compaction":
            sound = reader.row("SELECT key FROM compaction WHERE key = ?", (key,)) is not None
        else:
            row = reader.row("SELECT type FROM feed WHERE key = ?", (key,))
            sound = row is not None and log_type in {feed.LOG_TYPES.get(row[0]), "session.status_idle"}
        if not sound:
            yield log_type, ref
