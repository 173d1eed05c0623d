"""All jobs that run in one worker, and how the tool calls of its agents reach them."""

from __future__ import annotations

import contextlib

import trio

from peen.entropy import Entropy
from peen.errors import LinkLost
from peen.job.actor import Job
from peen.job.calls import Calls, Pending
from peen.job.program import Start, start_shell
from peen.job.record import keep_end
from peen.tool.jobs import Command, CommandOrder
from peen.wire.jobcalls import (
    CreateJob,
    EndJob,
    JobCreated,
    JobEnded,
    JobRead,
    JobSignalName,
    JobSignalRecorded,
    JobsListed,
    JobState,
    ListJobs,
    ReadJob,
    RecordJobSignal,
)
from peen.wire.workerstruct import CallingTool


class Jobs:
    """Owns nothing but the list: each job is a task of the worker's nursery, and outlives the turn that started it."""

    def __init__(self, calls: Calls, nursery: trio.Nursery, entropy: Entropy, *, start: Start = start_shell) -> None:
        """`start` runs what is ordered."""
        self._calls, self._nursery, self._entropy, self._start = calls, nursery, entropy, start
        self._live: dict[str, Job] = {}

    def of(self, caller: CallingTool) -> CallersJobs:
        """The jobs as one tool call reaches them."""
        return CallersJobs(self, self._calls, caller)

    def live(self, job_id: str) -> Job | None:
        return self._live.get(job_id)

    def signal(self, job_id: str, signal: JobSignalName) -> bool:
        """Begin to end a job; False if it does not run (any more)."""
        job = self._live.get(job_id)
        return job is not None and job.signal(signal)

    def send_ends(self) -> None:
        """Send the ends that wait for a commit: it comes now. Raises: LinkLost."""
        for job in self._live.values():
            job.send_end()

    async def end_all(self) -> None:
        """End every job; returns when that is done and recorded. Bounded like the end of one."""
        async with trio.open_nursery() as nursery:
            for job in list(self._live.values()):
                nursery.start_soon(job.end)

    async def start(self, order: CommandOrder, caller: CallingTool) -> Job:
        """See `SessionJobs.start`."""
        job_id = str(self._entropy.uuid4())
        request = CreateJob(
            caller=caller,
            job_id=job_id,
            purpose=order.purpose,
            command=order.command,
            directory=str(order.directory).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
        )
        await self._calls.call(request, JobCreated)
        try:
            # A Stop may have come while the row was written: then nothing is started at all.
            await trio.lowlevel.checkpoint_if_cancelled()
            program = self._start(order, self._entropy.token(16).hex())
        except BaseException as prevented:
            await self._record_prevented(job_id, prevented)
            raise
        job = Job(job_id, program, self._calls, order.capture_bytes)
        self._live[job_id] = job
        self._nursery.start_soon(self._run, job)
        return job

    async def _run(self, job: Job) -> None:
        try:
            await job.run()
        finally:
            del self._live[job.job_id]

    async def _record_prevented(self, job_id: str, prevented: BaseException) -> None:
        """The process was never started."""
        is_fault = isinstance(prevented, Exception)
        detail = str(prevented) if is_fault else "it was stopped before it started"
        end = EndJob(job_id=job_id, state="failed" if is_fault else "signalled", failure_detail=detail)
        try:
            if not is_fault:
                self._calls.call_soon(RecordJobSignal(job_id=job_id, signal="stop"), JobSignalRecorded)
            answer = self._calls.call_soon(end, JobEnded)
        except LinkLost:
            return  # the controller ends it with this worker
        self._nursery.start_soon(self._keep_end, end, answer)
        with trio.CancelScope(shield=True):  # as any writing call: the answer or the loss of the link ends it
            await answer.done.wait()

    async def _keep_end(self, end: EndJob, answer: Pending[JobEnded]) -> None:
        with contextlib.suppress(LinkLost):  # as above
            await keep_end(self._calls, end, answer)


class CallersJobs:
    """Implements `peen.tool.jobs.SessionJobs`."""

    def __init__(self, jobs: Jobs, calls: Calls, caller: CallingTool) -> None:
        self._jobs, self._calls, self._caller = jobs, calls, caller

    async def start(self, order: CommandOrder) -> Command:
        return await self._jobs.start(order, self._caller)

    async def listed(self, state: JobState | None, *, limit: int) -> JobsListed:
        return await self._calls.call(ListJobs(state=state, limit=limit), JobsListed)

    async def read(
        self,
        job_id: str,
        *,
        stdout_cursor: int | None,
        stderr_cursor: int | None,
        max_lines: int,
        max_bytes: int,
    ) -> JobRead:
        if (job := self._jobs.live(job_id)) is not None:
            await job.stored()
        request = ReadJob(
            job_id=job_id,
            stdout_cursor=stdout_cursor,
            stderr_cursor=stderr_cursor,
            max_lines=max_lines,
            max_bytes=max_bytes,
        )
        return await self._calls.call(request, JobRead)

    async def ended(self, job_id: str) -> None:
        job = self._jobs.live(job_id)
        if job is None:
            await trio.lowlevel.checkpoint()
        else:
            await job.ended.wait()

    async def signal(self, job_id: str, signal: JobSignalName) -> JobSignalRecorded:
        recorded = await self._calls.call(RecordJobSignal(job_id=job_id, signal=signal), JobSignalRecorded)
        self._jobs.signal(job_id, signal)
        return recorded
