"""Commands as an agent's tools reach them: started by one call, and then jobs of the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from peen.tool.base import ToolContext, ToolError
from peen.tool.output import OutputCapture
from peen.tool.tree import ProcessRow
from peen.wire.jobcalls import JobRead, JobSignalName, JobSignalRecorded, JobsListed, JobState


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """What to run. Of each stream `capture_bytes` are kept in memory for the call; all of it is stored."""

    command: str
    purpose: str
    directory: Path
    environment: Mapping[str, str]
    capture_bytes: int


class Command(Protocol):
    """A command that was started, as the call sees it that started it."""

    @property
    def job_id(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> OutputCapture: ...
    @property
    def stderr(self) -> OutputCapture: ...
    @property
    def settled(self) -> trio.Event:
        """Set when the shell has exited and it is known what it left running, or when the command could not go on."""

    @property
    def status(self) -> int | None:
        """Exit status of the shell, negative for a signal; None as long as it runs."""

    @property
    def left(self) -> Sequence[ProcessRow]:
        """What lives of the command although its shell has exited."""

    @property
    def doubtful(self) -> Sequence[ProcessRow]:
        """What the shell may have left running, or another command that ran at the same time."""

    @property
    def keyless(self) -> Mapping[int, str]:
        """Programs that were ended because they waited for keys: pid and name."""

    @property
    def unended(self) -> str:
        """What of it was to be ended and still runs, and why; empty if there is nothing."""

    @property
    def trouble(self) -> str:
        """Why not all of its output is stored; empty if it is."""

    def cut(self) -> int:
        """Number of the last line of what the captures hold: what comes later is read behind it."""

    async def detach(self) -> bool:
        """The call returns now and the command goes on. False if it has ended meanwhile."""

    async def stop(self) -> None:
        """End the command with everything it started, and return when that is done. Shielded and bounded."""


class SessionJobs(Protocol):
    """The jobs of the session, for one tool call."""

    async def start(self, order: CommandOrder) -> Command:
        """Store that the command begins, and start it. Raises: OSError, ValueError for a NUL."""

    async def listed(self, state: JobState | None, *, limit: int) -> JobsListed:
        """Newest first."""

    async def read(
        self,
        job_id: str,
        *,
        stdout_cursor: int | None,
        stderr_cursor: int | None,
        max_lines: int,
        max_bytes: int,
    ) -> JobRead:
        """What it has printed behind the cursors, up to now."""

    async def ended(self, job_id: str) -> None:
        """Return when the job has ended; at once where it does not run. The caller owns the deadline."""

    async def signal(self, job_id: str, signal: JobSignalName) -> JobSignalRecorded:
        """Record the request, and carry it out if the job runs."""


def jobs_of(context: ToolContext) -> SessionJobs:
    """Raises: ToolError where there is no worker behind the tools."""
    if context.jobs is None:
        raise ToolError("failed", "commands cannot be run from here")
    return context.jobs
