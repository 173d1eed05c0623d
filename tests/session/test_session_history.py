"""The history of runs: made from the record alone, whatever becomes of its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
import trio
from disk_kit import fill, tiny_disk
from engine_kit import Engine, PlayedUpstream, asks, says, work
from structlog.testing import capture_logs
from world_kit import AT_MS, make_home, open_turn, uuid

from peen.entropy import SystemEntropy
from peen.session import adoption
from peen.session.acceptance import end_accepted
from peen.session.ending import interrupted
from peen.session.history import RunHistory
from peen.session.resumption import resume
from peen.session.runs import fold, runs_of
from peen.store import deletion, executions
from peen.store.database import Database
from peen.store.executions import ExecutionDetails
from peen.store.opening import open_direct
from peen.store.runs import Run
from peen.store.sessions import by_no
from peen.wire.launch import WorkerSettings
from peen.wire.turncalls import RestoreExecution

PATIENCE_S = 20.0
SETTINGS = WorkerSettings(upstreams=[], default_model="up/m")


class Place:
    """A session store in a file, with turns of a real engine, and the history beside it."""

    def __init__(self, truth: Database, directory: Path, *, seed: int) -> None:
        self.truth, self.directory = truth, directory
        self.seed = seed

    @property
    def file(self) -> Path:
        return self.directory / "workflows.db"

    async def start(self) -> None:
        upstream = PlayedUpstream(*[attempt for _ in range(9) for attempt in (asks(("look", work())), says("done"))])
        self.engine = Engine(self.truth, await make_home(self.truth), upstream, SETTINGS, seed=self.seed)

    async def run_turn(self) -> ExecutionDetails:
        """A whole turn; its execution."""
        actor = await self.engine.run_turn(frame=100 * self.seed + len(self.all()))
        assert actor.state == "completed"
        return self.all()[-1]

    async def interrupt_and_resume(self) -> ExecutionDetails:
        """An execution that was cut off, and that a worker has taken hold of again."""
        frame = 100 * self.seed + 50 + len(self.all())
        opened = await open_turn(self.truth, self.engine.home, frame=frame)
        cut = partial(
            end_accepted, session_no=self.engine.home.no, turn_id=uuid(3000 + frame).bytes,
            ending=interrupted("interrupted", "x"), at_ms=AT_MS + 5,
        )  # fmt: skip
        await self.truth.write(cut)
        execution_id = UUID(opened.execution_id).bytes
        again = partial(
            resume, session_no=self.engine.home.no, execution_id=execution_id, control_revision=2, caller="api",
            automatic=False, at_ms=AT_MS + 10,
        )  # fmt: skip
        await self.truth.write(again)
        taken = RestoreExecution(execution_id=opened.execution_id, holder="00" * 15 + "07")
        await self.truth.write(
            partial(adoption.restore, writer=self.engine.home.writer, request=taken, at_ms=AT_MS + 11)
        )
        return self.all()[-1]

    def all(self) -> list[ExecutionDetails]:
        """Every execution of the session, oldest first."""
        return executions.page(self.truth.reader, 1, limit=99, offset=0)[::-1]  # type: ignore[arg-type]

    def scanned(self) -> list[list[Run]]:
        """What a fresh look at the record says."""
        return [runs_of(self.truth.reader, each) for each in self.all()]

    def written(self) -> list[list[Run]]:
        """What the file says, without the program's help."""
        connection = apsw.Connection(str(self.file), flags=apsw.SQLITE_OPEN_READONLY)
        rows: list[Any] = connection.execute("SELECT * FROM run ORDER BY key").fetchall()
        connection.close()
        found: dict[int, list[Run]] = {}
        for key, *rest in rows:
            found.setdefault(key >> 32, []).append(Run(*rest))
        return [found[no] for no in sorted(found)]


@asynccontextmanager
async def place(directory: Path, *, seed: int = 1) -> AsyncIterator[Place]:
    migrations = resources.files("peen.store") / "migrations"
    async with open_direct(directory / "peen.db", migrations=migrations, name="peen", seed=1) as truth:
        own = Place(truth, directory, seed=seed)
        await own.start()
        yield own


