"""Where an execution's records go. The worker's end of the socket is one journal; a store in this process another."""

from __future__ import annotations

from typing import Protocol

from peen.wire.turncalls import (
    CommitSteps,
    Committed,
    EmitEvents,
    HistoryPage,
    HistoryRows,
    LeasesRenewed,
    OpenedTurn,
    OpenTurn,
    RenewLeases,
    RestoredExecution,
    RestoreExecution,
)


class Journal(Protocol):
    """Durable records, carried out in the order of the calls.

    A writing call is not interrupted by cancellation: when it returns, what it wrote is committed. It raises
    StaleClaim if the execution is held by somebody else, LinkLost if whether it took effect cannot be known.
    """

    async def open_turn(self, request: OpenTurn) -> OpenedTurn:
        """Open the turn and its execution."""

    async def restore(self, request: RestoreExecution) -> RestoredExecution:
        """Take hold of a resumed execution and read how far it came."""

    async def history(self, request: HistoryPage) -> HistoryRows:
        """A page of the transcript."""

    async def commit(self, request: CommitSteps) -> Committed:
        """End steps, write what they produced, begin others, in one transaction."""

    async def blob(self, digest: bytes) -> bytes:
        """The bytes of a blob of the session, as they are stored. Raises: PeenError if there is no such blob."""

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        """Keep the leases of an execution and of the steps that it runs."""

    async def emit(self, request: EmitEvents) -> None:
        """Hand over streamed pieces; returns once they are on their way, in order before any later call."""

    async def note(self, request: EmitEvents) -> None:
        """The same as `emit`, and a writing call: returns once it is committed."""
