"""Whether the bytes of an image are all there: its parts are walked over, and nothing is decompressed.

Each function gets a file that begins as its format does, and tells what is wrong with it; None if nothing was found.
They are made to catch what a broken download, a half-written file or a wrong name leave behind, and let pass what
viewers let pass: bytes behind the end, unknown parts, animations, odd encoders. Any bytes give an answer, after at most
`MOST_PARTS` steps; what has more parts is given the benefit of the doubt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MOST_PARTS: Final = 100_000
"""A GIF of 5 MiB has some 20,000 parts, and that is the format with the smallest ones."""

NO_SIZE: Final = "its width or height is 0"
_PNG_HEAD: Final = 8
_PNG_DEPTHS: Final = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a sample, by the type of colour."""
_PNG_NAME: Final = re.compile(rb"[A-Za-z]{4}")
_JPEG_MARKER: Final = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
"""Not the ones that are part of compressed data: a byte 0xff in it, and restarts."""
_JPEG_ALONE: Final = (0x01, 0xD8)
"""Markers without content."""
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END_OF_JPEG = 0xDA, 0xD9
_GIF_END, _GIF_EXTENSION, _GIF_IMAGE = 0x3B, 0x21, 0x2C
_WEBP_HEAD: Final = 12


def png_fault(data: bytes) -> str | None:
    """Chunks up to the last one, the header first, and pixels among them."""
    at, has_pixels = _PNG_HEAD, False
    for part in range(MOST_PARTS):
        size, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if len(name) < 4:
            return _cut("it ends without its last chunk (IEND)") if part else _cut("nothing follows its signature")
        if not _PNG_NAME.fullmatch(name) or (part == 0 and name != b"IHDR"):
            return (
                f"what stands at byte {at} is no chunk of a PNG" if part else "no header (IHDR) follows its signature"
            )
        end = at + 12 + size
        if end > len(data):
            return _cut(f"its chunk {name.decode()} has {size} bytes, and the file ends before")
        if part == 0 and (fault := _png_header_fault(data[at + 8 : end - 4])):
            return fault
        has_pixels |= name == b"IDAT" and size > 0
        if name == b"IEND":
            return None if has_pixels else "it has no pixels (IDAT)"
        at = end
    return None


def _png_header_fault(header: bytes) -> str | None:
    width, height = header[:4], header[4:8]
    if len(header) != 13 or header[8] not in _PNG_DEPTHS.get(header[9], ()):
        return "its header (IHDR) is none of a PNG"
    return None if any(width) and any(height) else NO_SIZE


def jpeg_fault(data: bytes) -> str | None:
    """Segments up to the end of the image, with its size and at least one scan."""
    at, has_size, has_scan = 2, False, False
    for _ in range(MOST_PARTS):
        found = _JPEG_MARKER.search(data, at)
        if found is None:
            return _cut("it ends without its last marker (EOI)") if has_scan else _cut("it ends in front of its pixels")
        marker, at = found[1][0], found.end()
        if marker == _END_OF_JPEG:
            return None if has_scan else "it has no pixels (SOS)"
        if marker in _JPEG_ALONE:
            continue
        if at + 2 > len(data):
            return _cut(f"it ends inside its segment at byte {found.start()}")
        size = int.from_bytes(data[at : at + 2], "big")
        if at + size > len(data):
            return _cut(f"its segment at byte {found.start()} has {size} bytes, and the file ends before")
        if size < 2:
            return f"what stands at byte {found.start()} is no segment of a JPEG"
        if marker in _JPEG_FRAMES:
            if not (size >= 8 and any(data[at + 3 : at + 5]) and any(data[at + 5 : at + 7])):
                return NO_SIZE
            has_size = True
        elif marker == _START_OF_SCAN:
            if not has_size:
                return "nothing in front of its pixels tells its size (SOF)"
            has_scan = True
        at += size
    return None


def gif_fault(data: bytes) -> str | None:
    """Blocks up to the trailer, with at least one image."""
    if len(data) < 13:
        return _cut("it ends in its header")
    if not (any(data[6:8]) and any(data[8:10])):
        return NO_SIZE
    at, has_image = 13 + _gif_colours(data[10]), False
    steps = iter(range(MOST_PARTS))
    for _ in steps:
        if at >= len(data):
            return _cut("it ends without its trailer")
        kind = data[at]
        if kind == _GIF_END:
            return None if has_image else "it has no image behind its header"
        if kind == _GIF_EXTENSION:
            at += 2
        elif kind == _GIF_IMAGE:
            if at + 10 > len(data):
                return _cut("it ends in the header of an image")
            at += 11 + _gif_colours(data[at + 9])  # the byte more is how its pixels are packed
            has_image = True
        elif kind == 0:  # some programs write one more end of a block
            at += 1
            continue
        else:
            return f"what stands at byte {at} is no block of a GIF"
        at = _after_blocks(data, at, steps)
    return None


def _gif_colours(packed: int) -> int:
    """Bytes of the table of colours that these flags announce."""
    return 3 << ((packed & 7) + 1) if packed & 0x80 else 0


def _after_blocks(data: bytes, at: int, steps: Iterator[int]) -> int:
    """Behind a row of blocks, each of which begins with its size, and the empty one at its end."""
    for _ in steps:
        if at >= len(data):
            break
        size = data[at]
        at += 1 + size
        if size == 0:
            break
    return at


def webp_fault(data: bytes) -> str | None:
    """Chunks as long as the file says, with at least one image; in front an image or the header of an extended file."""
    whole = 8 + int.from_bytes(data[4:8], "little")
    if whole > len(data) + 1:  # some programs count a byte of padding that they do not write
        return _cut(f"it says that it has {whole} bytes, and it has {len(data)}")
    at, has_image = _WEBP_HEAD, False
    for part in range(MOST_PARTS):
        if at + 8 > whole:
            break
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if part == 0 and name not in (b"VP8 ", b"VP8L", b"VP8X"):
            return "no image follows its signature"
        if at + 8 + size > min(whole, len(data)):
            return _cut(f"a chunk at byte {at} has {size} bytes, and the file ends before")
        if fault := _webp_chunk_fault(name, data[at + 8 : at + 8 + min(size, 16)]):
            return fault
        has_image |= name in (b"VP8 ", b"VP8L", b"ANMF")
        at += 8 + size + (size & 1)
    else:
        return None
    return None if has_image else "no image follows its signature" if at == _WEBP_HEAD else "it has no image"


def _webp_chunk_fault(name: bytes, head: bytes) -> str | None:
    """`head` are the first bytes of the chunk."""
    if name == b"VP8 ":
        if head[3:6] != b"\x9d\x01\x2a" or len(head) < 10:
            return "its image (VP8) has no header"
        width, height = (int.from_bytes(head[i : i + 2], "little") & 0x3FFF for i in (6, 8))
        return None if width and height else NO_SIZE
    if name == b"VP8L" and (len(head) < 5 or head[0] != 0x2F):  # it has a size whatever it says
        return "its image (VP8L) has no header"
    if name == b"VP8X" and len(head) < 10:
        return "its header (VP8X) is too short"
    return None


def _cut(how: str) -> str:
    return f"it is cut off: {how}"
