"""What every turn of one worker shares: models, tools, the cleaned environment, and the transcript so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Raw

from peen.entropy import Entropy
from peen.execution.decide import ToolOutput
from peen.execution.journal import Journal
from peen.job.room import Jobs
from peen.model.registry import Models
from peen.tool.base import ToolContext
from peen.tool.jobs import SessionJobs
from peen.tool.locks import FileLocks
from peen.tool.registry import Tools
from peen.turn.retained import Caller, WorkCalls
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
    jobs: Jobs | None = None
    """The commands of the session; None where none can be run."""
    locks: FileLocks = field(default_factory=FileLocks)
    transcript: Transcript = field(default_factory=Transcript)
    known_blobs: set[bytes] = field(default_factory=set)
    """Hashes of blobs that the store has for this session."""


class AgentTools:
    """The tools as one agent has them: its directory, its ledger, its say about paused work, its commands."""

    def __init__(
        self,
        tools: Tools,
        context: ToolContext,
        caller: Caller | None = None,
        jobs: Callable[[str], SessionJobs] | None = None,
    ) -> None:
        """`jobs` gives the session's commands as the call with an id reaches them."""
        self._tools, self._context, self._caller, self._jobs = tools, context, caller, jobs

    def is_repeatable(self, name: str) -> bool:
        return self._tools.is_repeatable(name)

    async def call(self, call: ToolCallRecord) -> ToolOutput:
        context = self._context
        if self._caller is not None:
            context = dataclasses.replace(context, work=self._caller.work(call.id))
        if self._jobs is not None:
            context = dataclasses.replace(context, jobs=self._jobs(call.id))
        outcome = await self._tools.call(call.name, call.arguments, context)
        return ToolOutput(
            content=outcome.content, is_error=outcome.is_error, seen=Raw(msgspec.json.encode(outcome.ledger))
        )