@asynccontextmanager
async def kept(own: Place) -> AsyncIterator[RunHistory]:
    """The history, up to date, until the block ends."""
    history = RunHistory(own.file, own.truth, SystemEntropy(), retry_s=0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.run)
        await caught_up(history)
        yield history
        nursery.cancel_scope.cancel()


async def caught_up(history: RunHistory) -> None:
    with trio.fail_after(PATIENCE_S):
        await history.caught_up.wait()


# --- what a run is


def event(kind: str, at_ms: int, data: bytes = b"{}") -> tuple[str, bytes, int]:
    return (kind, data, at_ms)


def details(**other: Any) -> ExecutionDetails:
    row = ExecutionDetails(
        1, b"e" * 16, 1, 1, "running", None, 1, None, None, "root", 8, 4, None, 100, None, b"t" * 16  # type: ignore[arg-type]
    )  # fmt: skip
    return row._replace(**other)


ADOPTED = b'{"workerGenerationId":"%s","holder":"%s"}' % (str(uuid(9)).encode(), b"07" * 16)


@pytest.mark.parametrize(
    ("row", "events", "expected"),
    [
        (details(), [], [Run(None, None, None, 100, None, "running", None)]),
        (
            details(state="completed", ended_at_ms=300),
            [event("execution.adopted", 100, ADOPTED), event("activity.resolved", 150)],
            [Run(uuid(9).bytes, b"\x07" * 16, None, 100, 300, "completed", None)],
        ),
        (
            details(state="cancelled", ended_at_ms=900),
            [
                event("execution.paused", 200, b'{"reason":"stop","controlRevision":2}'),
                event("execution.resumed", 300, b'{"caller":"agent","turnId":"x"}'),
                event("execution.adopted", 301, ADOPTED),
                event("execution.paused", 400, b'{"reason":"interrupted"}'),
                event("execution.abandoned", 900, b'{"caller":"api"}'),
            ],
            [
                Run(None, None, None, 100, 200, "paused", "stop"),
                Run(uuid(9).bytes, b"\x07" * 16, "agent", 300, 400, "paused", "interrupted"),
            ],
        ),
    ],
)
def test_a_run_goes_from_a_beginning_to_the_next_pause_or_the_end(
    row: ExecutionDetails, events: list[tuple[str, bytes, int]], expected: list[Run]
) -> None:
    assert fold(row, events) == expected


# --- the file


async def test_what_is_noted_is_written_and_looked_up(tmp_path: Path) -> None:
    async with place(tmp_path) as own, kept(own) as history:
        first = await own.run_turn()
        second = await own.interrupt_and_resume()
        for each in (first, second):
            history.note_execution(each.id)
        await caught_up(history)

        assert own.written() == own.scanned()
        assert [(run.outcome, run.reason, run.caller) for run in history.of(second)] == [
            ("paused", "interrupted", None),
            ("running", None, "api"),
        ]
        assert [run.holder for run in history.of(second)] == [bytes(15) + b"\x01", bytes(15) + b"\x07"]
        assert [run.outcome for run in history.of(first)] == ["completed"]
        assert oct(own.file.stat().st_mode)[-3:] == "600"


async def test_what_the_file_does_not_have_yet_is_read_from_the_record(tmp_path: Path) -> None:
    async with place(tmp_path) as own, kept(own) as history:
        execution = await own.run_turn()  # and nobody has noted it

        assert own.written() == []
        assert history.of(execution) == own.scanned()[0]


async def test_the_end_of_a_turn_is_noted_by_the_turn(tmp_path: Path) -> None:
    async with place(tmp_path) as own, kept(own) as history:
        execution = await own.run_turn()
        history.note_turn(execution.turn_id)
        await caught_up(history)

        assert own.written() == own.scanned()


def lost(own: Path, _older: Path) -> None:
    own.unlink()


def older(own: Path, older: Path) -> None:
    shutil.copy(older, own)


def garbage(own: Path, _older: Path) -> None:
    own.write_bytes(b"not a database" * 4096)


