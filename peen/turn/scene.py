"""What an execution begins or goes on with: made for a new turn at its admission, for a resumed one from the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw

from peen import __version__
from peen.context.pictures import with_notes
from peen.context.projection import Conversation
from peen.execution.blocks import event
from peen.execution.decide import ToolOutput
from peen.execution.loop import BEGINNING
from peen.execution.restore import Start, starting_point
from peen.harness.facts import runtime_facts
from peen.harness.prompt import build_prompt, context_hash, snapshot_hash
from peen.model.stream import ModelInfo
from peen.tool.ledger import Ledger, LedgerDelta
from peen.turn.workshop import Workshop
from peen.wire.worker import (
    NOTHING,
    HistoryMessage,
    MessageRecord,
    OpenedTurn,
    OpenTurn,
    RestoredExecution,
    RunTurn,
)

_encode: Final = msgspec.json.encode
_decode_result: Final = msgspec.json.Decoder(ToolOutput).decode
_decode_delta: Final = msgspec.json.Decoder(LedgerDelta).decode


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that the loop of one execution stands on."""

    conversation: Conversation
    prompt: str
    reasoning_effort: str | None
    round_limit: int
    parallelism: int
    ledger: Ledger = field(default_factory=Ledger)
    start: Start = BEGINNING
    note: MessageRecord | None = None
    first_block: int = 0


def admission(command: RunTurn, shop: Workshop, model: ModelInfo, holder: str) -> OpenTurn:
    """The request that opens a turn: its frozen prompt, its opening message, its limits."""
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
        messages=[MessageRecord(role="user", content=command.message, images=command.images)],
        events=[event("turn.started", started)],
        known_sequence=shop.transcript.known_sequence,
    )


async def opened_scene(command: RunTurn, shop: Workshop, request: OpenTurn, opened: OpenedTurn) -> Scene:
    """A new turn behind the whole history of its session."""
    await shop.transcript.catch_up(opened, shop.journal)
    conversation = Conversation()
    conversation.add_history(with_notes(shop.transcript.messages, opened.refused_images))
    for message in [*request.messages, *opened.opening]:
        conversation.add(message)
    return Scene(
        conversation=conversation,
        prompt=request.prompt,
        reasoning_effort=command.reasoning_effort,
        round_limit=request.round_limit,
        parallelism=request.tool_parallelism,
    )


async def restored_scene(shop: Workshop, restored: RestoredExecution) -> Scene:
    """A resumed turn as it stood: its own context and no turn that ran in between, what was done, what it had read."""
    await shop.transcript.reach(restored.message_sequence, shop.journal)
    start = starting_point(restored.steps)
    messages = with_notes(shop.transcript.messages, restored.refused_images)
    conversation = Conversation()
    conversation.add_history(row for row in messages if row.sequence <= restored.history_sequence)
    own = [row for row in messages if row.turn == restored.turn]
    conversation.add_history(_finished_rounds(own, start))
    notes = [row.message for row in own if row.message.role == "system"]
    return Scene(
        conversation=conversation,
        prompt=restored.prompt,
        reasoning_effort=restored.reasoning_effort,
        round_limit=restored.round_limit,
        parallelism=restored.tool_parallelism,
        ledger=_ledger_after(restored),
        start=start,
        note=notes[-1] if notes else None,
        first_block=restored.next_block,
    )


def _finished_rounds(own: list[HistoryMessage], start: Start) -> list[HistoryMessage]:
    """The turn's rows without what told of its ends, and without the exchange that is still going on."""
    rows = [row for row in own if row.message.role != "system"]
    if start.answer is None:
        return rows
    replies = [at for at, row in enumerate(rows) if row.message.role == "assistant"]
    return rows[: replies[-1]] if replies else rows


def _ledger_after(restored: RestoredExecution) -> Ledger:
    """What the agent has read and written, as its saved results tell."""
    own = [
        _decode_result(saved.output).seen
        for saved in restored.steps
        if saved.step.endswith(".handler") and saved.state == "completed"
    ]
    ledger = Ledger()
    for seen in [*restored.seen, *own]:
        if seen != NOTHING:
            ledger.apply(_decode_delta(seen))
    return ledger
