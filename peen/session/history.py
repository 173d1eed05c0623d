"""The history of runs in `workflows.db`: written behind the work, compared with `peen.db` at each start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.entropy import Entropy
from peen.errors import StorageError
from peen.ids import SessionNo
from peen.session.runs import runs_of
from peen.store import executions, runs, turns
from peen.store.database import Database, Tx
from peen.store.executions import ExecutionDetails
from peen.store.reading import read_in_thread
from peen.store.runs import Mark, Run
from peen.store.spare import open_spare

log = structlog.get_logger(__name__)

NAME: Final = "workflows"
RETRY_S: Final = 30.0
"""Seconds after which a write that the disk refused is tried again."""
BATCH: Final = 200
"""Executions that one transaction writes."""


class RunHistory:
    """Keeps the runs of executions where they can be looked up.

    Everything in it is read from `peen.db` after the commit that it reflects, so that nobody waits for it, and what it
    cannot write, or loses, it writes later or at the next start. Until then `of` reads `peen.db` itself.
    Owns:  the file. Borrows: the session store.
    Ends:  when its owner cancels it.
    """

    def __init__(self, path: Path, truth: Database, entropy: Entropy, *, retry_s: float = RETRY_S) -> None:
        self._path, self._truth, self._entropy, self._retry_s = path, truth, entropy, retry_s
        self._file: Database | None = None
        # Ids whose runs differ from what the file says. Bounded by what there is; each is written once however often
        # it is noted.
        self._behind: dict[bytes, None] = {}
        self._wanted = trio.Event()
        self.caught_up = trio.Event()  # set while the file says all that was noted

    def note_execution(self, execution_id: bytes) -> None:
        """Something was committed that changes the runs of an execution."""
        self._behind[execution_id] = None
        self._wanted.set()
        if self.caught_up.is_set():
            self.caught_up = trio.Event()

    def note_turn(self, turn_id: bytes) -> None:
        """A turn has ended."""
        turn = turns.by_id(self._truth.reader, turn_id)
        execution = None if turn is None else executions.root_of(self._truth.reader, turn.no)
        if execution is not None:
            self.note_execution(execution.id)

    def forget(self, session_no: SessionNo) -> None:
        """A session was marked for deletion."""
        for execution_id in runs.of_session(self._truth.reader, session_no):
            self.note_execution(execution_id)

    def of(self, execution: ExecutionDetails) -> list[Run]:
        """The runs of an execution, in their order; from the file, if it has them."""
        wanted = runs.mark(self._truth.reader, execution.id)
        if self._file is not None and wanted is not None:
            try:
                if (found := runs.look_up(self._file, wanted)) is not None:
                    return found
            except StorageError as problem:
                log.warning("the history of runs cannot be read", error=str(problem))
        return runs_of(self._truth.reader, execution)

    async def run(self) -> None:
        """Open the file, bring it up to date, and keep it so."""
        migrations = resources.files("peen.store") / "workflows"
        async with open_spare(self._path, migrations=migrations, name=NAME, entropy=self._entropy) as file:
            if file is None:
                return  # `of` reads the record itself
            await self._compare(file)
            self._file = file
            try:
                while True:
                    await self._write_behind(file)
                    await self._wanted.wait()
            finally:
                self._file = None

    async def _compare(self, file: Database) -> None:
        """Find what differs from the truth: after a crash, a loss, or where somebody has put back an older file."""
        truth = {mark.execution_no: mark for mark in await read_in_thread(self._truth.path, runs.marks)}
        seen = {mark.execution_no: mark for mark in await read_in_thread(self._path, runs.seen)}
        gone = [no for no in seen if no not in truth]
        if gone:
            await self._patiently(file, partial(_remove_all, execution_nos=gone))
        self._behind |= {mark.execution_id: None for no, mark in truth.items() if seen.get(no) != mark}

    async def _write_behind(self, file: Database) -> None:
        self._wanted = trio.Event()
        while ids := list(islice(self._behind, BATCH)):
            found = {execution_id: self._read(execution_id) for execution_id in ids}
            await self._patiently(file, partial(_put_all, found=found))
            for execution_id, each in found.items():
                # One that went on meanwhile is written again.
                if runs.mark(self._truth.reader, execution_id) == (None if each is None else each[0]):
                    self._behind.pop(execution_id, None)
        self.caught_up.set()

    def _read(self, execution_id: bytes) -> tuple[Mark, list[Run]] | None:
        mark = runs.mark(self._truth.reader, execution_id)
        details = executions.details(self._truth.reader, execution_id)
        return None if mark is None or details is None else (mark, runs_of(self._truth.reader, details))

    async def _patiently(self, file: Database, change: Callable[[Tx], None]) -> None:
        """Write; a disk that refuses is asked again, and said to refuse once."""
        is_refused = False
        while True:
            try:
                await file.write(change)
            except StorageError as refused:
                if not is_refused:
                    log.warning("the history of runs cannot be written", error=str(refused))
                is_refused = True
                await trio.sleep(self._retry_s)
            else:
                return


def _put_all(tx: Tx, found: Mapping[bytes, tuple[Mark, list[Run]] | None]) -> None:
    for execution_id, each in found.items():
        runs.forget(tx, execution_id)
        if each is not None:
            runs.put(tx, *each)


def _remove_all(tx: Tx, execution_nos: Iterable[int]) -> None:
    for no in execution_nos:
        runs.remove(tx, no)
