"""Keeps a conversation within what its model takes: by a summary of stored turns, or by leaving out what is oldest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from peen.context.compact import GOAL, Earlier, Source, choose_source
from peen.context.count import Gauge
from peen.context.projection import Conversation
from peen.execution.attempts import Tell
from peen.execution.decide import CompactGiven, CompactOutput
from peen.execution.restore import BEGINNING, Start
from peen.execution.steps import Done, Step
from peen.execution.summarize import Summarizer
from peen.wire.records import MessageRecord
from peen.wire.summary import stands_for
from peen.wire.turncalls import HistoryMessage, StoredSummary

log = structlog.get_logger(__name__)

ROOM: Final = 0.75
"""Part of the prompt budget that is left when units are dropped: else the next round would drop again, and the provider
could never use again what it has read before."""


@dataclass(slots=True)
class Past:
    """The stored turns before the running one, as its conversation holds them: a summary and the messages behind it.

    `may_summarize` is false where the store would refuse another summary.
    """

    history: Sequence[HistoryMessage] = ()
    earlier: Earlier | None = None
    may_summarize: bool = True


def earlier_of(summary: StoredSummary | None) -> Earlier | None:
    """A stored summary as the context uses it."""
    if summary is None:
        return None
    missing = stands_for(summary.text)
    assert missing is not None, "every stored summary begins with its tag"
    return Earlier(summary.sequence, summary.from_sequence, summary.to_sequence, summary.text, missing)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One compaction that is due: its step, and what the summary covers."""

    turn_round: int
    step: Step
    source: Source


class ContextKeeper:
    """Decides before each round whether the conversation still fits, and makes it fit.

    `fixed` is what prompt and tools count. Without a `summarizer` old units are dropped, and nothing is stored about
    that. `start` tells of a compaction that was cut off, and of one that the round has had: a model answers between
    two of them.
    """

    def __init__(
        self,
        conversation: Conversation,
        gauge: Gauge,
        *,
        fixed: int,
        past: Past,
        summarizer: Summarizer | None = None,
        start: Start = BEGINNING,
    ) -> None:
        self.conversation, self._gauge, self._fixed = conversation, gauge, fixed
        self.past, self._summarizer = past, summarizer
        self._unfinished = start.compaction
        self._last_round = start.turn_round if start.is_compacted else start.turn_round - 1
        self._plan: _Plan | None = None
        self._has_failed = False

    @property
    def counted(self) -> int:
        """What a request of the present conversation counts."""
        return self._fixed + self.conversation.tokens

    def due(self, turn_round: int, coming: Iterable[MessageRecord] = ()) -> Step | None:
        """The compaction that must come before the model is asked in this round, if one can be made.

        `coming` are messages that the conversation gets first.
        """
        if self._plan is not None and self._plan.turn_round == turn_round:
            return self._plan.step
        if self._summarizer is None or self._has_failed or not self.past.may_summarize:
            return None
        if turn_round <= self._last_round:
            return None
        if self._unfinished is not None:
            return self._begin_again(turn_round, self._unfinished)
        total = self.counted + self.conversation.count(coming)
        if self._gauge.tokens(total) <= self._gauge.budget:
            return None
        source = self._source(total, goal=self._gauge.room(self._fixed, GOAL))
        if source is None:
            return None
        given = CompactGiven(
            round=turn_round,
            estimated_tokens=self._gauge.tokens(total),
            budget_tokens=self._gauge.budget,
            units_covered=source.units,
            messages_covered=len(source.rows),
            to_sequence=source.to_sequence,
        )
        return self._take(turn_round, given, source)

    async def compact(self, turn_round: int, *, tell: Tell) -> Done[CompactOutput]:
        """Ask for the summary that is due in this round; `tell` saves how far that has come."""
        plan = self._plan
        assert plan is not None, "a compaction is due"
        assert plan.turn_round == turn_round, "it is the one of this round"
        assert self._summarizer is not None, "somebody summarizes"
        return await self._summarizer.summarize(
            plan.source, self.past.earlier, turn_round, step=plan.step.id, tell=tell
        )

    def compacted(self, output: CompactOutput, text: str | None) -> None:
        """The compaction is over; `text` is the summary as it was stored, if there is one."""
        plan = self._plan
        assert plan is not None, "it was due"
        self._plan, self._last_round, self._unfinished = None, plan.turn_round, None
        if text is None:
            self._has_failed = True  # in this turn it is not tried again: another failure would cost as much time
            log.warning("no summary was made, history stays as it is", outcome=output.outcome, reason=output.error)
            return
        first = self.past.history[0].sequence if self.past.earlier is None else self.past.earlier.from_sequence
        stored = StoredSummary(
            sequence=output.summary, from_sequence=first, to_sequence=plan.source.to_sequence, text=text
        )
        self.past.earlier = earlier_of(stored)
        self.past.history = [row for row in self.past.history if row.sequence > stored.to_sequence]
        self.conversation.summarize(text, through=stored.to_sequence)
        log.info("earlier turns were summarized", messages=len(plan.source.rows), summary=output.summary)

    def fit(self) -> int:
        """Drop old units if the conversation is still too long; the number of messages that went.

        After a failed summary it keeps all that the window takes, at the cost of the room for the answer.
        """
        limit = self._gauge.window if self._has_failed else self._gauge.budget
        if self._gauge.tokens(self.counted) <= limit:
            return 0
        return self._drop()

    def refused(self) -> int:
        """The provider calls the request too long: from here on less is sent. The number of messages that went."""
        self._gauge.refused(self.counted, fixed=self._fixed)
        return self._drop()

    def reported(self, prompt_tokens: int | None) -> None:
        """The provider has counted the present conversation."""
        self._gauge.reported(self.counted, prompt_tokens)

    def _drop(self) -> int:
        dropped = self.conversation.drop(excess=self.counted - self._gauge.room(self._fixed, ROOM))
        if dropped:
            log.info("old messages were left out of the context", messages=dropped, budget=self._gauge.budget)
        return dropped

    def _source(self, total: int, *, goal: int) -> Source | None:
        assert self._summarizer is not None, "somebody summarizes"
        # The new summary takes the place of the old one.
        total += self._summarizer.output_tokens - self.conversation.summary_tokens
        return choose_source(self.past.history, self.conversation.units, total=total, goal=goal)

    def _begin_again(self, turn_round: int, given: CompactGiven) -> Step | None:
        """A compaction that was cut off covers what it was to cover, whatever would be chosen now."""
        rows = [row for row in self.past.history if row.sequence <= given.to_sequence]
        if not rows or rows[-1].sequence != given.to_sequence:
            self._unfinished = None
            return self.due(turn_round)
        tokens = sum(unit.tokens for unit in self.conversation.units if 0 < unit.through <= given.to_sequence)
        return self._take(turn_round, given, Source(rows, given.units_covered, tokens))

    def _take(self, turn_round: int, given: CompactGiven, source: Source) -> Step:
        step = Step(f"r{turn_round}.compact", "compact", msgspec.json.encode(given))
        self._plan = _Plan(turn_round, step, source)
        return step
