"""Units: what a conversation is cut into. One is never taken apart, so that every call keeps its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from peen.context.count import message_tokens
from peen.wire.records import MessageRecord
from peen.wire.summary import OMITTED_KIND, StandsFor, omitted_text


@dataclass(frozen=True, slots=True)
class Unit:
    """A message that stands by itself, or an answer with the results of its calls; `tokens` is their count.

    `through` is the last message sequence of the stored turn that it belongs to; 0 for what the running turn adds.
    A note in the place of units that were dropped has in `gone` what it stands for, by their `through`, in order.
    """

    messages: tuple[MessageRecord, ...]
    tokens: int
    through: int = 0
    gone: tuple[tuple[int, StandsFor], ...] = ()

    @property
    def is_exchange(self) -> bool:
        """Whether it is an answer with calls."""
        return bool(self.messages[0].tool_calls)

    @property
    def is_request(self) -> bool:
        """Whether it asks for something: a message of the user, or the handler that woke the session."""
        first = self.messages[0]
        return first.role == "user" and (not first.injected or first.injected_kind == "handler")

    @property
    def missing(self) -> tuple[tuple[int, StandsFor], ...]:
        """What is not there once this unit is gone, by `through`."""
        if self.gone:
            return self.gone
        is_answer = self.messages[0].role == "assistant"
        return ((self.through, StandsFor(len(self.messages), int(self.is_request), int(is_answer))),)


def droppable(units: Sequence[Unit]) -> list[int]:
    """Positions of the units that may be left out, oldest first.

    The newest request always stays, and so does what the model has not answered yet: the last answer's calls with their
    results, and everything behind the last answer.
    """
    answers = [at for at, unit in enumerate(units) if unit.messages[0].role == "assistant"]
    live = 0
    if answers:
        live = answers[-1] if units[answers[-1]].is_exchange else answers[-1] + 1
    newest_request = max((at for at, unit in enumerate(units) if unit.is_request), default=-1)
    return [at for at in range(live) if at != newest_request and not units[at].gone]


def note(gone: Iterable[tuple[int, StandsFor]]) -> Unit:
    """A unit that says what was dropped in its place."""
    merged: list[tuple[int, StandsFor]] = []
    for through, missing in gone:
        if merged and merged[-1][0] == through:
            merged[-1] = through, merged[-1][1].then(missing)
        else:
            merged.append((through, missing))
    text = omitted_text(reduce(StandsFor.then, (missing for _, missing in merged)))
    message = MessageRecord(role="user", content=text, injected=True, injected_kind=OMITTED_KIND)
    return Unit((message,), message_tokens(message), gone=tuple(merged))


def without(units: Iterable[Unit], is_dropped: Callable[[int], bool]) -> list[Unit]:
    """The units but those at positions that are dropped; a note stands where something went."""
    left: list[Unit] = []
    gone: list[tuple[int, StandsFor]] = []
    for at, unit in enumerate(units):
        if unit.gone or is_dropped(at):
            gone += unit.missing
            continue
        if gone:
            left.append(note(gone))
            gone = []
        left.append(unit)
    return [*left, note(gone)] if gone else left


def plan_drop(units: Sequence[Unit], *, excess: int) -> list[int]:
    """Positions of the oldest units that count `excess` tokens together; all that may go, if they are fewer."""
    gone: list[int] = []
    for at in droppable(units):
        if excess <= 0:
            break
        gone.append(at)
        excess -= units[at].tokens
    return gone
