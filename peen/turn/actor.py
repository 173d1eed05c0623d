"""One root turn in the session's worker: from admission to its terminal commit."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from peen.actors import holds, leaf_of, supervised
from peen.context.count import fixed_tokens
from peen.errors import LinkLost, StaleClaim, StorageError, ValidationFailed
from peen.execution.ask import Asker, ModelSetup
from peen.execution.blocks import Blocks
from peen.execution.decide import failure
from peen.execution.keeper import ContextKeeper
from peen.execution.loop import AgentLoop
from peen.execution.pictures import Pictures
from peen.execution.requests import SentRequests
from peen.execution.steps import Next, Steps
from peen.execution.summarize import Summarizer, SummaryModel
from peen.job.room import Jobs
from peen.model.stream import ModelInfo, Upstream
from peen.tool.base import ToolContext
from peen.tool.jobs import SessionJobs
from peen.tool.ledger import Ledger
from peen.turn.retained import Caller
from peen.turn.scene import Scene, admission, opened_scene, restored_scene, summarizer_of
from peen.turn.workshop import AgentTools, Workshop
from peen.wire.records import Budget, Terminal
from peen.wire.turncalls import RestoreExecution, SummarySettings
from peen.wire.worker import ResumeTurn, RunTurn
from peen.wire.workerstruct import CallingTool

log = structlog.get_logger(__name__)

_encode: Final = msgspec.json.encode


class TurnActor:
    """Runs one root turn, from its admission or from where it was paused.

    Owns:  the turn's execution and its blocks. Borrows: the workshop.
    Ends:  after the terminal commit. Cancelling its scope ends provider request and commands; the turn's end is then
           recorded by whoever cancelled it. `state` says how it ended, as far as this worker knows.
    """

    def __init__(self, command: RunTurn | ResumeTurn, workshop: Workshop) -> None:
        self._command, self._shop = command, workshop
        self._steps: Steps | None = None
        self._caller: Caller | None = None
        self._jobs: Callable[[str], SessionJobs] | None = None
        self.state = "running"

    async def run(self) -> None:
        """Carry out the turn.

        Raises: whatever prevented its admission, with nothing written; LinkLost. After admission every other fault
        becomes the turn's recorded failure.
        """
        holder = self._shop.entropy.uuid4().hex
        self._shop.windows.update(self._command.windows)
        match self._command:
            case RunTurn() as command:
                upstream, model = self._shop.models.default(command.model or self._shop.settings.default_model)
                summarizer = summarizer_of(self._shop, model)
                request = admission(command, self._shop, model, holder, summarizer)
                opened = await self._shop.journal.open_turn(request)
                prepare = partial(opened_scene, command, self._shop, model, request, summarizer, opened)
                self._hold(opened.execution_id, holder, opened.message_sequence, opened.budget)
            case ResumeTurn(execution_id=execution_id):
                restored = await self._shop.journal.restore(RestoreExecution(execution_id=execution_id, holder=holder))
                upstream, model = self._shop.models.resolve(restored.model)
                if restored.window is not None:
                    self._shop.windows.setdefault(restored.model, restored.window)
                prepare = partial(restored_scene, self._shop, model, restored)
                self._hold(execution_id, holder, restored.message_sequence, restored.budget)
        await supervised(
            partial(self._hold_and_work, partial(self._work, prepare, upstream, model)),
            name=f"turn {self._command.turn_id}",
            failed=self._record_failure,
            expected=(LinkLost, StaleClaim),  # the worker is lost, or a Stop ended the turn
        )

    def _hold(self, execution_id: str, holder: str, message_sequence: int, budget: Budget | None) -> None:
        self._steps = Steps(self._shop.journal, execution_id=execution_id, holder=holder)
        self._steps.message_sequence, self._steps.budget = message_sequence, budget
        if self._shop.work is not None:
            self._caller = Caller(self._shop.work, execution_id, holder)
        if self._shop.jobs is not None:
            self._jobs = partial(_jobs_of, self._shop.jobs, execution_id, holder)

    async def _hold_and_work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Renew the turn's leases as long as it works. One that is lost ends the work: nothing would count."""
        assert self._steps is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._steps.keep_leases)
            await work()
            nursery.cancel_scope.cancel()

    async def _work(self, prepare: Callable[[], Awaitable[Scene]], upstream: Upstream, model: ModelInfo) -> None:
        settings, steps = self._shop.settings, self._steps
        assert steps is not None
        scene = await prepare()
        setup = ModelSetup(
            upstream=upstream,
            model=model,
            prompt=scene.prompt,
            tools=self._shop.tools.definitions,
            settings=settings,
            reasoning_effort=scene.reasoning_effort,
        )
        keeper = self._keeper(scene, model)
        blocks = Blocks(scene.first_block)
        pictures = Pictures(self._shop.journal)
        asker = Asker(
            setup,
            keeper=keeper,
            blocks=blocks,
            steps=steps,
            sent=SentRequests(self._shop.known_blobs, model),
            pictures=pictures,
            entropy=self._shop.entropy,
        )
        loop = AgentLoop(
            steps=steps,
            keeper=keeper,
            blocks=blocks,
            ask=asker.answer,
            tools=AgentTools(
                self._shop.tools, self._tool_context(model, scene.ledger), pictures, self._caller, self._jobs
            ),
            pictures=pictures,
            model=model.name,
            round_limit=scene.round_limit,
            parallelism=scene.parallelism,
        )
        limit_s = math.inf if settings.turn_timeout_ms is None else settings.turn_timeout_ms / 1000
        with trio.move_on_after(limit_s) as limit:
            self.state = (await loop.run(scene.start, note=scene.note)).state
        if limit.cancelled_caught:
            seconds = f"{limit_s:g} s"
            await self._end(failure(f"the turn took longer than {seconds} (PEEN_TURN_TIMEOUT)", reason="timeout"))

    def _keeper(self, scene: Scene, model: ModelInfo) -> ContextKeeper:
        shop = self._shop
        return ContextKeeper(
            scene.conversation,
            shop.gauge(model, scene.calibration),
            fixed=fixed_tokens(scene.prompt, shop.tools.definitions),
            past=scene.past,
            summarizer=None if scene.summarizer is None else self._summarizer(scene.summarizer),
            start=scene.start,
        )

    def _summarizer(self, settings: SummarySettings) -> Summarizer | None:
        shop, steps = self._shop, self._steps
        assert steps is not None
        try:
            upstream, model = shop.models.resolve(settings.model)
        except ValidationFailed as unknown:
            log.warning("nobody can summarize: old messages are dropped instead", error=str(unknown))
            return None
        setup = SummaryModel(upstream, model, settings.prompt, settings.max_output_tokens, settings.timeout_ms)
        return Summarizer(
            setup,
            steps=steps,
            gauge=shop.gauge(model),
            settings=shop.settings,
            known_blobs=shop.known_blobs,
            entropy=shop.entropy,
        )

    def _tool_context(self, model: ModelInfo, ledger: Ledger) -> ToolContext:
        shop = self._shop
        return ToolContext(
            directory=shop.workspace,
            home=shop.home,
            workspace=shop.workspace,
            settings=shop.settings,
            ledger=ledger,
            environment=shop.command_environment,
            locks=shop.locks,
            entropy=shop.entropy,
            image_input=model.image_input and self._command.image_input,
            prompt_budget_tokens=shop.gauge(model).budget,
        )

    async def _record_failure(self, fault: Exception) -> None:
        if holds(fault, LinkLost):
            self.state = "lost"  # nobody to tell: the controller ends the turn, and this worker exits
            return
        if holds(fault, StaleClaim):
            self.state = "stale"
            return
        if holds(fault, StorageError):
            await self._end(
                failure("the disk is full or failing; the log of the controller names it", reason="storage")
            )
            return
        await self._end(failure(f"internal error: {_describe(fault)}"))

    async def _end(self, terminal: Terminal) -> None:
        assert self._steps is not None
        await self._steps.commit(Next(terminal=terminal))
        self.state = terminal.state


def _jobs_of(jobs: Jobs, execution_id: str, holder: str, call_id: str) -> SessionJobs:
    return jobs.of(CallingTool(execution_id=execution_id, holder=holder, call_id=call_id))


def _describe(fault: BaseException) -> str:
    """The first real fault, without source locations."""
    leaf = leaf_of(fault)
    return f"{type(leaf).__name__}: {leaf}" if str(leaf) else type(leaf).__name__
