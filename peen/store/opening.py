"""Opening a database file, with the thread that writes to it or, for simulations, without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources.abc import Traversable
from pathlib import Path

import apsw
import trio

from peen.entropy import Entropy
from peen.store.batch import BATCH_LIMIT, Faults
from peen.store.connect import Synchronous, connect_reader
from peen.store.database import Database
from peen.store.direct import DirectDatabase, MemoryFile
from peen.store.failure import storage_errors
from peen.store.group import GroupDatabase
from peen.store.migrate import load_migrations
from peen.store.prepare import Wanted, prepare, prepare_memory
from peen.store.reserve import RESERVE_BYTES, Reserve


@asynccontextmanager
async def open_database(
    path: Path,
    *,
    migrations: Path | Traversable,
    name: str,
    entropy: Entropy,
    synchronous: Synchronous = "FULL",
    reserve_bytes: int = RESERVE_BYTES,
    batch_limit: int = BATCH_LIMIT,
    vfs: str | None = None,
) -> AsyncIterator[Database]:
    """The database at `path`: created, or checked and brought to the newest schema in `migrations`.

    `name` is the application whose file it must be. `reserve_bytes` of disk are set aside beside it for terminal
    commits (0: none). At the end everything submitted is answered, the log is emptied and the files are closed.
    Raises: StorageDamaged, StorageNewer, StorageNotWritable, StorageFull, StorageFailed, each naming the file;
    what was at `path` before is then unchanged.
    """
    wanted = Wanted(path, load_migrations(migrations), name, synchronous, vfs)
    writer = await trio.to_thread.run_sync(prepare, wanted)
    try:
        with storage_errors(path):
            reader = connect_reader(path, vfs=vfs)
    except BaseException:
        writer.close()
        raise
    reserve = Reserve(path, size=reserve_bytes)
    database = GroupDatabase(
        path, writer=writer, reader=reader, reserve=reserve, entropy=entropy, batch_limit=batch_limit
    )
    try:
        yield database
    finally:
        await database.aclose()


@asynccontextmanager
async def open_direct(
    where: Path | MemoryFile,
    *,
    migrations: Path | Traversable,
    name: str,
    seed: int,
    faults: Faults | None = None,
    synchronous: Synchronous = "OFF",
) -> AsyncIterator[Database]:
    """The same store without threads, so that virtual time works: every change runs on the Trio thread.

    `seed` decides which requests share a commit; `faults` may fail statements and commits, or crash the store. A
    crash comes out of this block as the exception that `faults` raised; `where` then holds what was committed, and
    can be opened again. Raises: as `open_database`.
    """
    wanted = Wanted(
        where if isinstance(where, Path) else Path(":memory:"), load_migrations(migrations), name, synchronous
    )
    writer, reader = _connect_direct(where, wanted)
    database = DirectDatabase(wanted.path, writer=writer, reader=reader, seed=seed, faults=faults)
    lone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.pump)
            yield database
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery is this function's own affair: callers see their exception as they raised it.
        if len(group.exceptions) > 1:
            raise
        lone = group.exceptions[0]
    finally:
        image = database.close()
        if isinstance(where, MemoryFile):
            where.image = image
    if lone is not None:
        raise lone


def _connect_direct(where: Path | MemoryFile, wanted: Wanted) -> tuple[apsw.Connection, apsw.Connection | None]:
    if isinstance(where, MemoryFile):
        return prepare_memory(wanted, where.image), None
    writer = prepare(wanted)
    try:
        with storage_errors(where):
            return writer, connect_reader(where, vfs=None)
    except BaseException:
        writer.close()
        raise
