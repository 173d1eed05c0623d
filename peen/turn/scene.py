"""What an execution begins or goes on with: made for a new turn at its admission, for a resumed one from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw

from peen import __version__
from peen.context.pictures import with_notes
from peen.context.projection import Conversation
from peen.execution.blocks import event
from peen.execution.decide import ToolOutput
from peen.execution.keeper import Past, earlier_of
from peen.execution.requests import sent_tokens
from peen.execution.restore import BEGINNING, Start, starting_point
from peen.harness.compaction import summary_prompt
from peen.harness.facts import runtime_facts
from peen.harness.prompt import build_prompt, context_hash, prompt_hash, snapshot_hash
from peen.model.reasoning import without_reasoning
from peen.model.stream import ModelInfo
from peen.tool.ledger import Ledger, LedgerDelta
from peen.turn.workshop import Transcript, Workshop
from peen.wire.records import NOTHING, MessageRecord
from peen.wire.turncalls import Calibration, HistoryMessage, OpenedTurn, OpenTurn, RestoredExecution, SummarySettings
from peen.wire.worker import RunTurn

_encode: Final = msgspec.json.encode
_decode_result: Final = msgspec.json.Decoder(ToolOutput).decode
_decode_delta: Final = msgspec.json.Decoder(LedgerDelta).decode


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that the loop of one execution stands on."""

    conversation: Conversation
    past: Past
    prompt: str
    reasoning_effort: str | None
    round_limit: int
    parallelism: int
    ledger: Ledger = field(default_factory=Ledger)
    start: Start = BEGINNING
    note: MessageRecord | None = None
    first_block: int = 0
    summarizer: SummarySettings | None = None
    calibration: Calibration | None = None


def summarizer_of(shop: Workshop, model: ModelInfo) -> SummarySettings | None:
    """How a turn of `model` that begins now summarizes; None if it drops what is too much.

    Where the model that is meant for summaries cannot be had, the turn's own one writes them.
    """
    settings = shop.settings
    if settings.compaction_mode != "summarize":
        return None
    wanted = settings.compaction_model or settings.default_model
    return SummarySettings(
        model=wanted if shop.models.is_known(wanted) else model.name,
        prompt=summary_prompt(shop.config_directory),
        max_output_tokens=settings.compaction_max_output_tokens,
        timeout_ms=settings.compaction_timeout_ms,
    )


def admission(
    command: RunTurn, shop: Workshop, model: ModelInfo, holder: str, summarizer: SummarySettings | None
) -> OpenTurn:
    """The request that opens a turn: its frozen prompt, its opening message, its limits."""
    facts = runtime_facts(shop.entropy, peen_version=__version__)
    parts = build_prompt(workspace=str(shop.workspace), facts=facts, system_prompt=command.system_prompt)
    manifest = snapshot_hash(parts.context_manifest)
    request_settings: dict[str, object] = {
        "model": model.name,
        "reasoningEffort": command.reasoning_effort,
        "maxRounds": shop.settings.max_tool_rounds,
        "maxConcurrentTools": shop.settings.max_concurrent_tools,
        "toolTimeoutMs": shop.settings.tool_timeout_ms,
        "timeoutMs": shop.settings.turn_timeout_ms,
        "maxToolResultTokens": shop.settings.max_tool_result_tokens,
        "maxContextTokens": shop.window(model),
        "compaction": _compaction(summarizer),
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
        known_summary=shop.transcript.known_summary,
        summary_prompt=None if summarizer is None else summarizer.prompt,
    )


def _compaction(summarizer: SummarySettings | None) -> dict[str, object]:
    if summarizer is None:
        return {"mode": "drop-oldest"}
    return {
        "mode": "summarize",
        "model": summarizer.model,
        "promptHash": prompt_hash(summarizer.prompt),
        "maxOutputTokens": summarizer.max_output_tokens,
        "timeoutMs": summarizer.timeout_ms,
    }


