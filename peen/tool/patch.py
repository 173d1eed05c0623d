"""The text of a patch: which files it adds, deletes and updates, and the hunks of the updates.

Only the text is looked at here; `hunks` finds the places in a file, `apply_patch` does the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from peen.tool.base import ToolError
from peen.tool.nearest import shown_line

MAX_FILES: Final = 64
MAX_HUNKS: Final = 256

BEGIN: Final = "*** Begin Patch"
END: Final = "*** End Patch"
_ADD: Final = "*** Add File:"
_DELETE: Final = "*** Delete File:"
_UPDATE: Final = "*** Update File:"
_MOVE: Final = "*** Move to:"
_END_OF_FILE: Final = "*** End of File"
_ACTIONS: Final = (_ADD, _DELETE, _UPDATE)
_OTHER_FORMAT: Final = re.compile(r"diff |--- |\+\+\+ |Index: |@@ ")

Mark = Literal[" ", "-", "+"]


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines to be found and changed. `anchor` is a line somewhere before them; `at_end` ties them to the file's end.

    `line` is the number of its first line in the patch, for messages.
    """

    anchor: str | None
    lines: tuple[tuple[Mark, str], ...]
    at_end: bool
    line: int

    @property
    def old(self) -> list[str]:
        """What the file must have: context and what is taken out."""
        return [text for mark, text in self.lines if mark != "+"]


@dataclass(frozen=True, slots=True)
class AddFile:
    path: str
    content: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    path: str


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """There are hunks, or a new path, or both."""

    path: str
    move_to: str | None
    hunks: tuple[Hunk, ...]


Action = AddFile | DeleteFile | UpdateFile


def parse_patch(text: str) -> list[Action]:
    """The actions of a patch in their order; at least one. Raises: ToolError, `invalid patch` or `limit exceeded`."""
    if "\0" in text:
        raise ToolError("invalid patch", "it holds a NUL character")
    return _Parser(text.replace("\r\n", "\n")).actions()


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._at = 0
        self._hunks = 0

    def actions(self) -> list[Action]:
        self._frame()
        actions: list[Action] = []
        while (line := self._next()) is not None:
            if line.startswith(_ADD):
                actions.append(AddFile(self._path(line, _ADD), self._added()))
            elif line.startswith(_DELETE):
                actions.append(DeleteFile(self._path(line, _DELETE)))
            elif line.startswith(_UPDATE):
                actions.append(self._update(self._path(line, _UPDATE)))
            elif line.strip():
                self._refuse(f"{shown_line(line.encode())} begins no action; " + self._expected(actions))
            if len(actions) > MAX_FILES:
                raise ToolError("limit exceeded", f"a patch may change {MAX_FILES} files; split it up")
        if not actions:
            raise ToolError("invalid patch", "it changes no file")
        return actions

    def _frame(self) -> None:
        """Check and take off the first and the last line."""
        lines = self._lines
        while lines and not lines[-1].strip():
            lines.pop()
        while self._at < len(lines) and not lines[self._at].strip():
            self._at += 1
        first = self._next()
        if first is None or first.rstrip() != BEGIN:
            hint = "; a unified diff is not understood" if first and _OTHER_FORMAT.match(first) else ""
            raise ToolError("invalid patch", f'its first line must be "{BEGIN}"{hint}')
        if lines.pop().rstrip() != END:
            raise ToolError("invalid patch", f'its last line must be "{END}"; was it cut off?')

    def _next(self) -> str | None:
        if self._at == len(self._lines):
            return None
        self._at += 1
        return self._lines[self._at - 1]

    def _peek(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _path(self, line: str, header: str) -> str:
        path = line.removeprefix(header).strip()
        if not path:
            self._refuse(f'"{header}" names no path')
        return path

    def _added(self) -> str:
        content: list[str] = []
        while not self._at_action():
            line = self._next() or ""
            if not line.startswith("+"):
                self._refuse(f'every line of an added file begins with "+", not {shown_line(line.encode())}')
            content.append(line[1:] + "\n")
        return "".join(content)

    def _update(self, path: str) -> UpdateFile:
        move_to: str | None = None
        begins_at = self._at
        if (self._peek() or "").startswith(_MOVE):
            move_to = self._path(self._next() or "", _MOVE)
        hunks: list[Hunk] = []
        while not self._at_action():
            hunk = self._hunk()
            if hunk is not None:
                hunks.append(hunk)
        if not hunks and move_to is None:
            self._refuse("an update without a move needs hunks", begins_at)
        return UpdateFile(path, move_to, tuple(hunks))

    def _hunk(self) -> Hunk | None:
        """The next hunk, or None for a bare `@@` with nothing behind it."""
        head, begins_at = (self._next() or "").rstrip(), self._at
        if head != "@@" and not head.startswith("@@ "):
            self._refuse(f'a hunk begins with "@@", not with {shown_line(head.encode())}')
        lines: list[tuple[Mark, str]] = []
        at_end = False
        while not at_end and not self._at_action() and not (self._peek() or "").startswith("@@"):
            line = self._next() or ""
            if line.rstrip() == _END_OF_FILE:
                at_end = True
            elif line.startswith("*** "):
                self._refuse(f"{shown_line(line.encode())} is unknown; begin a line of the file with a space")
            else:
                lines.append(_marked(line))
        if not lines and head == "@@" and not at_end and self._at_action():
            return None
        if all(mark == " " for mark, _ in lines):
            self._refuse('the hunk changes nothing; it needs lines with "-" or "+"', begins_at)
        self._hunks += 1
        if self._hunks > MAX_HUNKS:
            raise ToolError("limit exceeded", f"a patch may have {MAX_HUNKS} hunks; split it up")
        anchor = head.removeprefix("@@").removeprefix(" ")
        return Hunk(anchor or None, tuple(lines), at_end, begins_at)

    def _at_action(self) -> bool:
        """Whether the next line begins an action or there is none. Empty lines before that belong to nothing."""
        for line in self._lines[self._at :]:
            if line:
                return line.startswith(_ACTIONS)
        return True

    def _expected(self, actions: list[Action]) -> str:
        if actions and isinstance(actions[-1], DeleteFile):
            return '"*** Delete File" has no lines'
        return f'expected "{_ADD} PATH", "{_DELETE} PATH" or "{_UPDATE} PATH"'

    def _refuse(self, what: str, number: int | None = None) -> NoReturn:
        raise ToolError("invalid patch", f"line {number or self._at} of the patch: {what}")


def _marked(line: str) -> tuple[Mark, str]:
    match line[:1]:
        case " " | "-" | "+" as mark:
            return mark, line[1:]
        case _:  # what has no mark is taken for context
            return " ", line
