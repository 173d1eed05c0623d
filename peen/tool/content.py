"""What kind of bytes a file holds, and how its lines end."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from typing import Final, Literal

SNIFFED_BYTES: Final = 8000
"""A file is judged by its beginning: one that starts as UTF-8 text is taken for text."""

Sniffed = Literal["text", "binary", "other encoding"]

_BOMS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_HIGH_RUN: Final = re.compile(rb"[\x80-\xff]+")
_LINE_END: Final = re.compile(rb"\r\n|\n")


def sniff(data: bytes) -> Sniffed:
    """Judge the first 8000 bytes: NUL means binary; a character cut by the end of that part is no fault."""
    head = data[:SNIFFED_BYTES]
    if b"\0" in head:
        return "binary"
    return "other encoding" if invalid_utf8_at(head, final=len(data) <= SNIFFED_BYTES) is not None else "text"


def invalid_utf8_at(data: bytes, *, final: bool = True) -> int | None:
    """Offset of the first byte that is not UTF-8, or None. Unless `final`, an incomplete last character is fine."""
    try:
        codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as exc:
        return exc.start
    return None


def encoding_guess(data: bytes) -> str:
    """A careful name for what is not UTF-8, to be shown to a model."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return name
    sample = data[: 64 * 1024]
    runs = [len(run) for run in _HIGH_RUN.findall(sample)]
    paired = sum(length for length in runs if length > 1)
    if runs and paired >= 0.8 * sum(runs):
        try:
            codecs.getincrementaldecoder("gb18030")("strict").decode(sample, final=len(sample) == len(data))
        except UnicodeDecodeError:
            pass
        else:
            return "GBK or another double-byte encoding"
    return "Latin-1 or another single-byte encoding"


def uses_bare_cr(data: bytes) -> bool:
    """Whether the lines of this file end with a lone carriage return: it has some, and no line feed at all."""
    return b"\n" not in data and b"\r" in data


def line_ends(data: bytes) -> list[bytes]:
    """Each line end of `data`, which is part of a file with line feeds."""
    return _LINE_END.findall(data)


def most_common(ends: list[bytes]) -> bytes:
    """The most frequent line end; of equals, the first."""
    return Counter(ends).most_common(1)[0][0]
