"""One worker generation: one run of one worker process, from its stored row to its recorded end."""

from __future__ import annotations

from typing import Final

import structlog
import trio

from peen.errors import LinkLost, PeenError, StorageError, WorkerFailed
from peen.wire.launch import LaunchDocument
from peen.wire.worker import Shutdown
from peen.worker.credential import new_credential
from peen.worker.framing import FrameStream
from peen.worker.link import WorkerLink

from .control import WorkerProcess
from .door import Door, Expected
from .terms import Ending, Placement, World

log = structlog.get_logger(__name__)

RECORD_S: Final = 10.0  # seconds that recording an end may take while everything stops
RETRY_S: Final = 2.0  # a disk that fails is asked again; for space on a full one the store waits by itself
LAST_WORDS_S: Final = 1.0  # after a lost link the exit of the process is waited for: it tells more


class GenerationActor:
    """Runs one worker.

    Owns:  the socket, the process, the link. Borrows: the space.
    Ends:  when the worker exits, is lost, is stopped, or the owner is cancelled; in each case the whole tree is gone
           and the end recorded before `ended` is set, and only then may the session's next generation start.
    """

    def __init__(self, place: Placement, world: World) -> None:
        self.place = place
        self.generation_id = str(world.entropy.uuid4())
        self.link: WorkerLink | None = None  # set when ready
        self.settled = trio.Event()  # ready, or ended without getting there
        self.ended = trio.Event()
        self.ending: Ending | None = None
        self._world = world
        self._limits = world.limits
        self._stop_reason: str | None = None
        self._stop = trio.Event()
        self._over = trio.Event()
        self._log = log.bind(session_id=place.session_id, generation_id=self.generation_id)

    def stop(self, reason: str) -> None:
        """Begin an orderly end; `ended` tells when it is done. Only the first reason counts."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._stop.set()

    def give_up(self, reason: str) -> None:
        """End the worker by force, now: it did not obey. `ended` tells when its whole tree is gone."""
        self._end(Ending("failed", reason))

    @property
    def leaving(self) -> bool:
        """Whether this worker takes no new work: it is being stopped, or was lost."""
        return self._stop.is_set() or self._over.is_set() or (self.link is not None and self.link.closed.is_set())

    async def run(self) -> None:
        """The whole life. A failure of the worker is recorded, not raised; cancelled, it still records the end."""
        credential, digest = new_credential(self._world.entropy)
        door = self._door(digest)
        recorded = False
        process: WorkerProcess | None = None
        try:
            place = self.place
            await self._world.store.create(
                place.session_id, self.generation_id, digest, str(door.path), place.agent_space, place.workspace
            )
            recorded = True
            await door.open()
            process = await self._world.space.launch(self._document(door, credential), self._log_context())
            await self._world.store.starting(self.generation_id, process.pid, process.start_time)
            self._log.info("worker started", pid=process.pid)
            await self._live(process, door)
        except WorkerFailed as failure:
            self._end(Ending("failed", str(failure)))
        except PeenError as failure:  # of the store: the caller is told, and the log gets the whole of it
            self._end(Ending("failed", str(failure)))
            raise
        finally:
            was_ready = self.link is not None
            self._end(Ending("failed", "the controller gave this worker up"))
            try:
                if process is not None:
                    await self._make_sure(process)
            finally:
                try:
                    door.close()
                    if recorded:
                        await self._make_known()
                finally:
                    self.ended.set()
                    self.settled.set()
        # Reached only if nothing was raised: at a shutdown nobody needs to hear of a loss.
        if was_ready and self._stop_reason is None:
            assert self.ending is not None
            await self._world.on_lost(self.place.session_id, self.generation_id, self.ending.detail)

    async def _live(self, process: WorkerProcess, door: Door) -> None:
        """From the launch until something ends it; sets the ending."""

        async def carry(frames: FrameStream) -> None:
            await self._carry(frames, process)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_exit, process)
            nursery.start_soon(self._watch_ready)
            nursery.start_soon(self._obey_stop, process)
            nursery.start_soon(door.serve, carry)
            await self._over.wait()
            nursery.cancel_scope.cancel()

    def _end(self, ending: Ending) -> None:
        """The first ending is the one that counts."""
        if self.ending is None:
            self.ending = ending
            self._over.set()
        if self.link is not None:
            self.link.lose(self.ending.detail)

    async def _watch_exit(self, process: WorkerProcess) -> None:
        # No deadline: a worker lives as long as its session needs it; beats tell whether it does.
        status = await process.wait()
        if self._stop_reason is not None:
            self._end(Ending("stopped", self._stop_reason, status))
        else:
            how = f"exited with code {status}" if status >= 0 else f"was ended by signal {-status}"
            when = "" if self.link is not None else " before it was ready"
            self._end(Ending("failed", f"the worker {how}{when}", status))

    async def _watch_ready(self) -> None:
        with trio.move_on_after(self._limits.ready_s):
            await self.settled.wait()
            return
        self._end(Ending("failed", f"the worker was not ready within {self._limits.ready_s:g} s"))

    async def _carry(self, frames: FrameStream, process: WorkerProcess) -> None:
        """Serve the admitted connection; its end is the end of the generation."""
        link = WorkerLink(frames, self._world.calls(self.place.session_id, self.generation_id))
        async with trio.open_nursery() as nursery:
            await nursery.start(link.run)
            await self._world.store.ready(self.generation_id)
            self.link = link
            self.settled.set()
            self._log.info("worker ready")
            nursery.start_soon(self._watch_beats, link)
            await link.closed.wait()
            nursery.cancel_scope.cancel()
        if self._stop_reason is not None:
            return  # expected; the exit of the process, or its limit, comes next
        with trio.move_on_after(LAST_WORDS_S):
            await process.wait()
            return  # `_watch_exit` says how
        self._end(Ending("failed", f"the link to the worker was lost: {link.reason}"))

    async def _watch_beats(self, link: WorkerLink) -> None:
        limit_s = self._limits.beat_s
        await silence(link, limit_s)
        self._end(Ending("failed", f"the worker gave no sign of life for {limit_s:g} s"))

    async def _obey_stop(self, process: WorkerProcess) -> None:
        await self._stop.wait()
        assert self._stop_reason is not None
        self._log.info("worker stopping", reason=self._stop_reason)
        await self._world.store.stopping(self.generation_id)
        if self.link is not None:
            with trio.move_on_after(self._limits.shutdown_s):
                await self._shut_down(self.link)
                await process.wait()
        process.terminate()
        with trio.move_on_after(self._limits.term_s):
            await process.wait()
        # Where the process has ended, `_watch_exit` was there first.
        self._end(Ending("stopped", f"{self._stop_reason}; it had to be killed"))

    async def _shut_down(self, link: WorkerLink) -> None:
        """Have turns ended and recorded, then close the link: without it a worker exits."""
        try:
            await link.command(Shutdown())
            await link.quiet()
            link.lose("the worker was told to stop")
        except LinkLost:
            return  # it may close before it answers
        except PeenError as error:
            self._log.warning("worker refused to shut down", error=str(error))

    async def _make_sure(self, process: WorkerProcess) -> None:
        """Kill the tree and wait. The first attempt is shielded and bounded; later ones end with the owner."""
        assert self.ending is not None
        shield = True
        while True:
            process.kill()
            with trio.move_on_after(self._limits.kill_s, shield=shield):
                status = await process.wait()
                if self.ending.exit_code is None:
                    self.ending = Ending(self.ending.state, self.ending.detail, status)
                return
            self._log.error("worker outlived SIGKILL", pid=process.pid, seconds=self._limits.kill_s)
            shield = False

    async def _make_known(self) -> None:
        """Record the end. As in `_make_sure` it is shielded for a while, and then lasts as long as the owner."""
        with trio.move_on_after(RECORD_S, shield=True):
            await self._record()
            return
        self._log.error("the end of a worker is not stored", seconds=RECORD_S)
        await self._record()

    async def _record(self) -> None:
        assert self.ending is not None
        ending = self.ending
        while True:
            try:
                await self._world.store.ended(self.generation_id, ending.state, ending.detail, ending.exit_code)
                break
            except StorageError as refused:
                self._log.warning("the end of a worker is not stored yet", error=str(refused))
                await trio.sleep(RETRY_S)
        self._log.info("worker ended", state=ending.state, detail=ending.detail, exit_code=ending.exit_code)

    def _door(self, digest: bytes) -> Door:
        place = self.place
        return Door(
            self._world.socket_root / place.session_id / "worker.sock",
            Expected(place.session_id, self.generation_id, place.agent_space, place.workspace, digest),
            hello_s=self._limits.hello_s,
        )

    def _document(self, door: Door, credential: str) -> LaunchDocument:
        world, place = self._world, self.place
        return LaunchDocument(
            session_id=place.session_id,
            generation_id=self.generation_id,
            credential=credential,
            socket_path=str(door.path),
            workspace=place.workspace,
            config_directory=str(world.config_directory),
            agent_space=place.agent_space,
            marker=f"{world.state_id}:{self.generation_id}",
            settings=world.settings,
        )

    def _log_context(self) -> dict[str, str]:
        return {"session_id": self.place.session_id, "generation_id": self.generation_id}


async def silence(link: WorkerLink, limit_s: float) -> None:
    """Wait until the worker has given no sign of life for `limit_s` seconds."""
    heard_from = link.last_beat
    while True:
        due = heard_from + limit_s
        await trio.sleep_until(due)
        if link.last_beat > heard_from:
            heard_from = link.last_beat
        elif trio.current_time() > due + limit_s / 4:
            # It was this process that stood still; what the worker sent meanwhile is not read yet.
            heard_from = trio.current_time()
        else:
            return
