"""Standard output as bytes, and what a terminal can show."""

from __future__ import annotations

import errno
import os
import select
import sys
import unicodedata
from collections.abc import Callable
from typing import Final, TextIO

import click

from peen.cli.ends import printable

Write = Callable[[bytes], None]
"""Writes all of its argument or raises OSError."""

_DEFAULT_COLUMNS: Final = 80


class OutputFailed(Exception):
    """Standard output (`fd` 1) or standard error (2) takes no more: nobody reads it any more, or a disk is full."""

    def __init__(self, failure: OSError, fd: int = 1) -> None:
        super().__init__(f"standard {'output' if fd == 1 else 'error'}: {failure.strerror}")
        self.fd, self.is_unread = fd, failure.errno == errno.EPIPE

    def silence(self) -> None:
        """What Python still holds of it goes nowhere: else the flush at exit fails once more, with words of its own."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fd)
        os.close(null)


def echo(text: str | bytes, *, nl: bool = True) -> None:
    """Print on standard output, at once. Every command that prints does so here or by `put`. Raises: OutputFailed."""
    try:
        click.echo(text, nl=nl)
    except OSError as failure:
        raise OutputFailed(failure) from failure


def put(out: bytes, err: bytes) -> None:
    """Write on both streams, byte for byte and at once. Raises: OutputFailed."""
    for fd, stream, data in ((1, sys.stdout, out), (2, sys.stderr, err)):
        if stream is None or not data:
            continue
        try:
            stream.buffer.write(data)
            stream.flush()
        except OSError as failure:
            raise OutputFailed(failure, fd) from failure


def is_unread(fd: int) -> bool:
    """It is a pipe, or a socket, whose other end is closed."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(found & select.POLLERR for _, found in poll.poll(0))


def stdout_writer() -> Write | None:
    """Standard output without Python's buffer, whose lock could be held by a blocked thread when the process ends."""
    if sys.stdout is None:
        return None
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream without a descriptor
        stream = sys.stdout.buffer

        def to_stream(data: bytes) -> None:
            stream.write(data)
            stream.flush()

        return to_stream
    return lambda data: _write_all(fd, data)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # a pipe that its other end made non-blocking
            select.select([], [fd], [])


def for_terminal(text: str) -> str:
    """Without what would move the cursor, recolour, or retitle the window."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def columns_of(stream: TextIO | None) -> int:
    try:
        columns = 0 if stream is None else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or _DEFAULT_COLUMNS  # a terminal that was never told its size says 0


def fit(text: str, columns: int) -> str:
    """The longest beginning of `text` that takes at most `columns` columns."""
    used = 0
    for index, character in enumerate(text):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > columns:
            return text[:index]
    return text
