"""Which processes belong to a command, wherever they have moved to.

A process can leave its parent, its group and its session, change its environment and close its output; its brand still
tells whose it is (see `peen.brand`). One that has lost that as well is known by what is left: it is a child of this
process and appeared while commands ran. If that was one command, it is of that one; else it stays doubtful for good,
since none of them may be thought to run on for what may be another's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from peen.brand import Brand, brand_number, brand_of
from peen.tool.children import CHILDREN, Children
from peen.tool.paths import Identity, identity_of
from peen.tool.process import Process
from peen.tool.tree import ProcessRow, carries_mark, descendants_of, read_row, read_table, with_descendants


class Kin:
    """Processes that belong together. `known` are those seen last: pid to start. `sessions` are all they ever had."""

    def __init__(self, *, since: int = 0, mark: str = "", pipes: frozenset[Identity] = frozenset()) -> None:
        self.since, self.mark, self.pipes = since, mark, pipes
        self.brand = brand_number(mark) if mark else 0
        self.known: dict[int, int] = {}
        self.sessions: set[int] = set()

    def admit(self, rows: Iterable[ProcessRow]) -> None:
        for row in rows:
            self.known[row.pid] = row.start
            self.sessions.add(row.session)

    def claims(self, row: ProcessRow) -> bool:
        """Whether the process is known, or something of it shows that it is one of these."""
        return self.remembers(row) or self.recognises(row)

    def remembers(self, row: ProcessRow) -> bool:
        return row.start >= self.since and (self.known.get(row.pid) == row.start or row.session in self.sessions)

    def recognises(self, row: ProcessRow) -> bool:
        """By its brand, its mark or its output; this has to be read, so it comes second."""
        if row.start < self.since or row.dead or not self.mark:
            return False
        if brand_of(row.pid, Brand.COMMAND) == self.brand:
            return True
        return carries_mark(row.pid, self.mark) or _writes_to(row.pid, self.pipes)

    def forget_gone(self) -> bool:
        """Remember only what still lives. False if nothing does."""
        rows = [row for pid, start in self.known.items() if (row := _living(pid, start)) is not None]
        self.known, self.sessions = {}, set()
        self.admit(rows)
        return bool(rows)


class Doubtful(Kin):
    """Processes of which nothing tells whose they are. `among` are all that could have left them, running or not."""

    def __init__(self, among: Sequence[Kin]) -> None:
        super().__init__()
        self.among = among


class Family(Kin):
    """The kin of a running command. Made by `Families.start`; `close` ends it, whatever still lives of it."""

    def __init__(self, process: Process, families: Families) -> None:
        pipes = frozenset(identity_of(os.fstat(stream.fileno())) for stream in (process.stdout, process.stderr))
        super().__init__(since=process.start, mark=process.mark, pipes=pipes)
        self.process, self._families = process, families
        self.sessions.add(process.pid)

    def look(self) -> set[int]:
        """Pids of all that belongs to the command and is found quickly, remembered from now on."""
        roots = [pid for pid, start in self.known.items() if _living(pid, start) is not None]
        roots += [row.pid for row in self._families.strays_of(self) if not row.is_doubtful]
        if self.process.popen.returncode is None:  # else the pid may already be another's
            roots.append(self.process.pid)
        rows = [row for pid in set(descendants_of(*roots)) if (row := read_row(pid)) is not None]
        self.known = {}
        self.admit(rows)
        return set(self.known)

    async def members(self, *, doubtful: bool) -> list[ProcessRow]:
        """Everything that lives of the command, the shell included. With `doubtful`, also what may be of another."""
        table, roots = await trio.to_thread.run_sync(self._scan)
        # Not from the table: meanwhile a child may have become one that somebody waits for.
        strays = self._families.strays_of(self)
        roots |= {row.pid: row for row in strays if not row.is_doubtful}
        rows = [row for row in with_descendants(table, roots).values() if not row.dead]
        self.admit(rows)
        if not doubtful:
            return rows
        roots |= {row.pid: row for row in strays}
        return [row for row in with_descendants(table, roots).values() if not row.dead]

    async def left_running(self, *, output_held: bool) -> list[ProcessRow]:
        """What lives of a command whose shell has ended, and what is doubtful. Quick where that is nothing.

        `output_held` says that a pipe of the command is still open somewhere.
        """
        strays = self._families.strays_of(self)
        if output_held or self.known or _group_exists(self.process.pid) or not all(row.is_doubtful for row in strays):
            rows = [row for row in await self.members(doubtful=False) if row.pid != self.process.pid]
            strays = self._families.strays_of(self)
        else:
            rows = []
        return rows + [row for row in strays if row.is_doubtful]

    def close(self) -> None:
        """The call is over. What still lives of it is nobody else's from now on."""
        self._families.retire(self)

    def _scan(self) -> tuple[dict[int, ProcessRow], dict[int, ProcessRow]]:
        table = read_table()
        return table, {pid: row for pid, row in table.items() if self.claims(row)}


