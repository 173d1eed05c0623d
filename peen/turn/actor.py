"""One root turn in the session's worker: from admission to its terminal commit."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from msgspec import Raw

from peen import __version__
from peen.actors import holds, leaf_of, supervised
from peen.context.budget import enforced_window, prompt_budget
from peen.context.projection import Conversation
from peen.errors import LinkLost, StaleClaim, StorageError
from peen.execution.ask import Asker, ModelSetup
from peen.execution.blocks import Blocks, event
from peen.execution.decide import failure
from peen.execution.loop import AgentLoop
from peen.execution.steps import Next, Steps
from peen.harness.facts import runtime_facts
from peen.harness.prompt import build_prompt, context_hash, snapshot_hash
from peen.model.stream import ModelInfo, Upstream
from peen.tool.base import ToolContext
from peen.tool.ledger import Ledger
from peen.turn.workshop import AgentTools, Workshop
from peen.wire.worker import MessageRecord, OpenedTurn, OpenTurn, RunTurn, Terminal

log = structlog.get_logger(__name__)

_encode: Final = msgspec.json.encode


class TurnActor:
    """Runs one root turn.

    Owns:  the turn's execution, its blocks and its ledger. Borrows: the workshop.
    Ends:  after the terminal commit. Cancelling its scope ends provider request and commands; the turn's end is then
           recorded by whoever cancelled it. `state` says how it ended, as far as this worker knows.
    """

    def __init__(self, command: RunTurn, workshop: Workshop) -> None:
        self._command, self._shop = command, workshop
        self._steps: Steps | None = None
        self.state = "running"

    async def run(self) -> None:
        """Carry out the turn.

        Raises: whatever prevented its admission, with nothing written; LinkLost. After admission every other fault
        becomes the turn's recorded failure.
        """
        upstream, model = self._shop.models.default(self._command.model or self._shop.settings.default_model)
        holder = self._shop.entropy.uuid4().hex
        request = self._admission(model, holder)
        opened = await self._shop.journal.open_turn(request)
        steps = Steps(self._shop.journal, execution_id=opened.execution_id, holder=holder)
        steps.message_sequence = opened.message_sequence
        self._steps = steps
        await supervised(
            partial(self._work, opened, request, steps, upstream, model),
            name=f"turn {self._command.turn_id}",
            failed=self._record_failure,
        )

    async def _work(
        self, opened: OpenedTurn, request: OpenTurn, steps: Steps, upstream: Upstream, model: ModelInfo
    ) -> None:
        settings = self._shop.settings
        await self._shop.transcript.catch_up(opened, self._shop.journal)
        conversation = Conversation()
        conversation.add_history(self._shop.transcript.messages)
        for message in [*request.messages, *opened.opening]:
            conversation.add(message)
        setup = ModelSetup(
            upstream=upstream,
            model=model,
            prompt=request.prompt,
            tools=self._shop.tools.definitions,
            settings=settings,
            reasoning_effort=self._command.reasoning_effort,
        )
        blocks = Blocks()
        asker = Asker(setup, conversation=conversation, blocks=blocks, steps=steps, entropy=self._shop.entropy)
        loop = AgentLoop(
            steps=steps,
            conversation=conversation,
            blocks=blocks,
            ask=asker.answer,
            tools=AgentTools(self._shop.tools, self._tool_context(model)),
            model=model.name,
            round_limit=request.round_limit,
            parallelism=request.tool_parallelism,
        )
        limit_s = math.inf if settings.turn_timeout_ms is None else settings.turn_timeout_ms / 1000
        with trio.move_on_after(limit_s) as limit:
            self.state = (await loop.run()).state
        if limit.cancelled_caught:
            seconds = f"{limit_s:g} s"
            await self._end(failure(f"the turn took longer than {seconds} (PEEN_TURN_TIMEOUT)", reason="timeout"))

    def _admission(self, model: ModelInfo, holder: str) -> OpenTurn:
        shop, command = self._shop, self._command
        facts = runtime_facts(shop.entropy, peen_version=__version__)
        parts = build_prompt(workspace=str(shop.workspace), facts=facts, system_prompt=command.system_prompt)
        manifest = snapshot_hash(parts.context_manifest)
        request_settings = {
            "model": model.name,
            "reasoningEffort": command.reasoning_effort,
            "maxRounds": shop.settings.max_tool_rounds,
            "maxConcurrentTools": shop.settings.max_concurrent_tools,
            "toolTimeoutMs": shop.settings.tool_timeout_ms,
            "timeoutMs": shop.settings.turn_timeout_ms,
            "maxToolResultTokens": shop.settings.max_tool_result_tokens,
        }
        started: dict[str, object] = {
            "sessionId": shop.session_id,
            "model": model.name,
            "workspace": str(shop.workspace),
        }
        return OpenTurn(
            turn_id=command.turn_id,
            holder=holder,
            model=model.name,
            prompt=parts.effective_prompt,
            context_manifest=Raw(parts.context_manifest),
            context_content=parts.context_content,
            context_hash=context_hash(manifest, parts.effective_prompt),
            tools=Raw(_encode(shop.tools.definitions)),
            round_limit=shop.settings.max_tool_rounds,
            tool_parallelism=shop.settings.max_concurrent_tools,
            request_settings=Raw(_encode(request_settings)),
            messages=[MessageRecord(role="user", content=command.message)],
            events=[event("turn.started", started)],
            known_sequence=shop.transcript.known_sequence,
        )

    def _tool_context(self, model: ModelInfo) -> ToolContext:
        shop = self._shop
        window = enforced_window(model.context_window_tokens, shop.settings.max_context_tokens)
        return ToolContext(
            directory=shop.workspace,
            home=shop.home,
            workspace=shop.workspace,
            settings=shop.settings,
            ledger=Ledger(),
            environment=shop.command_environment,
            locks=shop.locks,
            entropy=shop.entropy,
            prompt_budget_tokens=prompt_budget(window, shop.settings.output_reserve_tokens),
        )

    async def _record_failure(self, fault: Exception) -> None:
        if holds(fault, LinkLost):
            self.state = "lost"  # nobody to tell: the controller ends the turn, and this worker exits
            return
        if holds(fault, StaleClaim):
            log.warning("this turn is somebody else's now", turn=self._command.turn_id)
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


def _describe(fault: BaseException) -> str:
    """The first real fault, without source locations."""
    leaf = leaf_of(fault)
    return f"{type(leaf).__name__}: {leaf}" if str(leaf) else type(leaf).__name__
