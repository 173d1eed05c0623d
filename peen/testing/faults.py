"""Storage that fails on purpose: at a chosen statement or commit, or at a chosen write to a real file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import apsw

FaultKind = Literal["full", "ioerr"]


class SimulatedCrash(BaseException):
    """The process is gone, as after SIGKILL. No code of the simulated program may survive it."""


class Faults:
    """A plan for the store without threads: what fails, and when. Counts from 1, over the whole life of a plan.

    A statement is one that a change runs; a commit is one COMMIT, also of a request that is run again by itself.
    Full and I/O errors do what SQLite does: the transaction is rolled back before the error is raised.
    """

    def __init__(self) -> None:
        self.statements = 0
        self.commits = 0
        self.fired = 0
        """How many faults have happened: 0 at the end says that no statement or commit was left to fail at."""
        self._full: range = range(0)
        self._ioerr: range = range(0)
        self._failed_commits: range = range(0)
        self._commit_error: FaultKind = "ioerr"
        self._crash_before = self._crash_after = 0

    @classmethod
    def full_at(cls, n: int, *, lasting: int = 1) -> Faults:
        """The disk is full for `lasting` statements from the n-th on."""
        plan = cls()
        plan._full = range(n, n + lasting)
        return plan

    @classmethod
    def ioerr_at(cls, n: int, *, lasting: int = 1) -> Faults:
        """`lasting` statements from the n-th on meet an I/O error."""
        plan = cls()
        plan._ioerr = range(n, n + lasting)
        return plan

    @classmethod
    def failed_commit_at(cls, n: int, *, lasting: int = 1, kind: FaultKind = "ioerr") -> Faults:
        """`lasting` commits from the n-th on fail, and nothing of them is written."""
        plan = cls()
        plan._failed_commits, plan._commit_error = range(n, n + lasting), kind
        return plan

    @classmethod
    def crash_before_commit(cls, n: int) -> Faults:
        """The process dies when everything but the n-th COMMIT has been done: nothing of it is on disk."""
        plan = cls()
        plan._crash_before = n
        return plan

    @classmethod
    def crash_after_commit(cls, n: int) -> Faults:
        """The process dies right after the n-th COMMIT: it is on disk, and nobody was told."""
        plan = cls()
        plan._crash_after = n
        return plan

    def before_statement(self, connection: apsw.Connection) -> None:
        """See `peen.store.batch.Faults`."""
        self.statements += 1
        if self.statements in self._full:
            self._fail(connection, "full")
        if self.statements in self._ioerr:
            self._fail(connection, "ioerr")

    def before_commit(self, connection: apsw.Connection) -> None:
        """See `peen.store.batch.Faults`."""
        self.commits += 1
        if self.commits == self._crash_before:
            self.fired += 1
            raise SimulatedCrash(f"before commit {self.commits}")
        if self.commits in self._failed_commits:
            self._fail(connection, self._commit_error)

    def after_commit(self) -> None:
        """See `peen.store.batch.Faults`."""
        if self.commits == self._crash_after:
            self.fired += 1
            raise SimulatedCrash(f"after commit {self.commits}")

    def _fail(self, connection: apsw.Connection, kind: FaultKind) -> None:
        self.fired += 1
        connection.execute("ROLLBACK")
        raise _error(kind)


class FaultyVFS(apsw.VFS):
    """The default file system, except that chosen writes or syncs fail; SQLite does the rest.

    Open databases with `vfs=<this>.name`. Usable from any thread; `arm` between the steps of a test.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.fired = 0
        """Failures since `arm`."""
        self.writes = 0
        self.syncs = 0
        self._failing: dict[str, tuple[range, FaultKind]] = {}
        super().__init__(name, "")

    def arm(
        self, *, write: int | None = None, sync: int | None = None, kind: FaultKind = "ioerr", lasting: int = 1
    ) -> None:
        """Count anew, and fail `lasting` writes or syncs from the n-th (from 1) on. Without a number: fail nothing."""
        self.fired = self.writes = self.syncs = 0
        at = {"write": write, "sync": sync}
        self._failing = {what: (range(n, n + lasting), kind) for what, n in at.items() if n is not None}

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _FaultyFile(self, name, flags)

    def written(self) -> None:
        """A file is about to be written. Raises: apsw.FullError or apsw.IOError if it is this one's turn."""
        self.writes += 1
        self._perhaps_fail("write", self.writes)

    def synced(self) -> None:
        """A file is about to be synced. Raises: as `written`."""
        self.syncs += 1
        self._perhaps_fail("sync", self.syncs)

    def _perhaps_fail(self, what: str, count: int) -> None:
        failing, kind = self._failing.get(what, (range(0), "ioerr"))
        if count in failing:
            self.fired += 1
            raise _error(kind)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.written()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._vfs.synced()
        super().xSync(flags)


@contextmanager
def faulty_vfs(name: str) -> Iterator[FaultyVFS]:
    """A registered `FaultyVFS`, gone afterwards; databases that use it are closed before."""
    vfs = FaultyVFS(name)
    try:
        yield vfs
    finally:
        vfs.unregister()


def _error(kind: FaultKind) -> apsw.Error:
    return apsw.FullError("database or disk is full") if kind == "full" else apsw.IOError("disk I/O error")
