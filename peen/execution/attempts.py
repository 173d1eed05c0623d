"""The attempts of one step that asks a model: what is known of each, told to the store before it can be lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
from msgspec import Raw

from peen.entropy import Entropy
from peen.errors import ModelError
from peen.model.fold import Answer, Fold
from peen.model.stream import Answered
from peen.wire.records import NOTHING, ModelCallRecord, ModelProgress, Usage

_State = Literal["completed", "failed", "cancelled"]
_REPORTED_NOTHING: Final = Usage()


Tell = Callable[[ModelProgress], Awaitable[None]]
"""Saves how far a step has come; returns once that is committed."""


class Attempts:
    """Keeps the record of every attempt, of the one under way too.

    The step's own commit stands for its first attempt. Before each further one the store is told, and only then the
    request goes out: so whoever ends the step in the place of its worker knows whether there was one.
    """

    def __init__(self, step: str, *, tell: Tell, entropy: Entropy, sequence: Callable[[], int]) -> None:
        """`sequence` is the last message of the session that a request is made of."""
        self._step, self._tell, self._entropy, self._sequence = step, tell, entropy, sequence
        self.calls: list[ModelCallRecord] = []
        """Those that are over."""
        self._round = 0
        self._began_ms: int | None = None
        self._status: int | None = None
        self._fold: Fold | None = None
        self._told = ModelProgress(step=step)

    @property
    def is_under_way(self) -> bool:
        """Whether an attempt has begun and is not over."""
        return self._began_ms is not None

    async def begin(self, turn_round: int) -> None:
        """An attempt at that round begins; return once its request may go out."""
        at_ms = self._entropy.now_ms()
        if self.calls:
            waited_ms = max(0, at_ms - self.calls[-1].completed_at_ms)
            self.calls[-1] = msgspec.structs.replace(self.calls[-1], delay_ms=waited_ms)
        self._round, self._began_ms, self._status, self._fold = turn_round, at_ms, None, None
        if self.calls:
            news = self.news()
            assert news is not None, "an attempt that failed has become one that was waited for"
            await self._tell(news)

    def answered(self, items: object, fold: Fold) -> None:
        """The provider answers: `items` is its stream, which `fold` collects."""
        self._status, self._fold = items.status if isinstance(items, Answered) else None, fold

    def news(self) -> ModelProgress | None:
        """How far the step has come, if that is not what was told last; whoever asks tells it."""
        under_way = None
        if self.is_under_way:
            # Its end is not known: whoever records it says how it ended.
            under_way = self._record("cancelled", completed_at_ms=self._began_ms or 0)
        progress = ModelProgress(step=self._step, failed=list(self.calls), under_way=under_way)
        if progress == self._told or (not self.calls and self._fold is None):
            return None
        self._told = progress
        return progress

    def fail(self, error: ModelError) -> None:
        """The attempt has failed; what was reported of it is paid for all the same."""
        call = self._record("failed", completed_at_ms=self._entropy.now_ms())
        status = self._status if error.http_status is None else error.http_status
        self._end(
            msgspec.structs.replace(
                call, status=status, unsent=error.unsent, failure_kind=error.kind, failure_detail=str(error)
            )
        )

    def give_up(self, error: ModelError) -> None:
        """The attempt is cut off by its own worker, for want of time."""
        call = self._record("cancelled", completed_at_ms=self._entropy.now_ms())
        self._end(msgspec.structs.replace(call, failure_kind=error.kind, failure_detail=str(error)))

    def complete(self, answer: Answer, *, response: Raw) -> None:
        """The attempt has brought the whole answer; `response` is what the audit keeps of it."""
        call = self._record("completed", completed_at_ms=self._entropy.now_ms(), response=response)
        self._end(
            msgspec.structs.replace(
                call, usage=answer.usage, finish_reason=answer.finish_reason or None,
                response_model=answer.response_model,
            )
        )  # fmt: skip

    def keep_request(self, number: int, value: bytes) -> None:
        """`value` is what the attempt of that number sent, from 0; those behind it sent the same."""
        self.calls[number] = msgspec.structs.replace(self.calls[number], request=Raw(value))

    def _end(self, call: ModelCallRecord) -> None:
        self.calls.append(call)
        self._began_ms = self._status = self._fold = None

    def _record(self, state: _State, *, completed_at_ms: int, response: Raw = NOTHING) -> ModelCallRecord:
        fold = self._fold
        assert self._began_ms is not None, "an attempt begins before it ends"
        return ModelCallRecord(
            round=self._round,
            state=state,
            request_sequence=self._sequence(),
            response=response,
            usage=_REPORTED_NOTHING if fold is None else fold.usage,
            status=self._status,
            streamed=fold is not None and fold.has_content,
            ended=fold is not None and fold.has_ended,
            started_at_ms=self._began_ms,
            completed_at_ms=completed_at_ms,
        )
