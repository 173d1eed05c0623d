"""What both ends of a worker socket share: answers that find their request, and the end of the link."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from typing import Any, Final, Generic, TypeVar

import msgspec
import trio
from msgspec import Raw

from peen.errors import BadRequest, LinkLost, PeenError, Refused, StorageError
from peen.wire.worker import CALLS, COMMANDS, WireError, encode
from peen.wire.workerstruct import WorkerStruct

from .framing import FrameStream

R = TypeVar("R", bound=WorkerStruct)
R_co = TypeVar("R_co", bound=WorkerStruct, covariant=True)

_DECODE: Final[dict[type[WorkerStruct], Callable[[Raw], WorkerStruct]]] = {
    kind: msgspec.json.Decoder(kind).decode for table in (CALLS, COMMANDS) for pair in table.values() for kind in pair
}


def wire_error(error: PeenError) -> WireError:
    """How `error` is told to the other end."""
    return WireError(code=error.code, message=str(error))


def error_of(wire: WireError) -> PeenError:
    """The exception that `wire` tells of: the class with that code, or a plain PeenError with the same text.

    Fields beyond the text do not travel; a `StorageError` has an empty path.
    """
    kind = _error_kinds().get(wire.code)
    if kind is None:
        return PeenError(wire.message)
    error = kind.__new__(kind, wire.message)
    if isinstance(error, Refused):
        error.message, error.details = wire.message, None
    if isinstance(error, StorageError):
        error.path, error.problem = "", wire.message
    return error


def decode_payload(kind: type[R], payload: Raw) -> R:
    """`payload` as a request or reply struct. Raises: msgspec.DecodeError, msgspec.ValidationError."""
    value = _DECODE[kind](payload)
    assert isinstance(value, kind)
    return value


class Answer(Generic[R_co]):
    """What will come back for one request: `await answer`, as often as you like."""

    def __init__(self, reply: type[R_co]) -> None:
        self.done = trio.Event()
        self._reply = reply
        self._value: R_co | None = None
        self._error: WireError | None = None
        self._lost = ""

    async def wait(self) -> R_co:
        """The reply. Raises: the PeenError the other end answered with, or LinkLost.

        No deadline: the answer comes or the link is lost, and the owner of the link bounds that.
        """
        await self.done.wait()
        return self.result()

    def result(self) -> R_co:
        """The reply, once `done` is set. Raises: as `wait`."""
        assert self.done.is_set()
        if self._value is not None:
            return self._value
        if self._error is not None:
            raise error_of(self._error)
        raise LinkLost(self._lost)

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.wait().__await__()

    def _settle(self, payload: Raw, error: WireError | None) -> None:
        if error is None:
            self._value = decode_payload(self._reply, payload)
        self._error = error
        self.done.set()

    def _lose(self, reason: str) -> None:
        self._lost = reason
        self.done.set()


class Peer:
    """One end of a link: sends frames, matches answers to requests, and knows when it is over.

    Owns:  the frame stream. Ends: when the other side closes, breaks the protocol, or `lose` is called; from then
           on `closed` is set, `reason` says why, every waiting and every later request raises LinkLost.
    """

    def __init__(self, frames: FrameStream) -> None:
        self.closed = trio.Event()
        self.reason = ""
        self._frames = frames
        self._waiting: dict[int, Answer[Any]] = {}
        self._ids = count(1)
        self._scope = trio.CancelScope()

    def next_id(self) -> int:
        return next(self._ids)

    def expect(self, number: int, reply: type[R]) -> Answer[R]:
        """A place for the answer to request `number`. Raises: LinkLost."""
        if self.closed.is_set():
            raise LinkLost(self.reason)
        answer = Answer(reply)
        self._waiting[number] = answer
        return answer

    def forget(self, number: int) -> None:
        """Nobody waits for the answer to request `number` any more."""
        answer = self._waiting.pop(number, None)
        if answer is not None:
            answer._lose("nobody waits for this answer any more")

    def settle(self, number: int, payload: Raw, error: WireError | None) -> None:
        """The answer to request `number` has come; one that nobody waits for any more is dropped."""
        answer = self._waiting.get(number)
        if answer is not None:
            answer._settle(payload, error)  # one that cannot be decoded stays, and is lost with the link
            del self._waiting[number]

    def send(self, frame: WorkerStruct) -> None:
        """Queue one frame. Raises: LinkLost, FrameTooLong."""
        self.send_encoded(encode(frame))

    def send_encoded(self, frame: bytes) -> None:
        if self.closed.is_set():
            raise LinkLost(self.reason)
        self._frames.send_soon(frame)

    async def quiet(self) -> None:
        """Wait until every request has its answer, or the link is over. The caller sets the deadline."""
        while self._waiting:
            await next(iter(self._waiting.values())).done.wait()

    async def flush(self) -> None:
        """Wait until every queued frame was given to the kernel. Raises: LinkLost. The caller sets the deadline."""
        await self._frames.drain(below=0)

    def lose(self, reason: str) -> None:
        """End the link. The first reason is the one that is kept."""
        if self.closed.is_set():
            return
        self.reason = reason
        self.closed.set()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer._lose(reason)
        self._scope.cancel()

    async def pump(self, on_frame: Callable[[bytes], None]) -> None:
        """Carry frames until the link ends; then return. `on_frame` is called in order and must not block."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read(on_frame)
        finally:
            self.lose("this side closed the link")
            with trio.CancelScope(shield=True):  # closing by force never waits
                await self._frames.close()

    async def _read(self, on_frame: Callable[[bytes], None]) -> None:
        try:
            while frames := await self._frames.receive():
                for frame in frames:
                    on_frame(frame)
        except LinkLost as lost:
            self.lose(str(lost))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:  # ValidationError is a DecodeError
            self.lose(f"the peer sent a frame that is not part of the protocol: {exc}")
        self.lose("the peer closed the connection")

    async def _write(self) -> None:
        try:
            await self._frames.write()
        except LinkLost as lost:
            self.lose(str(lost))


def _error_kinds() -> dict[str, type[PeenError]]:
    """Error classes by code. Those whose constructor takes more than a text it cannot get back are left out."""
    kinds: dict[str, type[PeenError]] = {BadRequest.code: BadRequest}  # several share this code; it is the plainest
    todo: list[type[PeenError]] = [PeenError]
    while todo:
        kind = todo.pop(0)
        todo += kind.__subclasses__()
        if kind.__init__ in (PeenError.__init__, Refused.__init__, StorageError.__init__):
            kinds.setdefault(kind.code, kind)
    return kinds
