"""What the rest of Peen sees of a database file: one writer that commits changes, and a reader beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import apsw
import outcome

from peen.ids import SessionNo

T = TypeVar("T")

Value: TypeAlias = int | float | bytes | str | None
"""What a column holds."""
Touched: TypeAlias = dict[SessionNo, tuple[int, int]]
"""Session -> (lowest first, highest last) feed sequence that a commit wrote."""


class TransactionLost(Exception):
    """A statement came after its transaction had ended: after an error that SQLite answers with a rollback, or
    through a `Tx` that outlived its change. Run outside a transaction it would be committed on its own."""


class Tx:
    """One request inside an open write transaction. It is dead once the change that it was given to returns."""

    __slots__ = ("_connection", "_live", "touched")

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._live = True
        self.touched: Touched = {}

    def execute(self, sql: str, bindings: apsw.Bindings = ()) -> apsw.Cursor:
        """Run `sql`. Rows are read from the cursor, all of them before the change returns.

        Raises: what APSW raises; TransactionLost if an earlier error of this change ended the transaction.
        """
        connection = self._connection
        if not self._live or connection.get_autocommit():
            raise TransactionLost("the transaction of this change is over")
        return connection.execute(sql, bindings)

    def execute_each(self, sql: str, rows: Sequence[tuple[Value, ...]]) -> None:
        """Run `sql`, which gives no rows, once for each of these bindings. Raises: as `execute`."""
        connection = self._connection
        if not self._live or connection.get_autocommit():
            raise TransactionLost("the transaction of this change is over")
        connection.executemany(sql, rows)

    def row(self, sql: str, bindings: apsw.Bindings = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = self.execute(sql, bindings).fetchall()
        return rows[0] if rows else None

    def rows(self, sql: str, bindings: apsw.Bindings = ()) -> list[tuple[Any, ...]]:
        """Every row."""
        return self.execute(sql, bindings).fetchall()

    def touch(self, session_no: SessionNo, first: int, last: int) -> None:
        """Say that feed sequences `first` .. `last` of this session were written. Forgotten if the change fails."""
        widen(self.touched, session_no, first, last)

    def end(self) -> None:
        """Called by the writer when the change has returned: no statement may come any more."""
        self._live = False


class Reader:
    """A connection that cannot write, used on the Trio thread. It sees what was committed.

    For point reads, which take microseconds. A cursor that is not read to its end keeps old pages alive, so
    `row` and `rows` are the usual way.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, bindings: apsw.Bindings = ()) -> apsw.Cursor:
        """Run a query. The caller reads the cursor to its end or closes it."""
        return self._connection.execute(sql, bindings)

    def row(self, sql: str, bindings: apsw.Bindings = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        cursor = self._connection.execute(sql, bindings)
        first: tuple[Any, ...] | None = cursor.fetchone()
        cursor.close()
        return first

    def rows(self, sql: str, bindings: apsw.Bindings = ()) -> list[tuple[Any, ...]]:
        """Every row."""
        return self._connection.execute(sql, bindings).fetchall()


Change: TypeAlias = Callable[[Tx], T]
"""A store function bound to its arguments. It may run more than once (each time from the state before it), in
another thread, so it touches nothing but its `Tx`."""

Done: TypeAlias = Callable[[outcome.Outcome[T]], None]


class Database(Protocol):
    """One database file. Everything here is called on the Trio thread."""

    path: Path
    reader: Reader
    on_commit: Callable[[Touched], None] | None
    """Called after a commit that touched something, before the callers of that commit are woken. Must not raise."""

    async def write(self, change: Change[T], *, terminal: bool = False, unchecked: bool = False) -> T:
        """Run `change` in a transaction; once this returns, it is committed.

        Cancelled before it is queued: nothing was written. From then on the wait cannot be cancelled, so nobody
        has to guess whether a write happened. `terminal` is for the last commit of a turn or a run: on a full
        disk it gets the reserve, and is tried until it succeeds, `give_up_waiting` is called or the database closes.
        `unchecked` is for removing
        whole families of rows, children first: a transaction of its own in which foreign keys are not enforced,
        since each parent would be looked for in all the tables that may refer to it.
        Raises: what `change` raised (its writes are undone); StorageError, naming the file, when the file failed.
        """

    def submit(self, change: Change[T], done: Done[T], *, terminal: bool = False) -> None:
        """Queue `change` now, behind everything queued before, and return. `done` gets its outcome later, on the
        Trio thread, exactly once; it must not raise.

        Raises: StorageFailed if the database is closed.
        """

    def give_up_waiting(self) -> None:
        """From now on nobody waits for space: a terminal request that the reserve does not help either is answered
        with StorageFull, those that were put off before among them. It is tried once all the same."""


def widen(touched: Touched, session_no: SessionNo, first: int, last: int) -> None:
    """Let `touched` cover `first` .. `last` of this session too."""
    known = touched.get(session_no)
    touched[session_no] = (first, last) if known is None else (min(known[0], first), max(known[1], last))
