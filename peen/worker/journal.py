"""The journal of an execution in a worker: calls to the controller, which commits them in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from peen.wire.records import NewBlob
from peen.wire.turncalls import (
    BlobPiece,
    BlobsSaved,
    CommitSteps,
    Committed,
    EmitEvents,
    Emitted,
    FetchBlob,
    HistoryPage,
    HistoryRows,
    LeasesRenewed,
    OpenedTurn,
    OpenTurn,
    RenewLeases,
    RestoredExecution,
    RestoreExecution,
    SaveBlobs,
)
from peen.worker.link import ControllerLink
from peen.worker.peer import Answer

MAX_EMITS_AHEAD: Final = 8
"""Streamed pieces that may be on their way unanswered; one more waits, so a fast model feels a slow disk."""
MAX_BLOBS_BYTES: Final = 4 * 1024 * 1024
"""Blobs of one frame, which holds so many in base64 beside what else a commit brings. A larger one travels alone."""


class LinkJournal:
    """Implements `peen.execution.journal.Journal` over the worker's socket."""

    def __init__(self, link: ControllerLink, *, before_commit: Callable[[], None] | None = None) -> None:
        """`before_commit` may make calls of its own: they are carried out with the commit, just before it."""
        self._link, self._before_commit = link, before_commit
        self._emitted: dict[str, deque[Answer[Emitted]]] = {}
        """Pieces that are on their way, by execution: what becomes of one turn's pieces is nothing to the next."""

    async def open_turn(self, request: OpenTurn) -> OpenedTurn:
        self._forget_settled()
        return await self._link.call(request, OpenedTurn)

    async def restore(self, request: RestoreExecution) -> RestoredExecution:
        self._forget_settled()
        return await self._link.call(request, RestoredExecution)

    async def history(self, request: HistoryPage) -> HistoryRows:
        return await self._link.call(request, HistoryRows)

    async def commit(self, request: CommitSteps) -> Committed:
        emitted = self._emitted.pop(request.execution_id, deque())
        is_unfinished_end = request.terminal is not None and request.terminal.state != "completed"
        if not is_unfinished_end:  # such an end must be stored, whatever became of the pieces before it
            # A piece that could not be stored leaves a hole that no later frame may follow: the step fails with it.
            while emitted:
                await emitted.popleft()
        if sum(len(blob.data) for blob in request.blobs) > MAX_BLOBS_BYTES:
            for part in _parts(request.blobs):
                await self._link.call(SaveBlobs(blobs=part), BlobsSaved)
            request = msgspec.structs.replace(request, blobs=[])
        if self._before_commit is not None:
            self._before_commit()
        return await self._link.call(request, Committed)

    async def blob(self, digest: bytes) -> bytes:
        whole = bytearray()
        while True:
            piece = await self._link.call(FetchBlob(digest=digest, offset=len(whole)), BlobPiece)
            whole += piece.data
            if len(whole) >= piece.size_bytes or not piece.data:
                return bytes(whole)

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        return await self._link.call(request, LeasesRenewed)

    async def emit(self, request: EmitEvents) -> None:
        emitted = self._emitted.setdefault(request.execution_id, deque())
        emitted.append(self._link.call_soon(request, Emitted))
        while len(emitted) > MAX_EMITS_AHEAD:
            await emitted.popleft()

    async def note(self, request: EmitEvents) -> None:
        await self._link.call(request, Emitted)

    def _forget_settled(self) -> None:
        """Let go of executions that were stopped: nobody will ask for what became of their last pieces."""
        for execution_id in [
            known for known, emitted in self._emitted.items() if all(answer.done.is_set() for answer in emitted)
        ]:
            del self._emitted[execution_id]


def _parts(blobs: list[NewBlob]) -> list[list[NewBlob]]:
    parts: list[list[NewBlob]] = [[]]
    size = 0
    for blob in blobs:
        if parts[-1] and size + len(blob.data) > MAX_BLOBS_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(blob)
        size += len(blob.data)
    return parts
