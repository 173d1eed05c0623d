"""Stored messages by the turns that they stand in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from peen.wire.turncalls import HistoryMessage


@dataclass(slots=True)
class StoredTurn:
    """One turn as it stands in the transcript, or a part of it: one that was paused may go on behind other turns.

    `rows` are everything from its first message to the next turn, in order. `decided` of them are results of calls of
    earlier turns: somebody has decided about paused work meanwhile. `own` are the others.
    """

    rows: list[HistoryMessage] = field(default_factory=list)
    own: list[HistoryMessage] = field(default_factory=list)
    decided: list[HistoryMessage] = field(default_factory=list)

    @property
    def through(self) -> int:
        """Sequence of its last message."""
        return self.rows[-1].sequence


def stored_turns(history: Iterable[HistoryMessage]) -> Iterator[StoredTurn]:
    """The turns of these messages, each once it is whole."""
    turn, number = StoredTurn(), -1
    for row in history:
        if row.turn < number and row.message.role == "tool":
            turn.decided.append(row)
        else:
            if row.turn != number:
                if turn.rows:
                    yield turn
                turn, number = StoredTurn(), row.turn
            turn.own.append(row)
        turn.rows.append(row)
    if turn.rows:
        yield turn
