"""Whole files in: bounded reads that never block."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.content import SNIFFED_BYTES, sniff
from peen.tool.paths import regular_status_of, require_regular, told_to_the_model

DIRECT_BYTES: Final = 1024 * 1024  # up to here reading is cheaper than handing it to a thread
_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file as it was at one moment."""

    data: bytes
    sha256: str
    status: os.stat_result


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def read_whole(path: Path, *, max_bytes: int) -> FileContent:
    """Read a regular file. Raises: ToolError, `limit exceeded` if it is larger than `max_bytes`."""
    if regular_status_of(path).st_size <= DIRECT_BYTES:
        return read_now(path, max_bytes)
    return await trio.to_thread.run_sync(read_now, path, max_bytes, abandon_on_cancel=True)


def read_head(path: Path, max_bytes: int) -> bytes:
    """The first bytes of a regular file. Raises: ToolError."""
    with told_to_the_model(path), open(os.open(path, _READ_FLAGS), "rb", buffering=0) as file:
        require_regular(os.fstat(file.fileno()), path)
        return file.read(max_bytes)


def read_to_judge(path: Path, max_bytes: int) -> bytes:
    """As much of a regular file as `foreign` has to see: the beginning of text, all of anything else.

    Never more than `max_bytes`. Raises: ToolError.
    """
    head = read_head(path, min(SNIFFED_BYTES + 1, max_bytes))
    return head if len(head) <= SNIFFED_BYTES or sniff(head) == "text" else read_head(path, max_bytes)


def read_now(path: Path, max_bytes: int) -> FileContent:
    """As `read_whole`. Blocks."""
    with told_to_the_model(path), open(os.open(path, _READ_FLAGS), "rb") as file:
        # It may have been exchanged since it was looked at.
        status = os.fstat(file.fileno())
        require_regular(status, path)
        if status.st_size > max_bytes:
            raise too_large(path, status.st_size, max_bytes)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # it grows, or it is one of those files whose size is not known beforehand
        raise too_large(path, len(data), max_bytes)
    return FileContent(data, sha256_hex(data), status)


def too_large(path: Path, size: int, max_bytes: int) -> ToolError:
    return ToolError("limit exceeded", f"{path_text(str(path))} has at least {size} bytes; the limit is {max_bytes}")
