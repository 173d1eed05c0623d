"""What all sessions of one controller share, and what each of them needs of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from peen.entropy import Entropy
from peen.feed.pump import FeedPump
from peen.ids import SessionNo
from peen.store.blobs.rows import Blobs
from peen.store.database import Database
from peen.wire.workerstruct import WorkerStruct


class Link(Protocol):
    """The controller's end of a worker socket."""

    async def command(self, request: WorkerStruct) -> WorkerStruct:
        """Carry out a command in the worker. Raises: LinkLost, or what the worker answered."""


class Workers(Protocol):
    """Where the session's worker comes from."""

    async def ensure(self, session_no: SessionNo) -> Link:
        """The session's ready worker, started if there is none.

        Raises: WorkerFailed; WorkspaceNotFound or WorkspaceNotAllowed if its workspace is not what it was.
        """

    def link_of(self, session_id: str) -> Link | None:
        """The session's ready worker, if it has one."""

    async def stop(self, session_id: str, reason: str) -> None:
        """End the session's worker, if there is one, and record that."""

    async def give_up(self, session_id: str, reason: str) -> None:
        """Kill the session's worker with everything below it, and record that."""

    async def settled(self, session_id: str) -> None:
        """Return once a lost worker of the session has been killed, reaped and recorded."""


@dataclass(frozen=True, slots=True)
class Household:
    """What all sessions of one controller share."""

    database: Database
    blobs: Blobs
    pump: FeedPump
    workers: Workers
    entropy: Entropy
    check_model: Callable[[str], object]
    """Raises ValidationFailed for a model that no upstream offers."""
    takes_images: Callable[[str], bool]
    """Whether the model of this name can be shown an image."""
    default_model: str
    queue_capacity: int
    turn_limit: trio.CapacityLimiter
    worker_idle_s: float
    clock_ms: Callable[[], int] | None = None
    """The clock of leases, as for the calls of workers; without one it is the monotonic clock of `entropy`."""
    on_end: Callable[[bytes], None] | None = None
    """Hears of every turn that has ended, by its id, once that is stored."""
