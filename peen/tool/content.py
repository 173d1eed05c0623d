"""What kind of bytes a file holds, and how its lines end."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

from peen.wire.image import image_fault, media_type_of

SNIFFED_BYTES: Final = 8000
"""A file is judged by its beginning: one that starts as UTF-8 text is taken for text, whatever comes behind that."""

Sniffed = Literal["text", "binary", "other encoding"]

_BOMS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_HIGH_RUN: Final = re.compile(rb"[\x80-\xff]+")
_LINE_END: Final = re.compile(rb"\r\n|\n")


@dataclass(frozen=True, slots=True)
class Foreign:
    """Why a file is no text that the tools show or change: a predicate, and the commands that can do either."""

    what: str
    shown_by: str
    changed_by: str
    is_image: bool = False


def sniff(data: bytes) -> Sniffed:
    """Judge the first 8000 bytes: NUL or the mark of a wide encoding means binary.

    A character cut by the end of that part is no fault. What does not begin as UTF-8 is binary also if NUL comes later:
    wide text without a line end, for example, in which the bytes of an ASCII character may be halves of other ones.
    """
    head = data[:SNIFFED_BYTES]
    if b"\0" in head or _wide_encoding(data) is not None:
        return "binary"
    if invalid_utf8_at(head, final=len(data) <= SNIFFED_BYTES) is None:
        return "text"
    return "binary" if b"\0" in data else "other encoding"


def foreign(data: bytes) -> Foreign | None:
    """What stands in the way of taking these bytes for text in an encoding that holds ASCII; None if nothing does."""
    kind = sniff(data)
    if kind == "text":
        return None
    media_type = media_type_of(data)
    if media_type is not None:
        if image_fault(data, media_type) is not None:  # cut off, or something else altogether
            return Foreign(f"begins like an image ({media_type})", "file, identify, xxd", "convert, xxd")
        return Foreign(f"is an image ({media_type})", "file, identify, exiftool", "convert", is_image=True)
    if kind == "other encoding":
        return None
    wide = _wide_encoding(data)
    if wide is not None:
        to_text = f"iconv -f {wide} -t UTF-8"
        return Foreign(f"looks like {wide} text", to_text, f"{to_text}, change the copy, and iconv it back")
    return Foreign("holds NUL bytes", "file, xxd, iconv", "iconv, xxd, perl, python3")


def invalid_utf8_at(data: bytes, *, final: bool = True) -> int | None:
    """Offset of the first byte that is not UTF-8, or None. Unless `final`, an incomplete last character is fine."""
    try:
        codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as exc:
        return exc.start
    return None


def encoding_guess(data: bytes) -> str:
    """A careful name for what is not UTF-8, to be shown to a model."""
    wide = _wide_encoding(data)
    if wide is not None:
        return wide
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


def _wide_encoding(data: bytes) -> str | None:
    """The encoding that a byte order mark at the beginning names, if its characters are wider than a byte."""
    return next((name for mark, name in _BOMS if data.startswith(mark)), None)


def uses_bare_cr(data: bytes) -> bool:
    """Whether the lines of this file end with a lone carriage return: it has some, and no line feed at all."""
    return b"\n" not in data and b"\r" in data


def line_ends(data: bytes) -> list[bytes]:
    """Each line end of `data`, which is part of a file with line feeds."""
    return _LINE_END.findall(data)


def most_common(ends: list[bytes]) -> bytes:
    """The most frequent line end; of equals, the first."""
    return Counter(ends).most_common(1)[0][0]
