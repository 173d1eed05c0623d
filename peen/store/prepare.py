"""From whatever is at a path to a database of the newest schema, or to an error that has changed nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from peen.errors import StorageDamaged, StorageFailed, StorageNewer, StorageNotWritable
from peen.store import files
from peen.store.connect import Synchronous, application_id, connect_looking, connect_writer, prepare_new
from peen.store.failure import storage_errors
from peen.store.migrate import Migration, migrate, version_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a database file should be."""

    path: Path
    migrations: list[Migration]
    name: str
    synchronous: Synchronous
    vfs: str | None = None

    @property
    def newest(self) -> int:
        return self.migrations[-1].number


def prepare(wanted: Wanted) -> apsw.Connection:
    """Create, check or migrate the file, and return the connection that writes to it. Blocks: run it in a thread.

    Raises: StorageDamaged, StorageNewer, StorageNotWritable, StorageFull, StorageFailed, each naming the file.
    What was there before is still there, byte for byte; what was not there before is not there now.
    """
    path = wanted.path
    files.check_path(path)
    with storage_errors(path):
        if path.exists() and path.stat().st_size > 0:
            _open_existing(wanted)
        else:
            _create(wanted)
        files.make_private(path)
        return connect_writer(str(path), synchronous=wanted.synchronous, vfs=wanted.vfs)


def prepare_memory(wanted: Wanted, image: bytes) -> apsw.Connection:
    """A database in memory that begins as `image` (empty: a new one), brought to the newest schema."""
    connection = connect_writer(":memory:", synchronous=wanted.synchronous, vfs=None)
    if image:
        connection.deserialize("main", image)
    else:
        prepare_new(connection, application_id(wanted.name))
    migrate(connection, wanted.path, wanted.migrations)
    return connection


def _create(wanted: Wanted) -> None:
    """Make the database under another name first: a crash or a full disk half-way leaves no half a database."""
    path = wanted.path
    for each in files.companions(path):
        if each.exists() and each.stat().st_size > 0:
            raise StorageDamaged(str(path), f"the database is missing, but {each.name} holds changes to it")
    made = path.with_name(path.name + ".new")
    files.remove(made)
    try:
        files.create_private(made)
        connection = apsw.Connection(str(made), flags=apsw.SQLITE_OPEN_READWRITE, vfs=wanted.vfs)
        try:
            prepare_new(connection, application_id(wanted.name))
            migrate(connection, path, wanted.migrations)
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()
        files.remove_companions(path)
        files.publish(made, path)
    except BaseException:
        with suppress(OSError):
            files.remove(made)
        raise


def _open_existing(wanted: Wanted) -> None:
    version = _look(wanted)
    _check_writable(wanted)
    if version < wanted.newest:
        _migrate_existing(wanted, version)


def _look(wanted: Wanted) -> int:
    """The schema version of a sound database of ours. Nothing is changed."""
    name = str(wanted.path)
    connection = connect_looking(wanted.path, vfs=wanted.vfs)
    try:
        found = int(connection.execute("PRAGMA application_id").get)
        version = version_of(connection)
        if found != application_id(wanted.name):
            raise StorageDamaged(name, f"is a database of another application, not {wanted.name}'s (id {found:#x})")
        if version > wanted.newest:
            raise StorageNewer(
                name, f"was written by a later release (schema {version}, this one knows {wanted.newest})"
            )
        faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
        if faults != ["ok"]:
            raise StorageDamaged(name, f"the integrity check found: {'; '.join(faults)}")
        if broken := connection.execute("PRAGMA foreign_key_check").fetchall():
            raise StorageDamaged(name, f"{len(broken)} rows refer to rows that are missing, first in {broken[0][0]}")
    finally:
        connection.close()
    return version


def _check_writable(wanted: Wanted) -> None:
    """Find out before anything is changed, and with a lock, whether the file and its directory take writes."""
    with _careful_writer(wanted) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _migrate_existing(wanted: Wanted, version: int) -> None:
    path = wanted.path
    copy = path.with_name(f"{path.name}.v{version}.bak")
    _copy(wanted, copy)
    try:
        with _careful_writer(wanted) as connection:
            migrate(connection, path, wanted.migrations)
    except BaseException:
        with suppress(OSError):
            copy.unlink(missing_ok=True)  # the database is what it was: the copy says nothing more
        raise


def _copy(wanted: Wanted, copy: Path) -> None:
    made = copy.with_name(copy.name + ".new")
    source = connect_looking(wanted.path, vfs=wanted.vfs)
    try:
        files.create_private(made)
        target = apsw.Connection(str(made), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with target.backup("main", source, "main") as backup:
                backup.step()
            if version_of(target) != version_of(source):
                raise StorageFailed(str(copy), "the copy made before a migration differs from the database")
        finally:
            target.close()
        files.publish(made, copy)
    except BaseException:
        with suppress(OSError):
            files.remove(made)
        raise
    finally:
        source.close()


@contextmanager
def _careful_writer(wanted: Wanted) -> Iterator[apsw.Connection]:
    """A connection that may write, but leaves the log where it is: closing it copies nothing into the database."""
    connection = apsw.Connection(str(wanted.path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=wanted.vfs)
    try:
        if connection.readonly("main"):  # before the first statement, which would make a log
            raise StorageNotWritable(str(wanted.path), "cannot be written: check its owner and mode")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        yield connection
    finally:
        connection.close()
