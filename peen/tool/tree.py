"""Which processes belong to a command: found in /proc, by descent, session and an environment mark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

MARK_VARIABLE: Final = "_PEEN_CALL"
"""Every process of a command inherits this variable with a value of its own, wherever it may have moved to."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One line of the process table. `start` (clock ticks since boot) tells a process from a later one of that pid."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    start: int

    @property
    def dead(self) -> bool:
        return self.state in "ZX"


def read_row(pid: int) -> ProcessRow | None:
    """The process, dead or alive, or None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024).decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may itself hold any character.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return ProcessRow(pid, name, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def read_table() -> dict[int, ProcessRow]:
    """All processes by pid."""
    rows = (read_row(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def children_of(pid: int | Literal["self"]) -> Iterator[int]:
    """Pids of the children of a process. Empty where the kernel does not list them, or where it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                yield from map(int, file.read(65536).split())
        except OSError:
            continue


def descendants_of(pid: int) -> Iterator[int]:
    """Pids of a process and of all that descends from it without a gap."""
    waiting = [pid]
    while waiting:
        yield (parent := waiting.pop())
        waiting += children_of(parent)


def carries_mark(pid: int, mark: str) -> bool:
    """Whether the process was started with `mark` in its environment. A dead one carries nothing any more."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK_VARIABLE}={mark}".encode() in file.read().split(b"\0")
    except OSError:  # gone, or of another account
        return False


def find_members(
    table: Mapping[int, ProcessRow], *, root: int, root_start: int, mark: str, known: Mapping[int, int]
) -> dict[int, ProcessRow]:
    """Every process of the command whose shell is or was `root`, dead ones not reaped yet included.

    Members are those in its session or group, those that carry the mark, those in `known` (pid to start), and every
    descendant of a member.
    """

    def belongs(row: ProcessRow) -> bool:
        if row.start < root_start:
            return False
        if row.session == root or row.group == root or known.get(row.pid) == row.start:
            return True
        return not row.dead and carries_mark(row.pid, mark)

    members = {pid: row for pid, row in table.items() if belongs(row)}
    children: dict[int, list[ProcessRow]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row)
    waiting = list(members)
    while waiting:
        for row in children.get(waiting.pop(), []):
            if row.pid not in members:
                members[row.pid] = row
                waiting.append(row.pid)
    return members
