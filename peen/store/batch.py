"""Waiting requests, run as one transaction: the heart of both variants of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import apsw
import outcome

from peen.errors import StorageFull
from peen.store.database import Change, Done, Touched, Tx, Value, widen
from peen.store.failure import translated

BATCH_LIMIT: Final = 256  # requests in one commit: by then a sync costs each of them next to nothing

_BEGIN: Final = "BEGIN IMMEDIATE"
_COMMIT: Final = "COMMIT"
_ROLLBACK: Final = "ROLLBACK"
_SAVE: Final = "SAVEPOINT request"
_UNDO: Final = "ROLLBACK TO request"
_KEEP: Final = "RELEASE request"


@dataclass(slots=True, eq=False)
class Request:
    """One change on its way; see `Database.write`. `attempts` counts how often a full disk has put it off."""

    change: Change[Any]
    done: Done[Any]
    terminal: bool = False
    attempts: int = 0
    unchecked: bool = False


@dataclass(slots=True)
class Answered:
    """What a batch came to: outcomes in the order in which they were run, and what the commits touched."""

    results: list[tuple[Request, outcome.Outcome[Any]]] = field(default_factory=list)
    touched: Touched = field(default_factory=dict)
    again: list[Request] = field(default_factory=list)
    """Terminal requests that found the disk full twice: not answered, to be run again later."""


def deliver(answered: Answered, on_commit: Callable[[Touched], None] | None) -> None:
    """Tell the feed what was committed, then wake the callers. One that raises does not keep the others waiting.

    Raises: BaseExceptionGroup of what they raised.
    """
    broken: list[BaseException] = []
    if answered.touched and on_commit is not None:
        try:
            on_commit(answered.touched)
        except BaseException as exc:
            broken.append(exc)
    for request, result in answered.results:
        try:
            request.done(result)
        except BaseException as exc:
            broken.append(exc)
    if broken:
        raise BaseExceptionGroup("callbacks of a commit", broken)


class Faults(Protocol):
    """Where a test makes the store fail. Each may raise; an APSW error must come with what SQLite does about it."""

    def before_statement(self, connection: apsw.Connection) -> None:
        """Before each statement of a change."""

    def before_commit(self, connection: apsw.Connection) -> None:
        """Before each COMMIT."""

    def after_commit(self) -> None:
        """After each COMMIT that succeeded."""


class _FaultyTx(Tx):
    __slots__ = ("_faults",)

    def __init__(self, connection: apsw.Connection, faults: Faults) -> None:
        super().__init__(connection)
        self._faults = faults

    def execute(self, sql: str, bindings: apsw.Bindings = ()) -> apsw.Cursor:
        if not self._connection.get_autocommit():
            self._faults.before_statement(self._connection)
        return super().execute(sql, bindings)

    def execute_each(self, sql: str, rows: Sequence[tuple[Value, ...]]) -> None:
        for row in rows:
            self.execute(sql, row)


class BatchRunner:
    """Runs batches on the one write connection, in whatever thread it is called.

    `relieve` makes room when a terminal request finds the disk full (the reserve); it is then run again at once.
    """

    def __init__(
        self, connection: apsw.Connection, path: Path, *, relieve: Callable[[], None], faults: Faults | None = None
    ) -> None:
        self._connection, self._path, self._relieve, self._faults = connection, path, relieve, faults
        self._unsealed = False  # the last COMMIT failed, and nothing has been committed since

    def run(self, requests: Sequence[Request]) -> Answered:
        """Commit what can be committed of `requests`; every one has its outcome, or a place in `again`."""
        answered = Answered()
        ordered = sorted(requests, key=lambda request: request.unchecked)
        checked = [each for each in ordered if not each.unchecked]
        together = self._together(checked, answered.touched) if len(checked) > 1 else None
        # None: nothing of the batch happened, so each request gets a transaction, and a truth, of its own.
        results = together or []
        results += [self._alone(each, answered.touched) for each in ordered[len(results) :]]
        for request, result in zip(ordered, results, strict=True):
            settled: outcome.Outcome[Any] | None = result
            if isinstance(result, outcome.Error):
                settled = self._settle_failure(request, result, answered.touched)
            if settled is None:
                answered.again.append(request)
            else:
                answered.results.append((request, settled))
        if self._unsealed:
            self._seal()
        return answered

    def _together(self, requests: Sequence[Request], touched: Touched) -> list[outcome.Outcome[Any]] | None:
        """Every request in its savepoint, all in one commit. None if the whole transaction was lost."""
        connection = self._connection
        results: list[outcome.Outcome[Any]] = []
        wrote: Touched = {}
        try:
            connection.execute(_BEGIN)
        except apsw.Error as exc:
            # The file could not be locked. That holds for all, and another five seconds for each would not help.
            return [outcome.Error(translated(exc, self._path)) for _ in requests]
        try:
            for request in requests:
                connection.execute(_SAVE)
                tx = self._open()
                result: outcome.Outcome[Any] = outcome.capture(request.change, tx)
                tx.end()
                if isinstance(result, outcome.Error):
                    # A full disk or an I/O error rolls everything back, whatever the savepoints say.
                    if connection.get_autocommit():
                        return None
                    connection.execute(_UNDO)
                else:
                    _merge(wrote, tx.touched)
                connection.execute(_KEEP)
                results.append(result)
            self._commit()
        except apsw.Error:
            self._roll_back()
            return None
        _merge(touched, wrote)
        return results

    def _alone(self, request: Request, touched: Touched) -> outcome.Outcome[Any]:
        """One request in a transaction of its own."""
        connection = self._connection
        tx = self._open()
        with self._foreign_keys(enforced=not request.unchecked):
            try:
                connection.execute(_BEGIN)
                result: outcome.Outcome[Any] = outcome.capture(request.change, tx)
                tx.end()
                if isinstance(result, outcome.Error):
                    self._roll_back()
                    return result
                self._commit()
            except apsw.Error as exc:
                self._roll_back()
                return outcome.Error(exc)
        _merge(touched, tx.touched)
        return result

    @contextmanager
    def _foreign_keys(self, *, enforced: bool) -> Iterator[None]:
        """Around one transaction, as SQLite does not change this inside of one."""
        if enforced:
            yield
            return
        self._connection.execute("PRAGMA foreign_keys = OFF")
        try:
            yield
        finally:
            self._connection.execute("PRAGMA foreign_keys = ON")

    def _settle_failure(self, request: Request, failed: outcome.Error, touched: Touched) -> outcome.Outcome[Any] | None:
        """The failure as its caller gets it; a terminal request on a full disk is first run again with the reserve."""
        error = translated(failed.error, self._path)
        if not (request.terminal and isinstance(error, StorageFull)):
            return outcome.Error(error)
        self._relieve()
        second = self._alone(request, touched)
        if isinstance(second, outcome.Error):
            error = translated(second.error, self._path)
            return None if isinstance(error, StorageFull) else outcome.Error(error)
        return second

    def _open(self) -> Tx:
        return Tx(self._connection) if self._faults is None else _FaultyTx(self._connection, self._faults)

    def _commit(self) -> None:
        self._unsealed = True
        if self._faults is not None:
            self._faults.before_commit(self._connection)
        self._connection.execute(_COMMIT)
        self._unsealed = False
        if self._faults is not None:
            self._faults.after_commit()

    def _seal(self) -> None:
        """Write over what a failed commit left in the log.

        When only the sync failed, its frames are there, complete; SQLite has forgotten them, but whoever recovers
        the log after a crash would take them for committed, and the caller has been told that nothing was written.
        The next commit goes over them. If there is none at once, this one does, and changes nothing else. Should its
        sync fail as well, the frames are gone all the same.
        """
        with suppress(apsw.Error):
            version = self._connection.execute("PRAGMA user_version").get
            self._connection.execute(_BEGIN)
            self._connection.execute(f"PRAGMA user_version = {version}")
            self._connection.execute(_COMMIT)
            self._unsealed = False
        self._roll_back()

    def _roll_back(self) -> None:
        """Leave no transaction open. An error here means that SQLite has rolled back by itself."""
        if not self._connection.get_autocommit():
            with suppress(apsw.Error):
                self._connection.execute(_ROLLBACK)


def _merge(into: Touched, more: Touched) -> None:
    for session_no, (first, last) in more.items():
        widen(into, session_no, first, last)
