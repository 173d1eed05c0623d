"""readFile: a window of lines, or an image to look at, and the proof that the file was read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolImage, ToolResult, WithImage
from peen.tool.bounds import fit_head, json_bytes, path_text, readable
from peen.tool.content import SNIFFED_BYTES, encoding_guess, foreign, invalid_utf8_at, sniff, uses_bare_cr
from peen.tool.filesystem import FileContent, read_whole
from peen.tool.outline import Outline
from peen.tool.paths import ledger_key, real_path, regular_status_of, resolve_path
from peen.wire.image import MediaType, image_fault, media_type_of

_NOTE_BYTES = 200  # room for a note about a line that was cut


class ReadFileArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="File to read: absolute, relative to the current directory, or ~/...")]
    offset: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="First line to return, counted from 1. Default 1.")
    ] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Lines to return, at most 2000. Default 2000.")
    ] = None


class ReadFileResult(ToolResult, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    content: str
    first_line: int
    last_line: int
    total_lines: int
    next_offset: int
    truncated: bool
    sha256: str
    note: str = ""


class ReadImageResult(ToolResult, frozen=True, kw_only=True):
    path: str
    media_type: str
    size_bytes: int
    sha256: str
    note: str


@dataclass(frozen=True, slots=True)
class Window:
    """Lines `first` to `last` of a text, 1-based; `last` is `first` - 1 when empty.

    `cut` is the number of bytes left out of the line, where the window is one line that did not fit.
    """

    text: str
    first: int
    last: int
    total: int
    cut: int = 0

    @property
    def next_offset(self) -> int:
        return self.last + 1 if self.last < self.total else 0


class ReadFile(Tool[ReadFileArguments]):
    name = "readFile"
    description = (
        "Read a UTF-8 text file, or look at an image (PNG, JPEG, GIF, WebP), which is shown after this round of calls. "
        "Of a text, returns up to 2000 lines from `offset`; nextOffset is where to go on, 0 at the end. "
        "The content is exactly that of the file, without line numbers. "
        "A file must be read before writeFile or editFile may change it, and again if something else changed it."
    )
    arguments = ReadFileArguments
    repeatable = True

    async def run(self, arguments: ReadFileArguments, context: ToolContext) -> ReadFileResult | WithImage:
        path = resolve_path(arguments.path, context)
        real = real_path(path)
        size = regular_status_of(real).st_size
        # What may be changed may be hashed, even if it is more than can be shown.
        most = max(context.settings.max_write_bytes, context.settings.max_image_bytes)
        if size > most:
            raise _too_large(path, size, context, then="")
        file = await read_whole(real, max_bytes=most)
        media_type = media_type_of(file.data)
        if media_type is not None and sniff(file.data) != "text":
            return _image(file, media_type, path, real, context)
        if len(file.data) > context.settings.max_write_bytes:
            raise _too_large(path, len(file.data), context, then="")
        _require_readable(file, path, real, context)
        result = ReadFileResult(
            path=path_text(str(path)),
            content="",
            first_line=0,
            last_line=0,
            total_lines=0,
            next_offset=0,
            truncated=True,
            sha256=file.sha256,
        )
        limit = min(arguments.limit or context.settings.max_read_lines, context.settings.max_read_lines)
        room = context.max_result_bytes - len(msgspec.json.encode(result)) - _NOTE_BYTES
        window = window_of(file.data, arguments.offset or 1, limit, room)
        context.ledger.saw_content(ledger_key(real), file.sha256, Outline.of(file.data))
        return msgspec.structs.replace(
            result,
            content=window.text,
            first_line=window.first,
            last_line=window.last,
            total_lines=window.total,
            next_offset=window.next_offset,
            truncated=bool(window.next_offset or window.cut),
            note=_note(window, file.data),
        )


def _image(file: FileContent, media_type: MediaType, path: Path, real: Path, context: ToolContext) -> WithImage:
    """An image to be shown. Raises: ToolError where the model cannot see it, or it is too large or broken."""
    shown, size = path_text(str(path)), len(file.data)
    if not context.image_input:
        raise ToolError(
            "binary",
            f"{shown} is an image ({media_type}), and this model takes no images; "
            "learn about it with runCommand (file, identify, exiftool)",
        )
    limit = context.settings.max_image_bytes
    if size > limit:
        raise ToolError(
            "limit exceeded",
            f"{shown} has {size} bytes, an image may have {limit} (PEEN_MAX_IMAGE_BYTES); "
            "make a smaller copy with runCommand (convert -resize) and read that",
        )
    if fault := image_fault(file.data, media_type):
        raise ToolError(
            "binary",
            f"{shown} begins like an image ({media_type}) and is broken: {fault}. It cannot be shown; "
            "get the whole file, make it again, or look into it with runCommand (file, xxd)",
        )
    context.ledger.saw_content(ledger_key(real), file.sha256)
    result = ReadImageResult(
        path=shown,
        media_type=media_type,
        size_bytes=size,
        sha256=file.sha256,
        note="the image follows as a message of its own when all calls of this round have returned",
    )
    return WithImage(result, ToolImage(shown, file.data))


def window_of(data: bytes, offset: int, limit: int, max_bytes: int) -> Window:
    """Up to `limit` lines from line `offset` on, as many as take at most `max_bytes` in JSON.

    A window that does not reach the end has no final line end. A line that does not fit by itself is cut.
    """
    end = "\r" if uses_bare_cr(data) else "\n"
    lines = readable(data).split(end)
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    total = len(lines)
    chosen = lines[offset - 1 : offset - 1 + limit]
    if not chosen:
        return Window("", offset, offset - 1, total)
    text, cut = end.join(chosen), 0
    if json_bytes(text) > max_bytes:
        chosen = chosen[: _how_many_fit(chosen, max_bytes)] or chosen[:1]
        text = end.join(chosen)
        whole, text = text, fit_head(text, max_bytes)
        cut = len(whole.encode()) - len(text.encode())
    last = offset - 1 + len(chosen)
    if last == total and ended and not cut:
        text += end
    elif last < total:
        text = text.removesuffix("\r")
    return Window(text, offset, last, total, cut)


def _how_many_fit(lines: list[str], max_bytes: int) -> int:
    left = max_bytes
    for count, line in enumerate(lines):
        left -= json_bytes(line) + 2  # a line end takes two bytes in JSON
        if left < 0:
            return count
    return len(lines)


def _require_readable(file: FileContent, path: Path, real: Path, context: ToolContext) -> None:
    """Refuse what cannot be shown. A file that a command can show is noted in the ledger all the same.

    That is safe: what the model sees of it afterwards is either this content, or the next change is refused as stale.
    """
    shown = path_text(str(path))
    found = foreign(file.data)
    if found is not None:
        raise ToolError("binary", f"{shown} {found.what}; inspect it with runCommand ({found.shown_by})")
    if len(file.data) > context.settings.max_read_bytes:
        context.ledger.saw_content(ledger_key(real), file.sha256, Outline.of(file.data))
        raise _too_large(path, len(file.data), context, then="; then editFile may change it")
    if sniff(file.data) == "other encoding":
        context.ledger.saw_content(ledger_key(real), file.sha256, Outline.of(file.data))
        at = invalid_utf8_at(file.data[:SNIFFED_BYTES]) or 0
        raise ToolError(
            "binary",
            f"{shown} is not UTF-8: byte {file.data[at]:#04x} at offset {at}; it looks like "
            f"{encoding_guess(file.data)}. Print it with runCommand (iconv -f ENCODING -t UTF-8); "
            "then editFile may change parts that are plain ASCII",
        )


def _too_large(path: Path, size: int, context: ToolContext, *, then: str) -> ToolError:
    return ToolError(
        "limit exceeded",
        f"{path_text(str(path))} has {size} bytes, readFile takes at most {context.settings.max_read_bytes}. "
        f"Find the place with searchText or print a part with runCommand (sed -n '1,200p'){then}",
    )


def _note(window: Window, data: bytes) -> str:
    if window.cut:
        return (
            f"line {window.last} is too long and was cut: {window.cut} bytes of it are left out; "
            "print other parts with runCommand (cut -c)"
        )
    if invalid_utf8_at(data) is not None:
        return "some bytes are not UTF-8 and are shown as U+FFFD"
    return ""
