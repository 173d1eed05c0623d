"""The two ends of a worker socket: `WorkerLink` in the controller, `ControllerLink` in the worker."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar, overload

import msgspec
import trio
from msgspec import Raw

from peen.errors import LinkLost, PeenError, WorkerFailed
from peen.wire.launch import LaunchDocument
from peen.wire.worker import (
    CALLS,
    COMMANDS,
    PROTOCOL_VERSION,
    Beat,
    Call,
    Command,
    CommandResult,
    Hello,
    HelloAck,
    Result,
    WireError,
    decode_from_controller,
    decode_from_worker,
    encode,
)
from peen.wire.workerstruct import WorkerStruct

from .framing import FrameStream, FrameTooLong
from .peer import Answer, Peer, decode_payload, wire_error

BEAT_S: Final = 5.0
MAX_OUTSTANDING: Final = 64  # calls of a worker that the controller has not answered
MAX_PARKED: Final = 1024  # calls that wait in the worker for a place among those
HELLO_S: Final = 10.0

Reply = Callable[[bytes | WireError], None]
CallHandler = Callable[[str, Raw, Reply], None]
CommandHandler = Callable[[str, WorkerStruct], Awaitable[WorkerStruct]]

R = TypeVar("R", bound=WorkerStruct)

_METHOD_OF_CALL: Final = {pair[0]: (method, pair[1]) for method, pair in CALLS.items()}
_METHOD_OF_COMMAND: Final = {pair[0]: (method, pair[1]) for method, pair in COMMANDS.items()}
# Only reading may be given up: whether a write took effect must never be a guess.
_READS: Final = frozenset({"history.page", "blobs.fetch", "execution.read", "job.list", "job.read"})


class WorkerLink(Peer):
    """The controller's end.

    Calls of the worker go to `handler` one after the other, in the order they were sent; it answers each one exactly
    once, then or later, through `reply`. That is how order is kept without waiting.
    """

    def __init__(self, frames: FrameStream, handler: CallHandler) -> None:
        super().__init__(frames)
        self.last_beat = trio.current_time()  # of trio's clock, seconds; any frame proves that the worker's loop turns
        self._handler = handler
        self._open: set[int] = set()
        self._last_call = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry the link until it ends, then return with `closed` set."""
        task_status.started()
        await self.pump(self._on_frame)

    @overload
    async def command(self, request: WorkerStruct) -> WorkerStruct: ...
    @overload
    async def command(self, request: WorkerStruct, reply: type[R]) -> R: ...
    async def command(self, request: WorkerStruct, reply: type[WorkerStruct] = WorkerStruct) -> WorkerStruct:
        """Have the worker carry out `request` and return its reply; `reply` only tells the type checker its class.

        Raises: LinkLost when the link ends first; the PeenError that the worker answered with; FrameTooLong.
        Cancelled while waiting: the worker goes on, and its answer is dropped.
        """
        method, kind = _METHOD_OF_COMMAND[type(request)]
        assert issubclass(kind, reply), f"{method} is answered with {kind.__name__}"
        number = self.next_id()
        answer = self.expect(number, kind)
        try:
            self.send(Command(id=number, method=method, payload=Raw(encode(request))))
            return await answer.wait()
        finally:
            self.forget(number)

    def _on_frame(self, data: bytes) -> None:
        self.last_beat = trio.current_time()
        match decode_from_worker(data):
            case Beat():
                pass
            case Call() as call:
                self._on_call(call)
            case CommandResult(id=number, payload=payload, error=error):
                self.settle(number, payload, error)
            case Hello():
                raise LinkLost("the worker said hello twice")

    def _on_call(self, call: Call) -> None:
        if call.id <= self._last_call:
            raise LinkLost(f"the worker numbered a call {call.id} after {self._last_call}")
        self._last_call = call.id
        self._open.add(call.id)
        if len(self._open) > MAX_OUTSTANDING:
            raise LinkLost(f"the worker has more than {MAX_OUTSTANDING} calls open")
        try:
            self._handler(call.method, call.payload, partial(self._reply, call.id))
        except PeenError as error:
            self._reply(call.id, wire_error(error))

    def _reply(self, number: int, outcome: bytes | WireError) -> None:
        if self.closed.is_set():
            return  # a worker that lost its link exits: nobody is left to tell
        self._open.remove(number)
        try:
            self._send_result(number, outcome)
        except FrameTooLong as error:
            self._send_result(number, wire_error(error))
        except LinkLost as lost:
            self.lose(str(lost))

    def _send_result(self, number: int, outcome: bytes | WireError) -> None:
        if isinstance(outcome, bytes):
            self.send(Result(id=number, payload=Raw(outcome)))
        else:
            self.send(Result(id=number, error=outcome))


