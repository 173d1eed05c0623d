"""What /proc tells of processes: who descends from whom, and who carries a mark in the environment."""

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
    is_doubtful: bool = False
    """Said of a process that may be of the command that was asked for, or of another."""

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


def descendants_of(*pids: int) -> Iterator[int]:
    """Pids of the processes and of all that descends from them without a gap. One may come twice."""
    waiting = list(pids)
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


def with_descendants(table: Mapping[int, ProcessRow], roots: Mapping[int, ProcessRow]) -> dict[int, ProcessRow]:
    """The roots and everything that descends from one of them according to the table."""
    found = dict(roots)
    children: dict[int, list[ProcessRow]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row)
    waiting = list(roots)
    while waiting:
        for row in children.get(waiting.pop(), []):
            if row.pid not in found:
                found[row.pid] = row
                waiting.append(row.pid)
    return found
