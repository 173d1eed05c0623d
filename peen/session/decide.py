"""What becomes of a message. Pure: no clock, no store, no sockets."""

from __future__ import annotations

from dataclasses import dataclass

from peen.errors import Refused, SessionBusy, ValidationFailed
from peen.session.state import Known, Outcome
from peen.wire.feed import Completed, Failed


@dataclass(frozen=True, slots=True)
class Start:
    """Accept the message; it opens a turn."""


@dataclass(frozen=True, slots=True)
class Join:
    """The same message is being worked on: answer when its turn ends."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same message was carried out: answer as it was answered."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Refuse:
    """Store nothing."""

    error: Refused


Decision = Start | Join | Repeat | Refuse


def admit(*, known: Known | None, digest: bytes, running_turn_id: str | None) -> Decision:
    """A resend is recognised by its frame id and digest; while a turn runs, nothing else is accepted."""
    if known is not None:
        if known.digest != digest:
            return Refuse(
                ValidationFailed("id: this frame id was used for another message; give every message its own id")
            )
        return Join() if known.outcome is None else Repeat(known.outcome)
    if running_turn_id is not None:
        return Refuse(SessionBusy("a turn is running in this session; send the message again when it has ended"))
    return Start()


def acknowledgement(outcome: Outcome) -> Completed | Failed:
    """What the sender of a message hears when its turn has ended."""
    match outcome.state:
        case "completed":
            return Completed(queued=False)
        case "cancelled":
            return Failed(code="TURN_CANCELLED", message="the turn was cancelled")
        case "interrupted":
            return Failed(
                code="INTERNAL_SERVER_ERROR", message="the turn was interrupted before it finished",
                reason=outcome.reason or "interrupted",
            )  # fmt: skip
        case _:
            return Failed(
                code="INTERNAL_SERVER_ERROR", message="the turn failed; its turn.failed frame says why",
                reason=outcome.reason or "agentRun",
            )  # fmt: skip
