"""The listening socket of one worker generation: lets its worker in, and nobody else."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from peen.errors import LinkLost, WorkerFailed
from peen.wire.worker import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    FromWorker,
    Hello,
    HelloAck,
    Result,
    WireError,
    decode_from_worker,
    encode,
)
from peen.worker.credential import matches
from peen.worker.framing import FrameStream

log = structlog.get_logger(__name__)

MAX_PATH_BYTES: Final = 107  # of a Unix socket's address
MAX_HELLO_BYTES: Final = 64 * 1024  # nobody unknown may make us hold more
MAX_STRANGERS: Final = 16  # connections that are asked for their hello at one time; others wait in the backlog
REFUSAL_S: Final = 1.0
CONFLICT: Final = "CONFLICT"
DENIED: Final = "PERMISSION_DENIED"

_PEERCRED: Final = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True)
class Expected:
    """Who may come in, and what it is told."""

    session_id: str
    generation_id: str
    agent_space: str
    workspace: str
    credential_sha256: bytes


class Door:
    """Owns the socket file from `open` to `close`."""

    def __init__(self, path: Path, expected: Expected, *, hello_s: float) -> None:
        self.path = path
        self._expected = expected
        self._hello_s = hello_s
        self._admitted = False
        self._strangers = trio.CapacityLimiter(MAX_STRANGERS)
        self._listener: trio.SocketListener | None = None

    async def open(self) -> None:
        """Listen at `path`: its directory 0700, the socket 0600, a stale one removed. Raises: WorkerFailed."""
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            raise WorkerFailed(f"{self.path} is longer than the {MAX_PATH_BYTES} bytes of a socket's address")
        try:
            _private_directory(self.path.parent)
            self.path.unlink(missing_ok=True)
            listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
            try:
                await listening.bind(os.fspath(self.path))
                self.path.chmod(0o600)
                listening.listen(MAX_STRANGERS)
            except BaseException:
                listening.close()
                raise
        except OSError as exc:
            raise WorkerFailed(f"cannot listen at {self.path}: {exc.strerror}") from exc
        self._listener = trio.SocketListener(listening)

    async def serve(self, carry: Callable[[FrameStream], Awaitable[None]]) -> None:
        """Answer connections until cancelled; `carry` runs for the one that is admitted, as long as it likes."""
        assert self._listener is not None

        async def meet(stream: trio.SocketStream) -> None:
            frames = await self._meet(stream)
            if frames is not None:
                await carry(frames)

        await trio.serve_listeners(meet, [self._listener])

    def close(self) -> None:
        """Stop listening and remove the socket file and its directory, unless something else is kept there."""
        if self._listener is None:
            return
        self._listener.socket.close()
        try:
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()
        except OSError as exc:
            log.info("a worker's socket directory stays", path=str(self.path.parent), reason=exc.strerror)

    async def _meet(self, stream: trio.SocketStream) -> FrameStream | None:
        """The frames of a connection that showed what it had to, or None; a refused one is told why."""
        frames = FrameStream(stream, max_bytes=MAX_HELLO_BYTES)
        try:
            async with self._strangers:
                refusal = await self._refusal(stream, frames)
            if refusal is None:
                await frames.send(encode(self._welcome()))
                frames.allow(MAX_FRAME_BYTES)
                return frames
            log.warning(
                "a connection to a worker socket was refused",
                session_id=self._expected.session_id, code=refusal.code, reason=refusal.message,
            )  # fmt: skip
            with trio.move_on_after(REFUSAL_S):
                await frames.send(encode(Result(id=0, error=refusal)))
        except LinkLost as lost:
            log.warning(
                "a connection to a worker socket failed", session_id=self._expected.session_id, reason=str(lost)
            )
        return None

    async def _refusal(self, stream: trio.SocketStream, frames: FrameStream) -> WireError | None:
        """Why this connection may not come in. None means that it is the one, and takes the place."""
        _, uid, _ = _PEERCRED.unpack(
            stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        )  # fmt: skip
        if uid != os.geteuid():
            return WireError(code=DENIED, message=f"user {uid} may not connect")
        with trio.move_on_after(self._hello_s) as limit:
            received = await frames.receive()
        if limit.cancelled_caught:
            return WireError(code=DENIED, message=f"no hello within {self._hello_s:g} s")
        if not received:
            raise LinkLost("it was closed before hello")
        hello = _decode(received[0])
        if not isinstance(hello, Hello) or len(received) > 1:
            return WireError(code=DENIED, message="the first frame, and the only one before the answer, is hello")
        problem = self._problem(hello)
        if problem:
            return WireError(code=DENIED, message=problem)
        if self._admitted:
            return WireError(code=CONFLICT, message="the worker of this generation is connected already")
        self._admitted = True
        return None

    def _problem(self, hello: Hello) -> str:
        # The secret first: who does not know it learns nothing about the rest.
        if not matches(hello.credential, self._expected.credential_sha256):
            return "the credential is not this generation's"
        if hello.protocol != PROTOCOL_VERSION:
            return f"protocol {hello.protocol} is spoken; this controller speaks {PROTOCOL_VERSION}"
        if hello.session_id != self._expected.session_id:
            return "this socket belongs to another session"
        if hello.generation_id != self._expected.generation_id:
            return "this generation has ended or never was"
        if hello.agent_space != self._expected.agent_space:
            return "this generation runs in another agent space"
        return ""

    def _welcome(self) -> HelloAck:
        expected = self._expected
        return HelloAck(
            session_id=expected.session_id, workspace=expected.workspace, agent_space=expected.agent_space
        )  # fmt: skip


def _decode(frame: bytes) -> FromWorker | None:
    try:
        return decode_from_worker(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _private_directory(path: Path) -> None:
    """Make `path` a directory of mode 0700 of this user. Raises: OSError, WorkerFailed if it is something else."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise WorkerFailed(f"{path} is not a directory of this user") from None
    path.chmod(0o700)
