"""What one look found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peen.cli.ends import printable

Level = Literal["ok", "warn", "fail"]
"""`warn`: Peen works, but somebody should know. `fail`: something does not work, or a controller will not start."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`about` is what was looked at; `mend` is what the user can do, and there is one unless all is well."""

    level: Level
    about: str
    says: str
    mend: str | None = None

    def line(self) -> str:
        mend = "" if self.mend is None else f"; to mend it: {self.mend}"
        return printable(f"{self.level:<4}  {self.about}: {self.says}{mend}")


def ok(about: str, says: str) -> Finding:
    return Finding("ok", about, says)


def warn(about: str, says: str, *, mend: str) -> Finding:
    return Finding("warn", about, says, mend)


def fail(about: str, says: str, *, mend: str) -> Finding:
    return Finding("fail", about, says, mend)
