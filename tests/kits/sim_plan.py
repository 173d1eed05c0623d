"""What goes wrong in a simulated world, and when: one plan, which can be written on one line and read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import apsw
import trio

from peen.testing.faults import SimulatedCrash

_ERRORS: Final = {"full": apsw.FullError, "ioerr": apsw.IOError}


@dataclass(frozen=True, slots=True)
class Plan:
    """One fault. Numbers count from 1 over the whole life of a world, 0 is never; `_s` is seconds of virtual time.

    `crash_before`, `crash_after`: the controller dies around that commit. `failed_commit`: that COMMIT meets an I/O
    error. `full`, `ioerr`: that statement finds the disk full or broken, and so does every one for `lasting_s`.
    `cut_up`, `cut_down`: a worker's link breaks at that frame to, or from, the controller. `half`: in the middle of
    it. `replace`: at that frame of a worker to the controller the worker is given up, and goes on unknowing.
    """

    crash_before: int = 0
    crash_after: int = 0
    failed_commit: int = 0
    full: int = 0
    ioerr: int = 0
    lasting_s: int = 0
    cut_up: int = 0
    cut_down: int = 0
    half: int = 0
    replace: int = 0

    def __str__(self) -> str:
        """`crash_before=7`, or nothing for a plan without a fault."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return " ".join(f"{name}={number}" for name, number in given.items() if number)

    @classmethod
    def parse(cls, words: list[str]) -> Plan:
        """The plan that was written as these words."""
        pairs = (word.split("=") for word in words)
        return cls(**{name: int(number) for name, number in pairs})


NO_FAULT: Final = Plan()


class PlannedFaults:
    """A plan as the store and the links meet it; implements `peen.store.batch.Faults` for every life of a controller.

    `crashing` is called in the moment of a crash, before anything unwinds: whatever the dying controller still does
    must reach nobody.
    """

    def __init__(self, plan: Plan, crashing: Callable[[], None]) -> None:
        self.plan, self._crashing = plan, crashing
        self.fired = 0
        """How often the plan has struck. 0 at the end: there was no such commit, statement or frame."""
        self.statements = self.commits = self.frames_up = self.frames_down = 0
        self.watch: Callable[[apsw.Connection], None] = lambda _connection: None
        """Looks at what each commit is about to make true."""
        self.disk_full = False
        self._broken_until = -1.0

    def before_statement(self, connection: apsw.Connection) -> None:
        self.statements += 1
        if self.disk_full:
            self._fail(connection, "full")
        if self.statements == self.plan.full or self.statements == self.plan.ioerr:
            self.fired += 1
            self._broken_until = trio.current_time() + self.plan.lasting_s
            self._fail(connection, self._kind)
        if trio.current_time() < self._broken_until:
            self._fail(connection, self._kind)

    def before_commit(self, connection: apsw.Connection) -> None:
        self.commits += 1
        self.watch(connection)
        if self.commits == self.plan.crash_before:
            self._crash(f"before commit {self.commits}")
        if self.commits == self.plan.failed_commit:
            self.fired += 1
            self._fail(connection, "ioerr")

    def after_commit(self) -> None:
        if self.commits == self.plan.crash_after:
            self._crash(f"after commit {self.commits}")

    def cuts_up(self) -> bool:
        """A frame goes to the controller. Whether the link breaks at it."""
        self.frames_up += 1
        return self._strikes(self.frames_up == self.plan.cut_up)

    def cuts_down(self) -> bool:
        """A frame goes to a worker. Whether the link breaks at it."""
        self.frames_down += 1
        return self._strikes(self.frames_down == self.plan.cut_down)

    def replaces(self) -> bool:
        """A frame goes to the controller. Whether its worker is given up before it arrives."""
        return self._strikes(self.frames_up == self.plan.replace)

    @property
    def _kind(self) -> str:
        return "ioerr" if self.plan.ioerr else "full"

    def _strikes(self, now: bool) -> bool:
        self.fired += now
        return now

    def _crash(self, when: str) -> None:
        self.fired += 1
        self._crashing()
        raise SimulatedCrash(when)

    def _fail(self, connection: apsw.Connection, kind: str) -> None:
        """What SQLite does: the transaction is gone before anybody hears of it."""
        connection.execute("ROLLBACK")
        raise _ERRORS[kind](f"simulated: {kind}")
