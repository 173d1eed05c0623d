"""What a job needs of its worker's link to the controller."""

from __future__ import annotations

from typing import Protocol, TypeVar

import trio

from peen.wire.workerstruct import WorkerStruct

R = TypeVar("R", bound=WorkerStruct)
R_co = TypeVar("R_co", bound=WorkerStruct, covariant=True)


class Pending(Protocol[R_co]):
    """An answer that will come: `done` is set when it is there, or never will be."""

    @property
    def done(self) -> trio.Event: ...

    def result(self) -> R_co:
        """The answer, once it is done. Raises: the PeenError that it is, or LinkLost."""


class Calls(Protocol):
    """Calls are carried out in the order in which they are made."""

    def call_soon(self, request: WorkerStruct, reply: type[R]) -> Pending[R]:
        """Send a call and return at once. Raises: LinkLost."""

    async def call(self, request: WorkerStruct, reply: type[R]) -> R:
        """Send a call and wait for its answer; a writing one cannot be cancelled meanwhile. Raises: as its result."""
