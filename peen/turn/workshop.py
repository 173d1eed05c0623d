"""What every turn of one worker shares: models, tools, the cleaned environment, and the transcript so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Raw

from peen.context.budget import enforced_window, prompt_budget
from peen.context.compact import Earlier
from peen.context.count import Gauge
from peen.entropy import Entropy
from peen.execution.decide import ReadImage, ToolOutput
from peen.execution.journal import Journal
from peen.execution.keeper import earlier_of
from peen.execution.pictures import Pictures
from peen.execution.requests import sent_tokens
from peen.job.room import Jobs
from peen.model.registry import Models
from peen.model.stream import ModelInfo
from peen.tool.base import ToolContext
from peen.tool.jobs import SessionJobs
from peen.tool.locks import FileLocks
from peen.tool.registry import Tools
from peen.turn.retained import Caller, WorkCalls
from peen.wire.client import SentImage
from peen.wire.launch import WorkerSettings
from peen.wire.records import ToolCallRecord
from peen.wire.turncalls import Calibration, HistoryMessage, HistoryPage, OpenedTurn, StoredSummary


@dataclass
class Transcript:
    """The session's stored messages, kept between turns so that a turn reads only what is new.

    What the summary in force covers is not among them: `earlier` stands for it.
    """

    messages: list[HistoryMessage] = field(default_factory=list)
    earlier: Earlier | None = None
    _counts: list[int] = field(default_factory=list)
    _counted_for: str = ""

    def counts(self, model: ModelInfo) -> Sequence[int]:
        """What the messages count for this model, each counted once."""
        if self._counted_for != model.name:
            self._counts, self._counted_for = [], model.name
        self._counts += [sent_tokens(row.message, model) for row in self.messages[len(self._counts) :]]
        return self._counts

    @property
    def known_summary(self) -> int:
        """Number of the summary in force, as far as is known; 0 for none."""
        return 0 if self.earlier is None else self.earlier.sequence

    @property
    def known_sequence(self) -> int:
        """Everything up to this message is known, or not needed."""
        if self.messages:
            return self.messages[-1].sequence
        return 0 if self.earlier is None else self.earlier.to_sequence

    async def reach(self, sequence: int, journal: Journal) -> None:
        """Read on until every message up to `sequence` is known."""
        while self.known_sequence < sequence:
            page = await journal.history(HistoryPage(after_sequence=self.known_sequence, up_to_sequence=sequence))
            if not page.history:
                return
            self.messages.extend(page.history)

    async def catch_up(self, opened: OpenedTurn, journal: Journal) -> None:
        """Take what came with the admission of a turn, and page on if there is more."""
        self.stand_on(opened.summary)
        self.messages.extend(opened.history)
        if opened.has_more:
            await self.reach(opened.history_sequence, journal)

    def stand_on(self, summary: StoredSummary | None) -> None:
        """If the store has a newer summary in force, take it, and let go of what it covers."""
        if summary is not None:
            self.earlier = earlier_of(summary)
            kept = [row for row in self.messages if row.sequence > summary.to_sequence]
            self._counts = self._counts[len(self.messages) - len(kept) :]
            self.messages = kept


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
    config_directory: Path | None = None
    windows: dict[str, int] = field(default_factory=dict)
    """Context windows in tokens that the controller has found published, by model."""
    gauges: dict[tuple[str, int], Gauge] = field(default_factory=dict)
    """How each model counts, by its name and window."""

    def window(self, model: ModelInfo) -> int:
        """Tokens of the model's context window, as far as it is used."""
        published = model.context_window_tokens or self.windows.get(model.name)
        return enforced_window(published, self.settings.max_context_tokens)

    def budget(self, model: ModelInfo) -> int:
        """Tokens that a prompt for the model may have."""
        return prompt_budget(self.window(model), self.settings.output_reserve_tokens)

    def gauge(self, model: ModelInfo, calibration: Calibration | None = None) -> Gauge:
        """How the model counts. `calibration` is from before this worker's time, and of use only at first."""
        key = model.name, self.window(model)
        gauge = self.gauges.get(key)
        if gauge is None:
            gauge = self.gauges[key] = Gauge(window=self.window(model), budget=self.budget(model))
            if calibration is not None:
                gauge.reported(calibration.estimated, calibration.reported)
        return gauge


class AgentTools:
    """The tools as one agent has them: its directory, its ledger, its say about paused work, its commands."""

    def __init__(
        self,
        tools: Tools,
        context: ToolContext,
        pictures: Pictures,
        caller: Caller | None = None,
        jobs: Callable[[str], SessionJobs] | None = None,
    ) -> None:
        """`jobs` gives the session's commands as the call with an id reaches them."""
        self._tools, self._context, self._pictures = tools, context, pictures
        self._caller, self._jobs = caller, jobs

    def is_repeatable(self, name: str) -> bool:
        return self._tools.is_repeatable(name)

    async def call(self, call: ToolCallRecord) -> ToolOutput:
        context = self._context
        if self._caller is not None:
            context = dataclasses.replace(context, work=self._caller.work(call.id))
        if self._jobs is not None:
            context = dataclasses.replace(context, jobs=self._jobs(call.id))
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
