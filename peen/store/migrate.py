"""Schema versions: numbered scripts, applied together or not at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import apsw

from peen.errors import StorageFailed
from peen.store.failure import storage_error

_NAME: Final = re.compile(r"([0-9]{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One script. `number` is the schema version that it leads to."""

    number: int
    name: str
    sql: str


def load_migrations(directory: Path | Traversable) -> list[Migration]:
    """The scripts in `directory`, in order.

    Raises: ValueError unless they are numbered 0001, 0002, ... without a gap.
    """
    found = [
        Migration(int(match[1]), match[0], entry.read_text(encoding="utf-8"))
        for entry in directory.iterdir()
        if (match := _NAME.fullmatch(entry.name)) is not None
    ]
    found.sort(key=lambda migration: migration.number)
    if not found or [each.number for each in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"{directory}: migrations must be numbered 0001, 0002, ... without a gap")
    return found


def version_of(connection: apsw.Connection) -> int:
    """The schema version of a database, 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").get)


def migrate(connection: apsw.Connection, path: Path, migrations: list[Migration]) -> None:
    """Bring the database up to the newest version, in one transaction. Foreign keys are checked at its end.

    Raises: StorageError; then the database is what it was.
    """
    version = version_of(connection)
    # A script may rebuild a table that others refer to; this pragma does nothing inside a transaction.
    connection.execute("PRAGMA foreign_keys = OFF")
    name = "BEGIN"
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.authorizer = _no_transactions
        for migration in migrations[version:]:
            name = migration.name
            _run_whole(connection, migration.sql)
            connection.execute(f"PRAGMA user_version = {migration.number}")
        connection.authorizer = None
        if broken := connection.execute("PRAGMA foreign_key_check").fetchall():
            raise StorageFailed(str(path), f"{name} breaks {len(broken)} foreign keys; nothing was changed")
        connection.execute("COMMIT")
    except (apsw.Error, StorageFailed) as exc:
        connection.authorizer = None
        if not connection.get_autocommit():
            connection.execute("ROLLBACK")
        about_the_file = storage_error(exc, path)
        if about_the_file is exc:
            raise
        failed = about_the_file or StorageFailed(str(path), f"migration {name} failed: {exc}; nothing was changed")
        raise failed from exc
    connection.execute("PRAGMA foreign_keys = ON")


def _run_whole(connection: apsw.Connection, script: str) -> None:
    # SQLite finds the ends of the statements: a trigger holds semicolons of its own.
    for _row in connection.execute(script):
        pass


def _no_transactions(operation: int, _a: str | None, _b: str | None, _c: str | None, _d: str | None) -> int:
    """A script that commits would tear the one transaction apart."""
    return apsw.SQLITE_DENY if operation == apsw.SQLITE_TRANSACTION else apsw.SQLITE_OK