class ControllerLink(Peer):
    """The worker's end. It is never opened again: a worker that has lost its link ends.

    Commands of the controller are carried out by `handler(method, request)`, each in a task of its own; the reply is
    sent when that task is done, a PeenError as that error.
    """

    def __init__(self, frames: FrameStream, ack: HelloAck, handler: CommandHandler, *, beat_s: float = BEAT_S) -> None:
        super().__init__(frames)
        self.ack = ack
        self._handler = handler
        self._beat_s = beat_s
        self._outstanding = 0
        self._parked: deque[bytes] = deque()
        self._nursery: trio.Nursery | None = None

    async def run(
        self, nursery: trio.Nursery, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry the link until it ends, then return with `closed` set. Commands run as tasks of `nursery`."""
        self._nursery = nursery
        async with trio.open_nursery() as beating:
            beating.start_soon(self._beat)
            task_status.started()
            await self.pump(self._on_frame)
            beating.cancel_scope.cancel()

    @overload
    def call_soon(self, request: WorkerStruct) -> Answer[WorkerStruct]: ...
    @overload
    def call_soon(self, request: WorkerStruct, reply: type[R]) -> Answer[R]: ...
    def call_soon(self, request: WorkerStruct, reply: type[WorkerStruct] = WorkerStruct) -> Answer[WorkerStruct]:
        """Send a call and return at once; `await` the answer when it matters. Calls are carried out in this order.

        At most 64 are under way; up to 1,024 more wait here. Who sends without ever waiting for an answer meets
        RuntimeError. Raises: LinkLost, FrameTooLong.
        """
        method, kind = _METHOD_OF_CALL[type(request)]
        assert issubclass(kind, reply), f"{method} is answered with {kind.__name__}"
        if len(self._parked) >= MAX_PARKED:
            raise RuntimeError(f"{len(self._parked)} calls wait to be sent: wait for answers before calling again")
        number = self.next_id()
        frame = encode(Call(id=number, method=method, payload=Raw(encode(request))))
        answer = self.expect(number, kind)
        if self._outstanding >= MAX_OUTSTANDING:
            self._parked.append(frame)
            return answer
        try:
            self.send_encoded(frame)
        except PeenError:
            self.forget(number)
            raise
        self._outstanding += 1
        return answer

    @overload
    async def call(self, request: WorkerStruct) -> WorkerStruct: ...
    @overload
    async def call(self, request: WorkerStruct, reply: type[R]) -> R: ...
    async def call(self, request: WorkerStruct, reply: type[WorkerStruct] = WorkerStruct) -> WorkerStruct:
        """Send a call and wait for its answer; a writing one cannot be cancelled while it waits.

        The shield has no deadline: the answer or the loss of the link ends it, and no third outcome would be
        knowledge. Raises: LinkLost, FrameTooLong, or the PeenError that the controller answered with.
        """
        answer = self.call_soon(request, reply)
        with trio.CancelScope(shield=_METHOD_OF_CALL[type(request)][0] not in _READS):
            await answer.done.wait()
        return answer.result()

    def _on_frame(self, data: bytes) -> None:
        match decode_from_controller(data):
            case Result(id=number, payload=payload, error=error):
                self._outstanding -= 1
                if self._parked:
                    self._outstanding += 1
                    self.send_encoded(self._parked.popleft())
                self.settle(number, payload, error)
            case Command() as command:
                assert self._nursery is not None
                self._nursery.start_soon(self._obey, command)
            case HelloAck():
                raise LinkLost("the controller acknowledged hello twice")

    async def _obey(self, command: Command) -> None:
        try:
            kinds = COMMANDS.get(command.method)
            if kinds is None:
                raise PeenError(f"there is no command {command.method}")
            try:
                request = decode_payload(kinds[0], command.payload)
            except msgspec.DecodeError as exc:
                raise PeenError(f"{command.method}: {exc}") from exc
            reply = await self._handler(command.method, request)
            result = CommandResult(id=command.id, payload=Raw(encode(reply)))
        except PeenError as error:
            result = CommandResult(id=command.id, error=wire_error(error))
        try:
            self.send(result)
        except LinkLost as lost:
            self.lose(str(lost))

    async def _beat(self) -> None:
        while not self.closed.is_set():
            try:
                self.send(Beat())
            except LinkLost as lost:
                self.lose(str(lost))
                return
            await trio.sleep(self._beat_s)


async def connect(document: LaunchDocument, handler: CommandHandler, *, beat_s: float = BEAT_S) -> ControllerLink:
    """Dial the controller and say hello; the link then waits for `run`.

    Raises: WorkerFailed if the controller cannot be reached, refuses, or does not answer within 10 s.
    """
    with trio.move_on_after(HELLO_S) as limit:
        try:
            frames = FrameStream(await trio.open_unix_socket(document.socket_path))
        except OSError as exc:
            raise WorkerFailed(f"cannot reach the controller at {document.socket_path}: {exc.strerror}") from exc
        try:
            ack = await _greet(frames, document)
        except BaseException:
            with trio.CancelScope(shield=True):  # closing by force never waits
                await frames.close()
            raise
        return ControllerLink(frames, ack, handler, beat_s=beat_s)
    assert limit.cancelled_caught
    raise WorkerFailed(f"the controller did not answer hello within {HELLO_S:.0f} s")


async def _greet(frames: FrameStream, document: LaunchDocument) -> HelloAck:
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        session_id=document.session_id,
        generation_id=document.generation_id,
        credential=document.credential,
        agent_space=document.agent_space,
        pid=os.getpid(),
    )
    try:
        await frames.send(encode(hello))
        answers = await frames.receive()
    except LinkLost as lost:
        raise WorkerFailed(f"the controller closed the link during hello: {lost}") from lost
    frames.unread(answers[1:])  # a command may have come in the same piece
    match decode_from_controller(answers[0]) if answers else None:
        case HelloAck() as ack:
            return ack
        case Result(error=WireError(code=code, message=message)):
            raise WorkerFailed(f"the controller refused this worker ({code}): {message}")
        case _:
            raise WorkerFailed("the controller closed the link during hello")
