"""What a summary is made of: which stored turns it covers, and how they are shown to the summarizer. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from peen.context.count import text_tokens
from peen.context.pictures import describe
from peen.context.turns import StoredTurn, stored_turns
from peen.context.units import Unit
from peen.wire.records import MessageRecord
from peen.wire.summary import StandsFor, transcript_text
from peen.wire.turncalls import HistoryMessage

GOAL: Final = 0.5
"""Part of the prompt budget that a compaction aims at: after one that only just fits, the next would follow at once."""
_CUTS: Final = (8000, 2000, 500, 120)
"""Characters that are shown of one message: the first of these with which everything fits."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The summary that is in force: the messages up to `to_sequence` are not sent any more."""

    sequence: int
    from_sequence: int
    to_sequence: int
    text: str
    missing: StandsFor


@dataclass(frozen=True, slots=True)
class Source:
    """The stored messages that a new summary covers beside those of the one before it."""

    rows: Sequence[HistoryMessage]
    units: int
    tokens: int
    """What is sent of them now counts so much."""

    @property
    def to_sequence(self) -> int:
        return self.rows[-1].sequence


def choose_source(history: Sequence[HistoryMessage], units: Iterable[Unit], *, total: int, goal: int) -> Source | None:
    """The fewest whole turns whose summary brings the prompt from `total` down to `goal`; all there are, if those are
    too few; None if there are none.

    `history` are the stored messages behind the last summary, every turn of it ended; `units` what is sent of them.
    `total` is what would be sent with the new summary and nothing covered by it yet; both are counts. The newest
    completed turn and what follows it always stay; where none has completed, the newest turn does.
    """
    turns = list(stored_turns(history))
    completed = [at for at, turn in enumerate(turns) if _is_completed(turn)]
    ready = turns[: completed[-1] if completed else max(len(turns) - 1, 0)]
    sent: dict[int, list[int]] = defaultdict(list)
    for unit in units:
        sent[unit.through].append(unit.tokens)
    left, covered, whole = total, 0, Source([], 0, 0)
    rows: list[HistoryMessage] = []
    for turn, following in zip(ready, turns[1:], strict=False):
        if whole.rows and left <= goal:
            break
        own = sent[turn.through]
        left -= sum(own)
        covered += len(own)
        rows += turn.rows
        # A decision about paused work and what it goes on with are one: no summary ends between the two.
        if rows[-1].turn != following.rows[0].turn:
            whole = Source(list(rows), covered, total - left)
    return whole if whole.rows else None


def transcript(
    rows: Sequence[HistoryMessage], before: str | None, *, most: int, count: Callable[[str], int] = text_tokens
) -> str:
    """The messages as a summarizer reads them, at most `most` tokens: long ones are cut first, then the middle goes.

    `before` is the summary that the new one takes over.
    """
    for cut in _CUTS:
        text = "\n".join(_lines(rows, before, cut))
        size = count(text)
        if size <= most:
            return transcript_text(text)
    room = len(text) * most // max(size, 1)
    return transcript_text(shortened(text, room))


def shortened(text: str, most: int) -> str:
    """Beginning and end of `text`, about `most` characters together, with the number of those in between."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[len(text) - tail :]}"


def stands_for(earlier: Earlier | None, rows: Sequence[HistoryMessage]) -> StandsFor:
    """What is not sent any more once these rows are covered, too."""
    before = StandsFor(0, 0) if earlier is None else earlier.missing
    asked = sum(Unit((row.message,), 0).is_request for row in rows)
    return StandsFor(before.messages + len(rows), before.requests + asked)


def _is_completed(turn: StoredTurn) -> bool:
    """Whether a stored turn ended with an answer: what ends otherwise has a system message behind it."""
    last = turn.own[-1].message
    return last.role == "assistant" and not last.tool_calls


def _lines(rows: Sequence[HistoryMessage], before: str | None, cut: int) -> Iterator[str]:
    if before is not None:
        yield f"earlier summary: {before}"
    names: dict[str | None, str] = {}
    for row in rows:
        yield from _message_lines(row.message, names, cut)


def _message_lines(message: MessageRecord, names: dict[str | None, str], cut: int) -> Iterator[str]:
    if message.role == "tool":
        outcome = "error of" if message.is_error else "result of"
        yield f"{outcome} {names.get(message.tool_call_id, 'a call')}: {shortened(message.content, cut)}"
        return
    if message.content.strip():
        yield f"{message.role}: {shortened(message.content, cut)}"
    for image in message.images:
        yield f"image: {describe(image)}"
    for call in message.tool_calls or ():
        names[call.id] = call.name
        yield f"call of {call.name}: {shortened(bytes(call.arguments).decode(), cut)}"
