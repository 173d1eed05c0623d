"""Long reads: on a connection and in a thread of their own, so that the Trio thread goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import trio
from trio.lowlevel import RunVar

from peen.errors import StorageFailed
from peen.store.connect import connect_reader
from peen.store.database import Reader
from peen.store.failure import storage_errors

T = TypeVar("T")

READ_S: Final = 30.0
AT_ONCE: Final = 4  # more would only take the interpreter from the Trio thread
_LOOK_STEPS: Final = 10_000  # of SQLite's machine, well under a millisecond

_limiter: RunVar[trio.CapacityLimiter] = RunVar("long reads")


async def read_in_thread(path: Path, function: Callable[[Reader], T], *, within_s: float = READ_S) -> T:
    """What `function` finds. All its queries see one state of the database: that of the first of them.

    Raises: StorageFailed if it takes longer than `within_s` seconds; StorageError if the file cannot be read; what
    `function` raises. At the deadline, or cancelled, the thread is left to itself: its query ends within milliseconds.
    """
    given_up = threading.Event()
    with trio.move_on_after(within_s):
        try:
            return await trio.to_thread.run_sync(
                _read, path, function, given_up.is_set, abandon_on_cancel=True, limiter=_shared_limiter()
            )
        finally:
            given_up.set()
    raise StorageFailed(str(path), f"a read was given up after {within_s:g} s")


def _read(path: Path, function: Callable[[Reader], T], is_given_up: Callable[[], bool]) -> T:
    with storage_errors(path):
        connection = connect_reader(path, vfs=None)
        try:
            connection.set_progress_handler(is_given_up, _LOOK_STEPS)
            connection.execute("BEGIN")
            return function(Reader(connection))
        finally:
            connection.close()


def _shared_limiter() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(trio.CapacityLimiter(AT_ONCE))
        return _limiter.get()
