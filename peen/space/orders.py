"""What controller and fork server say to each other: 4 bytes of length, then JSON; descriptors ride on the length."""

from __future__ import annotations

import array
import os
import socket
from typing import Final

import msgspec

from peen.worker.framing import HEADER

MAX_ORDER_BYTES: Final = 8 * 1024 * 1024  # an environment may be large; the kernel's own limit for one is 2 MiB
MAX_FDS: Final = 3


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of both directions. Both ends are one release."""


class Spawn(Order, frozen=True, kw_only=True, tag_field="op", tag="spawn"):
    """Start a worker. Comes with three descriptors: its stdin, stdout and stderr.

    `cwd` and `environment` (the complete one) hold bytes as Latin-1 text, since names on Linux need not be UTF-8.
    `entry` is `package.module:function`.
    """

    ref: int
    cwd: str
    environment: dict[str, str]
    entry: str


class Kill(Order, frozen=True, kw_only=True, tag_field="op", tag="kill"):
    """Send `signal` to the worker `pid`, with `tree` also to all that descends from it."""

    pid: int
    signal: int
    tree: bool


class Spawned(Order, frozen=True, kw_only=True, tag_field="op", tag="spawned"):
    ref: int
    pid: int
    start_time: int


class NotSpawned(Order, frozen=True, kw_only=True, tag_field="op", tag="notSpawned"):
    ref: int
    detail: str


class Exited(Order, frozen=True, kw_only=True, tag_field="op", tag="exited"):
    """The worker and all that it left behind are gone. `status` is the exit code, or minus the signal.

    `leftover` names processes that SIGKILL did not end in time (they hang in the kernel), and those of other accounts.
    """

    pid: int
    status: int
    leftover: list[int] = []


decode_order: Final = msgspec.json.Decoder(Spawn | Kill).decode
decode_report: Final = msgspec.json.Decoder(Spawned | NotSpawned | Exited).decode


def pack(order: Order) -> bytes:
    """`order` with its length in front."""
    body = msgspec.json.encode(order)
    return HEADER.pack(len(body)) + body


def send(channel: socket.socket, data: bytes, fds: tuple[int, ...] = ()) -> None:
    """Send packed `data`, with `fds` on its first byte; blocks. Raises: OSError if the other end is gone."""
    sent = socket.send_fds(channel, [data], fds) if fds else 0
    if sent < len(data):  # sending nothing fails too, once a receiver that has it all has closed
        channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[bytes, tuple[int, ...]] | None:
    """The next body and its descriptors (close-on-exec), or None when the other end is gone; blocks."""
    header, fds = b"", array.array("i")
    try:
        while len(header) < HEADER.size:
            room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
            data, ancillary, _, _ = channel.recvmsg(HEADER.size - len(header), room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            if not data:
                raise EOFError
            header += data
        (size,) = HEADER.unpack(header)
        if size > MAX_ORDER_BYTES:
            raise EOFError
        body = bytearray()
        while len(body) < size:
            data = channel.recv(min(size - len(body), 1024 * 1024))
            if not data:
                raise EOFError
            body += data
    except (EOFError, OSError):
        for fd in fds:
            os.close(fd)
        return None
    return bytes(body), tuple(fds)