async def opened_scene(
    command: RunTurn,
    shop: Workshop,
    model: ModelInfo,
    request: OpenTurn,
    summarizer: SummarySettings | None,
    opened: OpenedTurn,
) -> Scene:
    """A new turn behind the whole history of its session."""
    await shop.transcript.catch_up(opened, shop.journal)
    past = Past(_replayed(shop.transcript.messages, opened, model), shop.transcript.earlier)
    conversation = _beginning(past, shop.transcript, model)
    for message in [*request.messages, *opened.opening]:
        conversation.add(message)
    return Scene(
        conversation=conversation,
        past=past,
        prompt=request.prompt,
        reasoning_effort=command.reasoning_effort,
        round_limit=request.round_limit,
        parallelism=request.tool_parallelism,
        summarizer=summarizer,
        calibration=opened.calibration,
    )


async def restored_scene(shop: Workshop, model: ModelInfo, restored: RestoredExecution) -> Scene:
    """A resumed turn as it stood: its own context and no turn that ran in between, what was done, what it had read."""
    transcript = await _transcript_for(shop, restored)
    start = starting_point(restored.steps)
    messages = _replayed(transcript.messages, restored, model)
    past = Past(
        [row for row in messages if row.sequence <= restored.history_sequence],
        transcript.earlier,
        may_summarize=restored.may_summarize,
    )
    conversation = _beginning(past, transcript, model)
    own = [row for row in messages if row.turn == restored.turn]
    conversation.add_history(_finished_rounds(own, start))
    notes = [row.message for row in own if row.message.role == "system"]
    return Scene(
        conversation=conversation,
        past=past,
        prompt=restored.prompt,
        reasoning_effort=restored.reasoning_effort,
        round_limit=restored.round_limit,
        parallelism=restored.tool_parallelism,
        ledger=_ledger_after(restored),
        start=start,
        note=notes[-1] if notes else None,
        first_block=restored.next_block,
        summarizer=restored.summarizer,
        calibration=restored.calibration,
    )


def _replayed(
    rows: Sequence[HistoryMessage], told: OpenedTurn | RestoredExecution, model: ModelInfo
) -> Sequence[HistoryMessage]:
    """Stored messages without what the provider of this model has refused."""
    noted = with_notes(rows, told.refused_images)
    if not told.reasoning_refused_up_to:
        return noted
    return [_unreasoned(row, model) if row.sequence <= told.reasoning_refused_up_to else row for row in noted]


def _unreasoned(row: HistoryMessage, model: ModelInfo) -> HistoryMessage:
    message = without_reasoning(row.message, upstream=model.connection_name, model=model.model_id)
    return row if message is row.message else msgspec.structs.replace(row, message=message)


def _beginning(past: Past, transcript: Transcript, model: ModelInfo) -> Conversation:
    """A conversation with this model that stands on the past; the transcript holds that, and perhaps later messages."""
    conversation = Conversation(partial(sent_tokens, model=model))
    if past.earlier is not None:
        conversation.summarize(past.earlier.text, through=past.earlier.to_sequence)
    counts = [
        known if row is stored else sent_tokens(row.message, model)  # something of it was refused
        for row, stored, known in zip(past.history, transcript.messages, transcript.counts(model), strict=False)
    ]
    conversation.add_history(past.history, counts)
    return conversation


async def _transcript_for(shop: Workshop, restored: RestoredExecution) -> Transcript:
    """The stored messages behind the summary that the resumed turn stands on: the worker's own, unless later turns have
    been summarized together with it."""
    own = shop.transcript
    if restored.summary is not None and restored.summary.sequence == restored.summary_in_force:
        if restored.summary_in_force != own.known_summary:
            own.stand_on(restored.summary)
    elif restored.summary_in_force:
        own = Transcript(earlier=earlier_of(restored.summary))
    await own.reach(restored.message_sequence, shop.journal)
    return own


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
