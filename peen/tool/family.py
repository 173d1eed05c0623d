"""Which processes belong to a command, wherever they have moved to.

A process can leave its parent, its group and its session, change its environment and close its output. As long as it
has not done all of that unobserved, something of it tells whose it is. One that has is known by what is left: it is a
child of this process, appeared while commands ran, and nobody else can claim it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final

import trio

from peen.tool.children import CHILDREN, Children
from peen.tool.paths import Identity, identity_of
from peen.tool.process import Process
from peen.tool.tree import ProcessRow, carries_mark, descendants_of, read_row, read_table, with_descendants


class Kin:
    """Processes that belong together. `known` are those seen last: pid to start. `sessions` are all they ever had."""

    def __init__(self, *, since: int = 0, mark: str = "", pipes: frozenset[Identity] = frozenset()) -> None:
        self.since, self.mark, self.pipes = since, mark, pipes
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
        """By its mark or its output; this has to be read, so it comes second."""
        if row.start < self.since or row.dead or not self.mark:
            return False
        return carries_mark(row.pid, self.mark) or _writes_to(row.pid, self.pipes)

    def forget_gone(self) -> bool:
        """Remember only what still lives. False if nothing does."""
        rows = [row for pid, start in self.known.items() if (row := _living(pid, start)) is not None]
        self.known, self.sessions = {}, set()
        self.admit(rows)
        return bool(rows)


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
        roots += [row.pid for row in self._families.strays_of(self)]
        if self.process.popen.returncode is None:  # else the pid may already be another's
            roots.append(self.process.pid)
        rows = [row for pid in set(descendants_of(*roots)) if (row := read_row(pid)) is not None]
        self.known = {}
        self.admit(rows)
        return set(self.known)

    async def members(self, *, ending: bool) -> list[ProcessRow]:
        """Everything that lives of the command, the shell included. With `ending`, also what may be another's."""
        table, roots = await trio.to_thread.run_sync(self._scan)
        # Not from the table: meanwhile a child may have become one that somebody waits for.
        roots |= {row.pid: row for row in self._families.strays_of(self, shared=ending)}
        rows = [row for row in with_descendants(table, roots).values() if not row.dead]
        self.admit(rows)
        return rows

    async def left_running(self, *, output_held: bool) -> list[ProcessRow]:
        """What lives of a command whose shell has ended. Quick where that is nothing.

        `output_held` says that a pipe of the command is still open somewhere.
        """
        suspected = output_held or self.known or _group_exists(self.process.pid) or self._families.strays_of(self)
        if not suspected:
            return []
        return [row for row in await self.members(ending=False) if row.pid != self.process.pid]

    def close(self) -> None:
        """The call is over. What still lives of it is nobody else's from now on."""
        self._families.retire(self)

    def _scan(self) -> tuple[dict[int, ProcessRow], dict[int, ProcessRow]]:
        table = read_table()
        return table, {pid: row for pid, row in table.items() if self.claims(row)}


class Families:
    """All families of this process: of commands that run, of calls that are over, and strangers."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._running: list[Family] = []
        self._over: list[Kin] = []
        self._strangers = Kin()

    def start(self, start: Callable[[], Process]) -> Family:
        """Start a command and a family with it. Whatever there was before can never belong to it."""
        self._settle()
        family = Family(start(), self)
        self._running.append(family)
        return family

    def strays_of(self, family: Family, *, shared: bool = False) -> list[ProcessRow]:
        """Children of this process that nobody waits for and that are of this family; if `shared`, or may be."""
        owners = [(row, self._owners(row)) for row in self._children.strays()]
        return [row for row, among in owners if family in among and (shared or len(among) == 1)]

    def retire(self, family: Family) -> None:
        self._running.remove(family)
        if family.forget_gone():
            self._over.append(family)

    def _owners(self, row: ProcessRow) -> list[Kin]:
        """Who claims a stray; where nobody does, every running command that it may have come from."""
        everybody: list[Kin] = [*self._running, *self._over, self._strangers]
        for claims in (Kin.remembers, Kin.recognises):
            for kin in everybody:
                if claims(kin, row):
                    return [kin]
        # Elsewhere a child may be of the program that uses these tools, and must be left alone.
        return [kin for kin in self._running if kin.since <= row.start] if self._children.reaping else []

    def _settle(self) -> None:
        """Assign the strays that are there, as far as that is possible, and forget what has gone."""
        for row in self._children.strays():
            owners = self._owners(row) or [self._strangers]
            if len(owners) == 1:
                owners[0].admit([row])
        self._over = [kin for kin in self._over if kin.forget_gone()]
        self._strangers.forget_gone()


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
