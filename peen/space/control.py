"""Agent spaces, and the one where workers are children of the controller's own fork server."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import structlog
import trio

from peen.errors import WorkerFailed
from peen.wire.launch import MAX_LAUNCH_BYTES, LaunchDocument
from peen.wire.worker import encode

from .nannylink import NannyChild, NannyLink
from .nannystart import WORKER_ENTRY, NannyProcess, start_nanny
from .orders import Spawn
from .proc import MARKER, kill_recorded, sweep
from .relay import relay

log = structlog.get_logger(__name__)

DOCUMENT_S = 10.0  # seconds that a worker may take to read its launch document
OUTPUT_S = 1.0  # seconds after a worker's end in which the last of its output is read
INSIST_S = 15.0  # seconds after a kill in which the fork server must report the end; it takes 10 s at most


class WorkerProcess(Protocol):
    """A launched worker, wherever it runs."""

    @property
    def pid(self) -> int: ...

    @property
    def start_time(self) -> int: ...

    async def wait(self) -> int:
        """Exit code, or minus the signal, once the worker and everything below it are gone."""

    def terminate(self) -> None:
        """Ask the worker to end (SIGTERM)."""

    def kill(self) -> None:
        """End the worker and its whole tree by force (SIGKILL)."""


class Space(Protocol):
    """A place where workers can run."""

    @property
    def name(self) -> str: ...

    async def launch(self, document: LaunchDocument, log_context: Mapping[str, str]) -> WorkerProcess:
        """Start a worker and hand it `document` on its stdin; its output goes to the log with `log_context`.

        Raises: WorkerFailed.
        """


class ControlWorker:
    """A worker forked by the fork server."""

    def __init__(self, child: NannyChild, link: NannyLink, nursery: trio.Nursery) -> None:
        self._child, self._link, self._nursery = child, link, nursery
        self._killed = False

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def start_time(self) -> int:
        return self._child.start_time

    async def wait(self) -> int:
        await self._child.exited.wait()
        assert self._child.status is not None
        return self._child.status

    def terminate(self) -> None:
        self._link.kill(self.pid, signal.SIGTERM, tree=False)

    def kill(self) -> None:
        if self._child.exited.is_set():
            return
        self._link.kill(self.pid, signal.SIGKILL, tree=True)
        if not self._killed:
            self._killed = True
            self._nursery.start_soon(self._insist)

    async def _insist(self) -> None:
        with trio.move_on_after(INSIST_S):
            await self._child.exited.wait()
            return
        log.error("the fork server does not end a worker and is killed", pid=self.pid, nanny=self._link.pid)
        self._link.destroy()


class ControlSpace:
    """The agent space `control`: workers share the controller's machine and user.

    Owns:  the fork server and all that descends from it; a new one is started at the next launch after one was lost.
    Ends:  when the owner of `run` is cancelled; every process is gone before `run` returns.
    """

    def __init__(
        self,
        *,
        state_id: str,
        environment: Mapping[str, str],
        nanny: NannyProcess | None = None,
        entry: str = WORKER_ENTRY,
        spares: int = 1,
        preload: Sequence[str] = (),
    ) -> None:
        """`environment` is what a worker gets, complete but for the marker; `nanny` one that was started early.

        `entry`, `spares` and `preload` are for fork servers that are started later (see `start_nanny`).
        """
        self._state_id = state_id
        self._environment = dict(environment)
        self._entry = entry
        self._spares = spares
        self._preload = tuple(preload)
        self._early = nanny
        self._starting = trio.Lock()
        self._link: NannyLink | None = None
        self._clean = trio.Event()  # set when nothing is left of the last fork server
        self._clean.set()
        self._nursery: trio.Nursery | None = None

    @property
    def name(self) -> str:
        return "control"

    @property
    def nanny_pid(self) -> int | None:
        """Pid of the fork server that serves now: what a sweep has to spare."""
        return None if self._link is None or self._link.lost.is_set() else self._link.pid

    def wake(self) -> None:
        """Let a fork server that somebody stopped go on: it has to tell of the ends of its workers."""
        if self._link is not None:
            self._link.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the space until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._early is not None:
                early, self._early = self._early, None
                await self._adopt(early)
            task_status.started()
            await trio.sleep_forever()

    async def launch(self, document: LaunchDocument, log_context: Mapping[str, str]) -> ControlWorker:
        """See `Space.launch`."""
        data = encode(document)
        if len(data) > MAX_LAUNCH_BYTES:
            raise WorkerFailed(f"the launch document has {len(data)} bytes; the limit is {MAX_LAUNCH_BYTES}")
        assert self._nursery is not None, "the space does not run"
        link = await self._serving()
        with ExitStack() as theirs, ExitStack() as ours:
            stdin_read, stdin_write = _pipe(theirs, ours)
            stdout_read, stdout_write = _pipe(ours, theirs)
            stderr_read, stderr_write = _pipe(ours, theirs)
            order = Spawn(
                ref=link.next_ref(),
                cwd=_latin(document.workspace),
                environment={
                    _latin(name): _latin(value)
                    for name, value in {**self._environment, MARKER: document.marker}.items()
                },
                entry=self._entry,
            )
            child = await link.spawn(order, (stdin_read, stdout_write, stderr_write))
            ours.pop_all()  # the streams own them from here on
        worker = ControlWorker(child, link, self._nursery)
        output = {"stdout": trio.lowlevel.FdStream(stdout_read), "stderr": trio.lowlevel.FdStream(stderr_read)}
        self._nursery.start_soon(_attend, child, output, dict(log_context))
        await _deliver(trio.lowlevel.FdStream(stdin_write), data)
        return worker

    async def _serving(self) -> NannyLink:
        """The fork server to use: a new one if the last was lost, once nothing is left of that."""
        async with self._starting:
            if self._link is None or self._link.lost.is_set():
                with trio.move_on_after(INSIST_S):
                    await self._clean.wait()
                if not self._clean.is_set():
                    raise WorkerFailed("what a lost fork server left behind has not ended yet")
                # Blocks for the few milliseconds of a fork and exec; the imports are the new process's.
                await self._adopt(
                    start_nanny(
                        self._environment,
                        state_id=self._state_id,
                        entry=self._entry,
                        spares=self._spares,
                        preload=self._preload,
                    )
                )
            assert self._link is not None
            return self._link

    async def _adopt(self, process: NannyProcess) -> None:
        assert self._nursery is not None
        self._clean = trio.Event()
        self._link = NannyLink(process)
        await self._nursery.start(self._keep, self._link, self._clean)

    async def _keep(
        self, link: NannyLink, clean: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await link.run(task_status=task_status)
            log.error("the fork server is gone", nanny=link.pid, workers=len(link.children))
        finally:
            left = list(link.children.values())
            with trio.CancelScope(shield=True):  # bounded: 5 s a process that does not die, and 5 s for the sweep
                await trio.to_thread.run_sync(_end_all, left, self._state_id)
            for child in left:
                child.settle(-signal.SIGKILL)
            clean.set()


def _end_all(children: list[NannyChild], state_id: str) -> None:
    for child in children:
        if not kill_recorded(child.pid, child.start_time):
            log.error("a worker outlived SIGKILL", pid=child.pid)
    sweep(state_id)


async def _deliver(stdin: trio.lowlevel.FdStream, data: bytes) -> None:
    """Write the launch document and close. A worker that does not read it never gets ready, and that is reported.

    Shielded, since the process exists already: its launch must not end without its owner having it.
    """
    with trio.move_on_after(DOCUMENT_S, shield=True):
        try:
            await stdin.send_all(data)
        except trio.BrokenResourceError:
            log.warning("a worker ended before it had read its launch document")
    with trio.CancelScope(shield=True):  # closing by force never waits
        await trio.aclose_forcefully(stdin)


async def _attend(child: NannyChild, output: Mapping[str, trio.lowlevel.FdStream], log_context: dict[str, str]) -> None:
    """Relay the output of one worker until it is gone."""
    async with trio.open_nursery() as nursery:
        for name, stream in output.items():
            bound = log.bind(**log_context, stream=name)
            line = partial(_log_line, bound)
            dropped = partial(_log_dropped, bound)
            nursery.start_soon(partial(relay, stream, line=line, dropped=dropped))
        await child.exited.wait()
        nursery.cancel_scope.deadline = trio.current_time() + OUTPUT_S


def _log_line(bound: structlog.typing.FilteringBoundLogger, line: str) -> None:
    bound.info("worker output", line=line)


def _log_dropped(bound: structlog.typing.FilteringBoundLogger, lines: int) -> None:
    bound.warning("worker output dropped", lines=lines)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed by the two stacks."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _latin(name: str) -> str:
    return os.fsencode(name).decode("latin-1")