class Families:
    """All families of this process: of commands that run, of calls that are over, strangers, and who is doubtful."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._running: list[Family] = []
        self._over: list[Kin] = []
        self._strangers = Kin()
        self._doubtful: list[Doubtful] = []

    def start(self, start: Callable[[], Process]) -> Family:
        """Start a command and a family with it. Whatever there was before can never belong to it."""
        self._sort()
        self._over = [kin for kin in self._over if kin.forget_gone()]
        self._doubtful = [kin for kin in self._doubtful if kin.forget_gone()]
        self._strangers.forget_gone()
        family = Family(start(), self)
        self._running.append(family)
        return family

    def strays_of(self, family: Family) -> list[ProcessRow]:
        """Children of this process that nobody waits for and that are of this family, or may be."""
        return [
            row if len(owners) == 1 else dataclasses.replace(row, is_doubtful=True)
            for row, owners in self._sort()
            if family in owners
        ]

    def retire(self, family: Family) -> None:
        self._sort()  # while it still counts among those that may have left something
        self._running.remove(family)
        if family.forget_gone():
            self._over.append(family)

    def _sort(self) -> list[tuple[ProcessRow, Sequence[Kin]]]:
        """Every stray and whose it may be. What is found at the first look at one is what counts from then on."""
        return [(row, self._remembered(row) or self._sorted(row)) for row in self._children.strays()]

    def _remembered(self, row: ProcessRow) -> Sequence[Kin]:
        for kin in (*self._running, *self._over, self._strangers):
            if kin.remembers(row):
                return [kin]
        return next((kin.among for kin in self._doubtful if kin.remembers(row)), ())

    def _sorted(self, row: ProcessRow) -> Sequence[Kin]:
        owners = self._recognised(row) or self._possible(row) or [self._strangers]
        if len(owners) == 1:
            owners[0].admit([row])
        else:
            doubtful = Doubtful(owners)
            doubtful.admit([row])
            self._doubtful.append(doubtful)
        return owners

    def _recognised(self, row: ProcessRow) -> Sequence[Kin]:
        for kin in (*self._running, *self._over):
            if kin.recognises(row):
                return [kin]
        return []

    def _possible(self, row: ProcessRow) -> Sequence[Kin]:
        """Who may have left a stray of which nothing tells: what runs, or had left something at the last start."""
        # Elsewhere a child may be of the program that uses these tools, and must be left alone.
        if not self._children.reaping or not any(kin.since <= row.start for kin in self._running):
            return []
        living = [kin for kin in (*self._over, self._strangers) if kin.known]
        doubtful = [kin for each in self._doubtful if each.known for kin in each.among]
        among = [kin for kin in (*self._running, *living, *doubtful) if kin.since <= row.start]
        if brand_of(row.pid, Brand.COMMAND) is not None:  # of a command that is over, or of a Peen inside of one
            among.append(self._strangers)
        return list(dict.fromkeys(among))


FAMILIES: Final = Families(CHILDREN)
"""One object a process, like the children that it sorts."""


def _living(pid: int, start: int) -> ProcessRow | None:
    row = read_row(pid)
    return row if row is not None and row.start == start and not row.dead else None


def _writes_to(pid: int, pipes: frozenset[Identity]) -> bool:
    """Whether standard output or error of the process is one of the pipes."""
    for number in (1, 2):
        try:
            if identity_of(os.stat(f"/proc/{pid}/fd/{number}")) in pipes:
                return True
        except OSError:  # closed, or gone, or of another account
            continue
    return False


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
