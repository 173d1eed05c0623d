"""Connections with the settings that every one of them needs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import apsw

Synchronous = Literal["FULL", "NORMAL", "OFF"]

PAGE_BYTES: Final = 4096
_BUSY_MS: Final = 5000  # for another process that looks into the file; Peen itself has one writer
_STATEMENTS: Final = 512  # prepared statements kept: more than the store has


def application_id(name: str) -> int:
    """The number that marks a file as a database of `name`: fixed by the name, in 1 .. 2**31 - 1."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (2**31 - 1) + 1


def connect_writer(path: str, *, synchronous: Synchronous, vfs: str | None) -> apsw.Connection:
    """The connection that writes. The file at `path` exists (or `path` is ":memory:")."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs, statementcachesize=_STATEMENTS)
    try:
        _common(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        # The writer decides when to copy the log back; set before the hook, which this pragma would remove.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path, *, vfs: str | None) -> apsw.Connection:
    """A connection for queries alone, beside a writer."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs, statementcachesize=_STATEMENTS)
    try:
        _common(connection)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_looking(path: Path, *, vfs: str | None) -> apsw.Connection:
    """A connection that changes no byte of the database or of its log, not even when it is closed."""
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    # Without a log the file is all there is. Called immutable, it gets no shared-memory file and no locks either.
    options = "mode=ro" if has_log else "mode=ro&immutable=1"
    connection = apsw.Connection(
        f"file:{quote(str(path))}?{options}", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs
    )
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def prepare_new(connection: apsw.Connection, application: int) -> None:
    """Settings that only an empty database takes."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute(f"PRAGMA application_id = {application}")


def _common(connection: apsw.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    connection.execute("PRAGMA foreign_keys = ON")
    # Sorting goes on when the disk of the temporary directory is full.
    connection.execute("PRAGMA temp_store = MEMORY")
    # Without this a statement over several tables is planned anew for every value that is bound to it, which takes
    # longer than running it. No statement here needs that: their plans are the same for all values.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
