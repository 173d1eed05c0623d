"""When the write-ahead log is copied back into the database."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import apsw

IDLE_PAGES: Final = 1_000
FORCED_PAGES: Final = 10_000
_PATIENCE_MS: Final = 250  # for readers, in a forced checkpoint: the writer stands still meanwhile
_BUSY_MS: Final = 5_000


class Checkpoints:
    """Watches the log of one write connection. Used by the thread that writes.

    When nothing waits, a log of over 1,000 pages is copied without waiting for anybody; at 10,000 it is copied and
    emptied whatever waits. One that fails (a reader, a full disk) is tried again 1,000 pages later: what was
    committed is safe in the log, and if the file itself is broken, the next commit says so.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.pages = 0
        self._connection = connection
        self._idle_at, self._forced_at = IDLE_PAGES, FORCED_PAGES
        connection.set_wal_hook(self._committed)

    def when_idle(self) -> None:
        """Nothing waits: copy what readers allow."""
        if self.pages > self._idle_at:
            self._idle_at = self.pages + IDLE_PAGES
            with suppress(apsw.Error):
                self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)

    def after_commit(self) -> None:
        """Keep the log from growing without end under steady work."""
        if self.pages >= self._forced_at:
            self._forced_at = self.pages + IDLE_PAGES
            self.empty_log()

    def empty_log(self) -> None:
        """Copy everything and cut the log to nothing, if readers let go in time."""
        self._connection.set_busy_timeout(_PATIENCE_MS)
        with suppress(apsw.Error):
            self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._connection.set_busy_timeout(_BUSY_MS)

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        if pages < self.pages:  # the log began anew
            self._idle_at, self._forced_at = IDLE_PAGES, FORCED_PAGES
        self.pages = pages
        return apsw.SQLITE_OK
