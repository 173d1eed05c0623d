"""A small schema, changes on it, and the two ways to open it: shared by the tests of the store's engine."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw

from peen.entropy import SystemEntropy
from peen.store.database import Change, Database, Tx
from peen.store.opening import open_database, open_direct

NAME = "peen test"
FIRST = """
CREATE TABLE entry (no INTEGER PRIMARY KEY, word TEXT NOT NULL, body BLOB) STRICT;
CREATE UNIQUE INDEX entry_word ON entry (word);
CREATE TRIGGER entry_stays BEFORE DELETE ON entry BEGIN SELECT raise(ABORT, 'entries stay; always'); END;
"""
SECOND = """
CREATE TABLE page (no INTEGER PRIMARY KEY, entry_no INTEGER NOT NULL REFERENCES entry (no)) STRICT;
INSERT INTO page (entry_no) SELECT no FROM entry;
"""
GATE_S = 20.0  # a test that never opens its gate fails by then, instead of hanging


class Boom(Exception):
    """What a change of a test raises on purpose."""


class Opener(Protocol):
    def __call__(self, path: Path, migrations: Path) -> AbstractAsyncContextManager[Database]:
        """Open the database at `path` with the scripts in `migrations`."""


def write_migrations(directory: Path, *scripts: str) -> Path:
    """A directory with these scripts, numbered from 1."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, script in enumerate(scripts, start=1):
        (directory / f"{number:04d}_step.sql").write_text(script)
    return directory


@asynccontextmanager
async def open_group(path: Path, migrations: Path, **more: Any) -> AsyncIterator[Database]:
    settings: dict[str, Any] = {"name": NAME, "entropy": SystemEntropy(), "reserve_bytes": 0, **more}
    async with open_database(path, migrations=migrations, **settings) as db:
        yield db


@asynccontextmanager
async def open_inline(path: Path, migrations: Path) -> AsyncIterator[Database]:
    async with open_direct(path, migrations=migrations, name=NAME, seed=1) as db:
        yield db


OPENERS: dict[str, Opener] = {"group": open_group, "direct": open_inline}


def add(word: str, *, body_bytes: int = 0) -> Change[int]:
    """Insert an entry and return its number."""

    def change(tx: Tx) -> int:
        row = tx.row("INSERT INTO entry (word, body) VALUES (?, zeroblob(?)) RETURNING no", (word, body_bytes))
        assert row is not None
        return int(row[0])

    return change


def add_then_fail(word: str) -> Change[int]:
    """Insert an entry, then raise Boom."""

    def change(tx: Tx) -> int:
        add(word)(tx)
        raise Boom(word)

    return change


class Gate:
    """A change that keeps the writer thread busy until `open`: what is submitted meanwhile is one batch."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    def __call__(self, tx: Tx) -> bool:
        return self._event.wait(GATE_S)


def words_in(path: Path) -> list[str]:
    """The words on disk, in the order of their numbers, read by a connection that Peen knows nothing about."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        return [str(word) for (word,) in connection.execute("SELECT word FROM entry ORDER BY no")]
    finally:
        connection.close()


def descriptors() -> Iterator[str]:
    """What this process has open."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield str(entry.readlink())
        except FileNotFoundError:  # the descriptor of this very listing
            continue
