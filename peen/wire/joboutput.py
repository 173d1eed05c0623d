"""What a job prints, in numbered pieces: a line each, or a part of a long one. Many of them share a chunk."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from peen.errors import ValidationFailed
from peen.wire.workerstruct import WorkerStruct

MAX_CHUNK_BYTES: Final = 65_536
MAX_CHUNK_PIECES: Final = 8_192
MAX_PIECE_BYTES: Final = 8_192
"""A longer line comes in pieces; all but the last say that it goes on."""
STDOUT: Final = 0
STDERR: Final = 1


class Piece(NamedTuple):
    """`data` ends with the line end, unless the line goes on in the next piece of its stream or is never finished."""

    stream: int
    goes_on: bool
    data: bytes


class NumberedPiece(NamedTuple):
    sequence: int
    stream: int
    goes_on: bool
    data: bytes


class OutputChunk(WorkerStruct, frozen=True, kw_only=True):
    """Pieces one after the other. `first` is the number of the first, counted from 1 over both streams.

    `index` has four bytes a piece, little endian: length << 2 | goes on << 1 | stream.
    """

    first: int
    index: bytes
    data: bytes

    @property
    def count(self) -> int:
        return len(self.index) // 4


def chunk_of(first: int, pieces: Sequence[Piece]) -> OutputChunk:
    """The pieces as one chunk; they keep within its limits."""
    index = struct.pack(
        f"<{len(pieces)}I", *(len(piece.data) << 2 | piece.goes_on << 1 | piece.stream for piece in pieces)
    )
    return OutputChunk(first=first, index=index, data=b"".join([piece.data for piece in pieces]))


def pieces_of(first: int, index: bytes, data: bytes, *, after: int = 0) -> Iterator[NumberedPiece]:
    """The pieces of a stored chunk whose number is larger than `after`."""
    at = 0
    for position, (word,) in enumerate(struct.iter_unpack("<I", index)):
        length = word >> 2
        if first + position > after:
            yield NumberedPiece(first + position, word & 1, bool(word & 2), data[at : at + length])
        at += length


def streams_of(chunk: OutputChunk) -> int:
    """1 if it has pieces of stdout, plus 2 if it has some of stderr. Raises: ValidationFailed for a malformed one."""
    if len(chunk.index) % 4 or not 0 < chunk.count <= MAX_CHUNK_PIECES or len(chunk.data) > MAX_CHUNK_BYTES:
        raise ValidationFailed("an output chunk is larger than it may be, or empty")
    words = struct.unpack(f"<{chunk.count}I", chunk.index)
    if sum(word >> 2 for word in words) != len(chunk.data):
        raise ValidationFailed("the index of an output chunk does not fit its data")
    return sum({1 << (word & 1) for word in words})
