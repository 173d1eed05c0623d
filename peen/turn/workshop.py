"""What every turn of one worker shares: models, tools, the cleaned environment, and the transcript so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Raw

from peen.entropy import Entropy
from peen.execution.decide import ReadImage, ToolOutput
from peen.execution.journal import Journal
from peen.execution.pictures import Pictures
from peen.model.registry import Models
from peen.tool.base import ToolContext
from peen.tool.locks import FileLocks
from peen.tool.registry import Tools
from peen.turn.retained import Caller, WorkCalls
from peen.wire.client import SentImage
from peen.wire.worker import HistoryMessage, HistoryPage, OpenedTurn, ToolCallRecord, WorkerSettings


@dataclass
class Transcript:
    """The session's stored messages, kept between turns so that a turn reads only what is new."""

    messages: list[HistoryMessage] = field(default_factory=list)

    @property
    def known_sequence(self) -> int:
        return self.messages[-1].sequence if self.messages else 0

    async def reach(self, sequence: int, journal: Journal) -> None:
        """Read on until every message up to `sequence` is known."""
        while self.known_sequence < sequence:
            page = await journal.history(HistoryPage(after_sequence=self.known_sequence, up_to_sequence=sequence))
            if not page.history:
                return
            self.messages.extend(page.history)

    async def catch_up(self, opened: OpenedTurn, journal: Journal) -> None:
        """Take what came with the admission of a turn, and page on if there is more."""
        self.messages.extend(opened.history)
        if opened.has_more:
            await self.reach(opened.history_sequence, journal)


@dataclass(frozen=True)
class Workshop:
    """Made once when the worker starts."""

    session_id: str
    workspace: Path
    home: Path
    settings: WorkerSettings
    models: Models
    tools: Tools
    command_environment: Mapping[str, str]
    journal: Journal
    entropy: Entropy
    work: WorkCalls | None = None
    """Paused work of the session; None where no controller serves it."""
    locks: FileLocks = field(default_factory=FileLocks)
    transcript: Transcript = field(default_factory=Transcript)
    known_blobs: set[bytes] = field(default_factory=set)
    """Hashes of blobs that the store has for this session."""


class AgentTools:
    """The tools as one agent has them: its directory, its ledger, its say about paused work."""

    def __init__(self, tools: Tools, context: ToolContext, pictures: Pictures, caller: Caller | None = None) -> None:
        self._tools, self._context, self._pictures, self._caller = tools, context, pictures, caller

    def is_repeatable(self, name: str) -> bool:
        return self._tools.is_repeatable(name)

    async def call(self, call: ToolCallRecord) -> ToolOutput:
        context = self._context
        if self._caller is not None:
            context = dataclasses.replace(context, work=self._caller.work(call.id))
        outcome = await self._tools.call(call.name, call.arguments, context)
        read = None
        if outcome.image is not None:
            image = SentImage.of(outcome.image.data)
            self._pictures.keep(image.ref, image.data)
            read = ReadImage(path=outcome.image.path, image=image.ref)
        return ToolOutput(
            content=outcome.content,
            is_error=outcome.is_error,
            seen=Raw(msgspec.json.encode(outcome.ledger)),
            image=read,
        )
