"""Opening a database that can be made again: a damaged one is set aside, and one that cannot be had is done without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.entropy import Entropy
from peen.errors import StorageDamaged, StorageError, StorageNewer
from peen.store import files
from peen.store.database import Database
from peen.store.opening import open_database

log = structlog.get_logger(__name__)

_ASIDE: Final = ".damaged"


@asynccontextmanager
async def open_spare(
    path: Path, *, migrations: Path | Traversable, name: str, entropy: Entropy
) -> AsyncIterator[Database | None]:
    """The database at `path`, whose content can be made again; None if there is no having one now.

    One that is damaged, foreign or from a later release gets the ending `.damaged` (an older file of that name goes),
    and a new one takes its place. Commits reach the disk when the log is copied, not before they are answered.
    """
    async with AsyncExitStack() as stack:
        opening = open_database(
            path, migrations=migrations, name=name, entropy=entropy, synchronous="NORMAL", reserve_bytes=0
        )
        database: Database | None
        try:
            database = await stack.enter_async_context(opening)
        except (StorageDamaged, StorageNewer) as unfit:
            log.warning("a database that can be made again is set aside", file=str(path), problem=unfit.problem)
            database = await _made_anew(stack, path, migrations, name, entropy)
        except StorageError as problem:
            log.warning("a database that can be made again cannot be opened", file=str(path), problem=problem.problem)
            database = None
        try:
            yield database
        finally:
            try:
                await stack.aclose()
            except StorageError as problem:
                log.warning("a database that can be made again did not close", error=str(problem))


async def _made_anew(
    stack: AsyncExitStack, path: Path, migrations: Path | Traversable, name: str, entropy: Entropy
) -> Database | None:
    try:
        await trio.to_thread.run_sync(_set_aside, path)
        opening = open_database(
            path, migrations=migrations, name=name, entropy=entropy, synchronous="NORMAL", reserve_bytes=0
        )
        return await stack.enter_async_context(opening)
    except (StorageError, OSError) as problem:
        log.warning("a database that can be made again cannot be made", file=str(path), error=str(problem))
        return None


def _set_aside(path: Path) -> None:
    """Its log belongs to it, and would be taken for the new one's."""
    if path.exists():
        path.replace(path.with_name(path.name + _ASIDE))
    files.remove_companions(path)
