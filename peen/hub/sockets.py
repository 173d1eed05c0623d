"""One connected client of `/ws/v1`: its messages go to the backend, the feed's frames go to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from peen.entropy import Entropy
from peen.errors import PeenError, ValidationFailed
from peen.feed.fanout import Fanout
from peen.hub.request import public_error
from peen.hub.stream import HubStream
from peen.wire.client import ClientLimits, FrameRefused, MessageSend, decode_client_frame
from peen.wire.feed import Failed, ack_frame
from peen.wire.websocket import PING, text_frame

log = structlog.get_logger(__name__)

GOING_AWAY = 1001


@dataclass(frozen=True, slots=True)
class HubLimits:
    """Bounds of one connection; times in seconds.

    A socket that lets more than `held_bytes` or `held_frames` wait (what is being sent counts) is dropped: it comes
    back and reads the feed from its last sequence. Nothing is left out in silence. `idle_s` is how long a kept HTTP
    connection may take to send its next head.
    """

    head_bytes: int = 16_384
    head_s: float = 10.0
    held_bytes: int = 8 * 1024 * 1024
    held_frames: int = 50_000
    send_bytes: int = 256 * 1024
    send_s: float = 30.0
    ping_s: float = 30.0
    silent_s: float = 60.0
    close_s: float = 2.0
    linger_s: float = 1.0
    idle_s: float = 60.0


class Replier(Protocol):
    """The socket that a message came from."""

    @property
    def session_filter(self) -> str | None:
        """The only session that this socket hears, or None for all."""

    def reply(self, frame: bytes) -> None:
        """Send one ready WebSocket frame to this socket alone. Never blocks; a socket that is gone ignores it."""


class Backend(Protocol):
    """What accepts messages."""

    async def submit(self, message: MessageSend, origin: Replier) -> None:
        """Take one message, in the order of receipt.

        It returns once the order of this message is settled; the next message of the same socket waits for that.
        A PeenError that it raises is told to `origin` alone as `message.failed`.
        """


class ClientSocket:
    """Serves one client until it closes, falls silent, cannot keep up, or is told to close.

    Owns: what waits to be sent, its place in the fan-out. Borrows: connection and stream, which the listener closes.
    """

    def __init__(
        self,
        connection: WebSocketConnection,
        stream: HubStream,
        *,
        session_filter: str | None,
        backend: Backend,
        fanout: Fanout,
        entropy: Entropy,
        client_limits: ClientLimits,
        limits: HubLimits,
    ) -> None:
        self._connection, self._stream = connection, stream
        self._backend, self._fanout, self._entropy = backend, fanout, entropy
        self._client_limits, self._limits = client_limits, limits
        self.session_filter = session_filter
        self.identity = str(entropy.uuid4())
        """Chosen here; whatever a client calls itself does not count."""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._sending_bytes = self._sending_frames = 0
        self._bell = trio.lowlevel.ParkingLot()  # the writer waits here while there is nothing to send
        self._submitting = False
        self._closing = trio.Event()
        self._flushed = trio.Event()
        self.dropped: str | None = None
        """Why this socket was cut off, or None."""

    @property
    def held_bytes(self) -> int:
        """Bytes that wait or are being sent, without those that the kernel has."""
        return self._waiting_bytes + self._sending_bytes

    # --- what others call -------------------------------------------------------------------------------------------

    def offer(self, frames: Sequence[bytes]) -> None:
        if self.dropped is not None:
            return
        self._waiting.extend(frames)
        self._waiting_bytes += sum(map(len, frames))
        if self.held_bytes > self._limits.held_bytes:
            self._drop(f"more than {self._limits.held_bytes} bytes wait for it")
        elif len(self._waiting) + self._sending_frames > self._limits.held_frames:
            self._drop(f"more than {self._limits.held_frames} frames wait for it")
        elif self._bell:
            self._bell.unpark()

    def reply(self, frame: bytes) -> None:
        self.offer((frame,))

    def close(self) -> None:
        """Send what waits, then close with 1001 (going away). `run` ends within `close_s` seconds."""
        self._closing.set()

    async def run(self) -> None:
        """Serve; returns when the socket is done. The connection is accepted already."""
        self._fanout.add(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._fanout.remove(self)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                text = await self._connection.get_message()  # no deadline here: `_watch` ends a silent connection
            except ConnectionClosed:
                return
            try:
                if isinstance(text, bytes):
                    raise ValidationFailed("frame: must be a text frame; binary frames carry nothing here")
                message = decode_client_frame(text, self._client_limits)
            except ValidationFailed as refusal:
                self._refuse(refusal)
                continue
            await self._submit(message)

    async def _submit(self, message: MessageSend) -> None:
        self._submitting = True
        try:
            await self._backend.submit(message, self)
        except PeenError as error:
            self._refuse(error, frame_id=message.id, session_id=message.session_id)
        finally:
            self._submitting = False
            self._stream.touch()  # nothing was read meanwhile, which is not the client's silence

    def _refuse(self, error: PeenError, *, frame_id: str | None = None, session_id: str | None = None) -> None:
        if isinstance(error, FrameRefused):
            frame_id, session_id = error.frame_id, error.session_id
        _, body = public_error(error)
        payload = ack_frame(
            str(self._entropy.uuid4()),
            Failed(code=body.code, message=body.message),
            self._entropy.now_ms(),
            session_id=session_id,
            triggered_by=frame_id,
        )
        self.reply(text_frame(payload))

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            if not self._waiting:
                if self._closing.is_set():
                    self._flushed.set()
                await self._bell.park()  # no deadline: an idle socket has nothing to send
                continue
            data = self._take()
            try:
                await self._stream.send_ready(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if self._connection.closed is None:
                    self._drop("it does not read, or its connection broke")
                return
            finally:
                self._sending_bytes = self._sending_frames = 0
            if self._waiting:
                await trio.lowlevel.checkpoint()

    def _take(self) -> bytes:
        """The next frames as one piece of at most `send_bytes`, or a single larger frame."""
        if self._waiting_bytes <= self._limits.send_bytes:
            data = b"".join(self._waiting)
            self._sending_frames = len(self._waiting)
            self._waiting.clear()
        else:
            taken = [self._waiting.popleft()]
            size = len(taken[0])
            while self._waiting and size + len(self._waiting[0]) <= self._limits.send_bytes:
                taken.append(self._waiting.popleft())
                size += len(taken[-1])
            data = b"".join(taken)
            self._sending_frames = len(taken)
        self._waiting_bytes -= len(data)
        self._sending_bytes = len(data)
        return data

    def _drop(self, why: str) -> None:
        """Cut the connection off and let go of its memory. Reader and writer end by the exceptions they get."""
        if self.dropped is not None:
            return
        self.dropped = why
        self._waiting.clear()
        self._waiting_bytes = 0
        self._fanout.remove(self)
        self._stream.abort()
        log.warning("client dropped", socket=self.identity, reason=why)

    # --- keeping watch ----------------------------------------------------------------------------------------------

    async def _watch(self, whole: trio.CancelScope) -> None:
        while not self._closing.is_set():
            left_s = self._stream.heard_at + self._limits.silent_s - trio.current_time()
            with trio.move_on_after(max(0.0, min(self._limits.ping_s, left_s))):
                await self._closing.wait()
                break
            if self._submitting:
                self._stream.touch()
            elif trio.current_time() >= self._stream.heard_at + self._limits.silent_s:
                self._drop(f"nothing was heard of it for {self._limits.silent_s:g} s")
                return
            self.offer((PING,))
        with trio.move_on_after(self._limits.close_s):
            self._bell.unpark()
            await self._flushed.wait()
            await self._connection.aclose(GOING_AWAY, "the server is closing")
        whole.cancel()
