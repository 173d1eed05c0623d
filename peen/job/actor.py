"""One command in the session's worker: from its process to its stored end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from peen.actors import supervised
from peen.errors import LinkLost
from peen.job.calls import Calls, Pending
from peen.job.log import OutputLog
from peen.job.program import Program
from peen.job.reader import JobReader
from peen.job.record import keep_end
from peen.patience import KILL_GRACE_S, RECORD_S, TERM_GRACE_S
from peen.tool.ending import Unended, unended_text
from peen.tool.output import OutputCapture
from peen.tool.tree import ProcessRow
from peen.wire.jobcalls import (
    DetachJob,
    EndJob,
    EndState,
    JobDetached,
    JobEnded,
    JobSignalName,
    JobSignalRecorded,
    JobStartNoted,
    NoteJobStarted,
    RecordJobSignal,
)
from peen.wire.joboutput import STDERR, STDOUT

log = structlog.get_logger(__name__)

QUIET_S: Final = 0.1
"""How long to wait for the end of output that a descendant still holds open."""
DRAIN_S: Final = 1.0
"""How long a descendant may go on printing before the call returns without it."""
LAST_DRAIN_S: Final = 10.0
"""For what waits in the pipes when nobody is left to print: the disk may be slow."""
STOP_GRACE_S: Final = 10.0
"""What a job gets to end in its own way when it is told to stop."""
STOP_KILL_S: Final = 5.0
"""What a job that was told to stop, or killed, gets to die of SIGKILL. Nobody waits for it, so it may take longer."""
_LOOK_S: Final = 0.002
PID_S: Final = 0.05
"""A command that ends within this tells its pid with its end."""
COMPANY_S: Final = 0.02
"""The end of a command inside its call waits so long for the commit of the call's result, to share its transaction."""


