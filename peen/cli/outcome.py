"""What became of a message, for scripts and for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from peen.cli.ends import CANCELLED, COMPLETED, FAILED, REFUSED, UNFINISHED
from peen.wire.rest import Session, TurnPage, UsedSoFar

SEARCHED_TURNS: Final = 50
"""The turn of a message is among the latest of its session."""

State = Literal["completed", "failed", "cancelled", "interrupted", "refused", "unfinished"]
"""`refused`: nothing was stored. `unfinished`: the turn had not ended when we stopped looking."""

EXIT_CODES: Final[dict[State, int]] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "cancelled": CANCELLED,
    "interrupted": UNFINISHED,
    "refused": REFUSED,
    "unfinished": UNFINISHED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the message. `error` is for people; `sequence` is the last frame of the turn in the feed.

    `usage` is of the turn that the message opened, `session_usage` of its session; None if nobody asked.
    """

    state: State
    request_id: str | None = None
    text: str = ""
    model: str | None = None
    finish_reason: str | None = None
    code: str | None = None
    error: str | None = None
    reason: str | None = None
    tool_calls: int = 0
    sequence: int | None = None
    usage: UsedSoFar | None = None
    session_usage: UsedSoFar | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]


def with_usage(outcome: Outcome, session: bytes, turns: bytes) -> Outcome:
    """With what was used, from `GET /session` and the latest of `GET /session/turns`.

    A message that joined the turn of another one has no turn of its own.
    """
    found = msgspec.json.decode(turns, type=TurnPage).turns
    own = next((turn.usage for turn in found if turn.request_id == outcome.request_id), None)
    return replace(outcome, usage=own, session_usage=msgspec.json.decode(session, type=Session).usage)


def failure_text(outcome: Outcome, session_id: str | None) -> str:
    """Why there is no answer, and where to look."""
    cause = outcome.error or outcome.reason or "no reason was given"
    match outcome.state:
        case "refused":
            return f"the message was refused and nothing was stored: {cause}"
        case "cancelled":
            return f"the turn was cancelled: {cause}"
        case "interrupted":
            return f"the turn was interrupted: {cause}\nwhat it did is stored: {look_at(session_id)}"
        case "unfinished":
            return f"the turn has not ended: {cause}\nwhat it did is stored: {look_at(session_id)}"
        case _:
            return f"the turn failed: {cause}"


def look_at(session_id: str | None) -> str:
    """How to see what is stored."""
    which = f"show {session_id}" if session_id is not None else "list"
    return f"peen session {which} (while peen run is running)"
