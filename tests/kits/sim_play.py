"""The steps of a scenario, and how every scenario ends: all are answered, and the session still works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

import trio
from image_kit import PNG
from image_kit import sent as sent_images
from sim_check import check
from sim_client import Client, Sent
from sim_decisions import Wish, next_decision
from sim_jobs import unattended
from sim_model import PROBE, Script
from sim_plan import NO_FAULT, Plan
from sim_watch import left_running
from sim_worker import SimWorker
from sim_world import Home, World, simulate
from world_kit import uuid

from peen.control.core import _signal_job
from peen.errors import PeenError, Refused, StorageError
from peen.session.jobs import ask_for_signal
from peen.session.notices import record
from peen.store import jobs
from peen.testing.faults import SimulatedCrash
from peen.wire.client import MessageSend
from peen.wire.jobcalls import JobSignalName

STEP_S: Final = 600.0
"""Virtual seconds that a step may take: past every time limit and retry of the program."""
TRIES: Final = 8
AGAIN_S: Final = 5.0
"""What a user waits before doing again what the store refused. `TRIES` of it outlast a disk that fails for a while."""
LOOK_S: Final = 0.05
DECISIONS: Final = 40
"""Steps in which a user gets through with the paused work of a session, refusals and interruptions included."""


class Play:
    """What a scenario can do. Each step that waits ends, or fails the test, within `STEP_S`."""

    def __init__(self, world: World, user: Client, wish: Wish | None = None) -> None:
        self.world, self.user, self.wish = world, user, wish
        self._frames = 0
        self._mark = 0

    async def send(self, text: str, *, session: int = 0) -> Sent:
        """Send a message; it is not waited for. Every other one has an image of its own."""
        self._frames += 1
        images = sent_images(PNG + self._frames.to_bytes(4, "big")) if self._frames % 2 else ()
        message = MessageSend(
            id=str(uuid(self._frames)), session_id=self.home(session).uuid, message=text, images=images
        )
        sent = self.user.sent[message.id] = Sent(message)
        self._mark = len(self.user.heard)
        await self._submit(sent)
        return sent

    async def wait_until(self, frame_type: str, *, count: int = 1) -> None:
        """Until frames of this type were heard `count` times since the last `send`, or nothing can come any more."""

        def heard() -> bool:
            news = self.user.heard[self._mark :]
            return sum(frame["type"] == frame_type for frame in news) >= count or self._is_settled()

        with trio.fail_after(STEP_S):
            await self.user.until(heard)

    async def wait_idle(self) -> None:
        """Until every message is answered and nothing runs."""
        with trio.fail_after(STEP_S):
            await self.user.until(self._is_settled)

    async def wait_jobs(self, running: int = 0) -> None:
        """Until so many commands run, or no turn could start the next one, or the controller has died."""
        with trio.fail_after(STEP_S):
            while self._running() not in (running, None):
                if running and self._is_settled():
                    return
                await trio.sleep(LOOK_S)

    async def signal_job(self, signal: JobSignalName, *, session: int = 0) -> None:
        """Ask for a signal to the newest command of the session, as the API does; again while the store refuses."""
        controller, home = self.world.controller, self.home(session)
        rows = [] if controller is None else jobs.page(controller.database.reader, home.no, limit=1, offset=0)
        if controller is None or not rows:
            return
        row = rows[0]

        async def ask() -> None:
            change = partial(
                ask_for_signal, session_no=home.no, job_id=row.id, signal=signal, at_ms=controller.entropy.now_ms()
            )
            _, accepted = await controller.database.write(change)
            if accepted:
                await _signal_job(controller.supervisor, home.uuid, str(UUID(bytes=row.id)), signal)

        for _ in range(TRIES):
            try:
                await self.world.request(ask)
            except StorageError:
                await trio.sleep(AGAIN_S)
            else:
                return

    async def stop(self, *, session: int = 0) -> None:
        """Stop the session; tried again while the store refuses."""
        controller = self.world.controller
        assert controller is not None
        for _ in range(TRIES):
            try:
                await controller.sessions.stop(self.home(session).uuid)
            except StorageError:
                await trio.sleep(AGAIN_S)
            except SimulatedCrash:
                await trio.sleep_forever()  # the user hears no more of it; the end of the script ends this wait
            else:
                self.world.stopped_s.append((self.home(session), trio.current_time()))
                return

    async def post_notice(self, summary: str, *, session: int = 0) -> None:
        """Record a notice; one that the store refuses was never posted."""
        entropy = self._entropy()
        change = partial(
            record, session_no=self.home(session).no, notice_type="ci.finished", source="api", summary=summary,
            data=b'{"ok":true}', delivery="queue", at_ms=entropy(),
        )  # fmt: skip
        try:
            await self.world.db.write(change)
        except StorageError:
            return
        except SimulatedCrash:
            await trio.sleep_forever()  # as in `stop`

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def fill_disk(self) -> None:
        self.world.faults.disk_full = self.world.disk_was_filled = True

    def free_disk(self) -> None:
        self.world.faults.disk_full = False

    async def crash_controller(self) -> None:
        await self.world.kill()

    async def restart(self) -> None:
        await self.world.start()

    def crash_worker(self, *, session: int = 0) -> None:
        for process in self.world.space.living(self.home(session).uuid):
            process.kill()

    def freeze_worker(self, *, session: int = 0) -> None:
        """Nothing of the worker comes through any more; it does not know."""
        for process in self.world.space.living(self.home(session).uuid):
            process.wire.hold()

    def thaw_worker(self, *, session: int = 0) -> None:
        for process in self.world.space.living(self.home(session).uuid):
            process.wire.go_on()

    async def replace_worker(self, *, session: int = 0) -> None:
        """Have the controller give the worker up, as when it does not obey a Stop."""
        assert self.world.controller is not None
        await self.world.controller.supervisor.give_up(self.home(session).uuid, "replaced by the scenario")

    def haunt_worker(self, *, session: int = 0) -> None:
        """Have the controller replace the worker, which nobody can kill and which goes on."""
        for process in self.world.space.living(self.home(session).uuid):
            if not process.is_ghost:
                self.world.replace(process)

    # --- paused work

    async def decide(self, *, session: int = 0) -> bool:
        """Get the session's paused work to where the user wants it; True when nothing is left to decide.

        After each step, whatever came of it, the user looks again. False if the controller has died.
        """
        for _ in range(DECISIONS):
            if self.world.controller is None:
                return False
            assert self.wish is not None, "the scenario says what its user wants"
            decision = next_decision(self.world.controller, self.home(session), self.wish)
            if decision is None:
                return True
            try:
                await self.world.request(decision)
            except StorageError:
                await trio.sleep(AGAIN_S)
            except Refused:
                await trio.sleep(0.01)  # it has changed meanwhile
            with trio.fail_after(STEP_S):
                await self._until_quiet()
        raise AssertionError(f"decisions about paused work come to no end\n{self.world.repeat}")

    async def resend(self) -> None:
        """Send again what has no answer, as after a restart, and wait until all is quiet."""
        with trio.fail_after(STEP_S):
            await self._resend()

    def home(self, number: int) -> Home:
        return self.world.homes[number]

    async def settle(self) -> None:
        """What users do in the end: send again what has no answer or was refused, decide, then one message more."""
        self.free_disk()
        for _ in range(TRIES):
            if self.world.controller is None:
                await self.world.start()
            with trio.move_on_after(STEP_S):
                if await self._resend() and await self._decide_all():
                    break
        for number in range(len(self.world.homes)):
            await self._probe(number)

    async def _resend(self) -> bool:
        """One attempt at having every message accepted; True when they are and nothing runs."""
        for sent in self.user.sent.values():
            if sent.answer is None or sent.is_refused:
                sent.answer = None
                sent.tries += 1
                await self._submit(sent)
        await self._until_quiet()
        if self.world.controller is None:
            return False
        refused = [sent for sent in self.user.sent.values() if sent.is_refused]
        if refused:
            await trio.sleep(AGAIN_S)
        return not refused

    async def _decide_all(self) -> bool:
        if self.wish is not None:
            for number in range(len(self.world.homes)):
                if not await self.decide(session=number):
                    return False
        return True

    async def _until_quiet(self) -> None:
        """Until every message is answered and nothing runs, or the controller has died."""
        await self.user.until(lambda: self._is_settled() or self.world.controller is None)

    async def _probe(self, number: int) -> None:
        for _ in range(TRIES):
            sent = await self.send(f"{PROBE} {number} {self._frames}", session=number)
            with trio.move_on_after(STEP_S):
                await self._until_quiet()
            if self.world.controller is None:
                await self.world.start()
                await self._resend()
            if sent.answer is not None and sent.answer["type"] == "message.completed":
                return
            if sent.is_refused:
                del self.user.sent[sent.message.id]
                await trio.sleep(AGAIN_S)
        raise AssertionError(f"session {number} completes no message any more\n{self.world.repeat}")

    async def _submit(self, sent: Sent) -> None:
        controller = self.world.controller
        if controller is None or self._is_cut_off():
            return
        try:
            await controller.sessions.submit(sent.message, self.user)
        except PeenError as refused:
            if self._is_cut_off():
                return  # it died while the message was under way
            raise AssertionError(f"a message was refused at the door: {refused}\n{self.world.repeat}") from refused

    def _is_cut_off(self) -> bool:
        """Whether the controller is dying, and nobody hears of it any more."""
        return not self.user.is_connected

    def _is_settled(self) -> bool:
        return self.world.is_idle() and not self.user.unanswered()

    def _running(self) -> int | None:
        """Commands that count as running; None where the controller has died."""
        return None if self.world.controller is None else len(left_running(self.world.db.reader))

    def _entropy(self) -> Callable[[], int]:
        assert self.world.controller is not None
        return self.world.controller.entropy.now_ms


Body = Callable[[Play], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """A named story: what the model answers, what users do, and what they want of work that is paused."""

    name: str
    script: Script
    body: Body
    sessions: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of WorkerSettings."""
    wish: Wish | None = None
    worker: type[SimWorker] = SimWorker

    def run(self, *, seed: int = 0, plan: Plan = NO_FAULT, checked: bool = True) -> World:
        """Play it under a seed and a plan, settle, and check that every promise was kept."""
        world = simulate(
            self.name, self.script, self._play, seed=seed, plan=plan, sessions=self.sessions, settings=self.settings
        )
        if checked:
            check(world)
        return world

    async def _play(self, world: World) -> None:
        world.space.worker = self.worker
        await world.start()
        user = world.client()
        for home in world.homes:
            world.client(home.uuid)
        play = Play(world, user, self.wish)
        try:
            with world.script_scope:
                await self.body(play)
            await play.settle()
            world.seen += unattended(world, world.db.reader)
            await world.close()
        except trio.TooSlowError as late:
            raise AssertionError(f"a step did not end within {STEP_S:g} s\n{world.repeat}") from late