class Job:
    """Runs one command. Its row is stored; its process has just been started.

    Owns:  the program and what it prints. Borrows: the link.
    Ends:  when nothing of it lives any more, or when it was to be ended and what still lives cannot be. Cancelling its
           scope ends the whole tree (TERM, then KILL). In each case the end is stored, unless the link is lost.
    """

    def __init__(self, job_id: str, program: Program, calls: Calls, capture_bytes: int) -> None:
        self.job_id, self.pid = job_id, program.pid
        self.settled, self.ended = trio.Event(), trio.Event()
        self.status: int | None = None
        self.left: Sequence[ProcessRow] = ()
        self.doubtful: Sequence[ProcessRow] = ()
        self._program, self._calls = program, calls
        self._log = OutputLog(job_id, calls)
        self._readers = (
            JobReader(program.stdout, STDOUT, self._log, capture_bytes),
            JobReader(program.stderr, STDERR, self._log, capture_bytes),
        )
        self._unended: Sequence[Unended] = ()
        self._signals: trio.Nursery | None = None
        self._end: EndJob | None = None
        self._answer: Pending[JobEnded] | None = None
        self._end_sent = trio.Event()
        self._is_detached = self._is_left_signalled = self._is_over = False

    @property
    def stdout(self) -> OutputCapture:
        return self._readers[STDOUT].capture

    @property
    def stderr(self) -> OutputCapture:
        return self._readers[STDERR].capture

    @property
    def keyless(self) -> Mapping[int, str]:
        return self._program.keyless

    @property
    def unended(self) -> str:
        return unended_text(self._unended)

    @property
    def trouble(self) -> str:
        return self._log.trouble

    def cut(self) -> int:
        return self._log.cut()

    async def run(self) -> None:
        """The whole life."""
        try:
            await supervised(self._live, name=f"job {self.job_id}", expected=(LinkLost,))
        finally:
            self.settled.set()
            self.ended.set()

    async def detach(self) -> bool:
        """See `Command.detach`. Raises: LinkLost."""
        if self._is_over:
            return False
        self._is_detached = True  # an end that comes from now on is sent behind this call
        await self._calls.call(DetachJob(job_id=self.job_id, pid=self.pid), JobDetached)
        return True

    async def stop(self) -> None:
        """See `Command.stop`."""
        if not self._is_over:
            with contextlib.suppress(LinkLost):
                self._calls.call_soon(RecordJobSignal(job_id=self.job_id, signal="stop"), JobSignalRecorded)
            await self.end()

    async def end(self) -> None:
        """End the whole tree, now; returns when that is done and recorded. Shielded, for `COMMAND_END_S` at most."""
        self._note_signal()
        await self._end_all(grace_s=TERM_GRACE_S, kill_s=KILL_GRACE_S, doubtful=True)
        with trio.move_on_after(RECORD_S, shield=True):
            await self.ended.wait()

    def signal(self, signal: JobSignalName) -> bool:
        """Begin to end the tree, as far as it is surely this job's; False if there is nothing (any more) to end."""
        if self._signals is None or self._is_over:
            return False
        self._note_signal()
        grace_s = STOP_GRACE_S if signal == "stop" else 0.0
        self._signals.start_soon(partial(self._end_all, grace_s=grace_s, kill_s=STOP_KILL_S, doubtful=False))
        return True

    def send_end(self) -> None:
        """Send the end on its way, if there is one that is not yet. Raises: LinkLost."""
        if self._end is not None and self._answer is None:
            self._answer = self._calls.call_soon(self._end, JobEnded)
            self._end_sent.set()

    async def stored(self) -> None:
        """Have everything that was printed so far stored, or known not to be. Raises: LinkLost."""
        with trio.move_on_after(QUIET_S):  # whoever prints on and on is not caught up with
            while not (self._is_over or all(reader.is_idle for reader in self._readers)):  # noqa: ASYNC110 - pipes are silent
                await trio.sleep(_LOOK_S)
        if self._is_over:
            self.send_end()
            await self.ended.wait()  # the last of it is stored with the end
            return
        self._log.cut()
        await self._log.stored()

    def _note_signal(self) -> None:
        # A shell tells by itself how it took the signal; once it has exited, what it left running does not.
        self._is_left_signalled = self._is_left_signalled or bool(self.left)

    async def _end_all(self, *, grace_s: float, kill_s: float, doubtful: bool) -> None:
        """End the tree. What cannot be ended is not waited for: the job is over, and says what still lives."""
        left = await self._program.end(grace_s=grace_s, kill_s=kill_s, doubtful=doubtful)
        if left and self._signals is not None:
            self._unended = left
            self._signals.cancel_scope.cancel()

    async def _live(self) -> None:
        finished = False
        try:
            async with trio.open_nursery() as nursery:
                self._signals = nursery
                nursery.start_soon(self._log.run)
                nursery.start_soon(self._program.tend)
                nursery.start_soon(self._tell_pid)
                for reader in self._readers:
                    nursery.start_soon(reader.run)
                await self._outlive()
                nursery.cancel_scope.cancel()
            finished = True
        finally:
            self._signals = None
            if not finished:
                self._note_signal()
                self._unended = await self._program.end(grace_s=TERM_GRACE_S, kill_s=KILL_GRACE_S, doubtful=True)
            if self.status is None:
                self.status = self._program.poll()
            self._is_over = True
            self._program.close()
            await self._record_end()

    async def _outlive(self) -> None:
        """Wait for the end of the shell, then of what it left running."""
        self.status = await self._program.wait()
        await self._drain(DRAIN_S)
        self.left = await self._look_back()
        with trio.move_on_after(QUIET_S):  # most of what a shell leaves is about to end: no job for that
            await self._outlast()
        has_left = bool(self.left)
        if not self.left:
            await self._drain(LAST_DRAIN_S)  # nobody prints any more, so what waits in the pipes is all there is
        else:
            self.settled.set()
        await self._outlast()
        if has_left:
            await self._drain(LAST_DRAIN_S)

    async def _outlast(self) -> None:
        """Wait for the end of everything that the shell left running."""
        while self.left:
            await self._program.outlast(self.left[0])
            self.left = await self._look_back()

    async def _drain(self, limit_s: float) -> None:
        """Read what is there; a stream that somebody holds open without printing is not waited for."""
        with trio.move_on_after(limit_s):
            for reader in self._readers:
                while True:
                    with trio.move_on_after(QUIET_S):
                        await reader.ended.wait()
                    if reader.is_idle:
                        break

    async def _look_back(self) -> list[ProcessRow]:
        """What still runs of the command. It does not go on for what may be another's; that is only told."""
        is_held = not all(reader.ended.is_set() for reader in self._readers)
        rows = sorted(await self._program.left_running(output_held=is_held), key=lambda row: row.pid)
        self.doubtful = [row for row in rows if row.is_doubtful]
        return [row for row in rows if not row.is_doubtful]

    async def _tell_pid(self) -> None:
        await trio.sleep(PID_S)
        self._calls.call_soon(NoteJobStarted(job_id=self.job_id, pid=self.pid), JobStartNoted)

    async def _record_end(self) -> None:
        """Store the last output and the end, in one transaction; not to be cancelled."""
        if self.status is None:
            log.error("a command could not be ended", job_id=self.job_id, pid=self.pid)
        chunks = await self._log.rest()
        state, exit_code, detail = self._outcome()
        self._end = EndJob(
            job_id=self.job_id,
            pid=self.pid,
            state=state,
            exit_code=exit_code,
            failure_detail=detail,
            chunks=chunks,
            unstored_bytes=self._log.unstored_bytes,
            output_missing=self._log.missing,
        )
        self.settled.set()
        if not self._is_detached:
            # Whoever waits commits behind this call, and so need not wait for its answer: both are one transaction.
            with trio.move_on_after(COMPANY_S, shield=True):
                await self._end_sent.wait()
        self.send_end()
        assert self._answer is not None
        await keep_end(self._calls, self._end, self._answer)

    def _outcome(self) -> tuple[EndState, int, str]:
        if self._log.failure:
            return "failed", -1, self._log.failure
        if self._unended:
            return "failed", -1, f"not all of it could be ended, and this still runs: {self.unended}"
        if self.status is None:
            return "failed", -1, "it could not be ended"
        if self.status < 0 or self._is_left_signalled:
            return "signalled", -1, ""
        return "exited", self.status, ""