def damaged(own: Path, _older: Path) -> None:
    data = bytearray(own.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    own.write_bytes(bytes(data))


def foreign(own: Path, _older: Path) -> None:
    own.unlink()
    connection = apsw.Connection(str(own))
    connection.execute("CREATE TABLE x (y)")
    connection.close()


def newer(own: Path, _older: Path) -> None:
    connection = apsw.Connection(str(own))
    connection.execute("PRAGMA user_version = 999")
    connection.close()


def wrong(own: Path, _older: Path) -> None:
    """Sound, and about something else: executions with the same numbers and other ids, and one that never was."""
    connection = apsw.Connection(str(own))
    connection.execute("UPDATE seen SET execution_id = randomblob(16); UPDATE run SET outcome = 'failed'")
    connection.execute("INSERT INTO seen VALUES (77, randomblob(16), 1, 'running')")
    connection.execute("INSERT INTO run VALUES (77 << 32 | 1, NULL, NULL, NULL, 1, NULL, 'running', NULL)")
    connection.close()


Spoil = Callable[[Path, Path], None]


@pytest.mark.parametrize(
    ("spoil", "is_kept"),
    [(lost, False), (older, False), (garbage, True), (damaged, True), (foreign, True), (newer, True), (wrong, False)],
)
async def test_whatever_became_of_the_file_it_says_again_what_the_record_says_and_turns_go_on(
    spoil: Spoil, is_kept: bool, tmp_path: Path
) -> None:
    copy = tmp_path / "older.db"
    async with place(tmp_path) as own:
        first = await own.run_turn()
        async with kept(own):
            pass
        shutil.copy(own.file, copy)
        await own.interrupt_and_resume()
        async with kept(own):
            assert len(own.written()) == 2
        spoil(own.file, copy)

        with capture_logs() as logs:
            async with kept(own) as history:
                assert own.written() == own.scanned()
                third = await own.run_turn()
                history.note_execution(third.id)
                await caught_up(history)

                assert own.written() == own.scanned()
                assert len(own.scanned()) == 3
                assert history.of(first) == own.scanned()[0]
        set_aside = own.file.with_name("workflows.db.damaged")
        assert set_aside.exists() == is_kept
        assert any("set aside" in entry["event"] for entry in logs) == is_kept


async def test_a_file_that_cannot_be_had_is_done_without(tmp_path: Path) -> None:
    async with place(tmp_path) as own:
        own.file.mkdir()
        with capture_logs() as logs:
            history = RunHistory(own.file, own.truth, SystemEntropy())
            await history.run()
            execution = await own.run_turn()
            history.note_execution(execution.id)

        assert history.of(execution) == own.scanned()[0]
        assert [entry["log_level"] for entry in logs] == ["warning"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_under_it_harms_no_turn_and_it_catches_up_when_there_is_room(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", kib=512) as disk:
        async with place(tmp_path) as own:
            own.directory = disk
            async with kept(own) as history:
                filler = fill(disk)
                with capture_logs() as logs:
                    found = [await own.run_turn() for _ in range(3)]
                    for each in found:
                        history.note_execution(each.id)
                    with trio.fail_after(PATIENCE_S):
                        while not logs:
                            await trio.lowlevel.checkpoint()
                    fourth = await own.run_turn()

                    assert [history.of(each) for each in [*found, fourth]] == own.scanned()
                    assert not history.caught_up.is_set()
                    filler.unlink()
                    history.note_execution(fourth.id)
                    await caught_up(history)
                assert own.written() == own.scanned()
                assert [entry["event"] for entry in logs] == ["the history of runs cannot be written"]


async def test_nothing_of_a_deleted_session_stays_in_it(tmp_path: Path) -> None:
    async with place(tmp_path) as own, kept(own) as history:
        execution = await own.run_turn()
        history.note_execution(execution.id)
        await caught_up(history)
        assert len(own.written()) == 1
        session = by_no(own.truth.reader, own.engine.home.no)
        assert session is not None
        await own.truth.write(partial(deletion.mark, session_id=session.id, at_ms=AT_MS))
        history.forget(session.no)
        await caught_up(history)

        assert own.written() == []
