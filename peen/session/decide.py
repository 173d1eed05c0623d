"""What becomes of a message. Pure: no clock, no store, no sockets."""

from __future__ import annotations

from dataclasses import dataclass

from peen.errors import Refused, ValidationFailed
from peen.session.state import Known, Outcome
from peen.wire.client import MessageSend
from peen.wire.feed import Completed, Failed


@dataclass(frozen=True, slots=True)
class Start:
    """Accept the message; it opens a turn."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Accept the message; it waits for the end of the running turn's round."""


@dataclass(frozen=True, slots=True)
class Join:
    """The same message opened the turn that runs: answer when that ends."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same message was answered before: answer the same."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Refuse:
    """Store nothing."""

    error: Refused


Decision = Start | Queue | Join | Repeat | Refuse


@dataclass(frozen=True, slots=True)
class RunningSettings:
    """Settings of the running turn: a message that joins it may repeat them and not change them."""

    model: str
    reasoning_effort: str | None


def admit(message: MessageSend, *, digest: bytes, known: Known | None, running: RunningSettings | None) -> Decision:
    """A resend is recognised by its frame id and digest; while a turn runs, other messages join its queue."""
    if known is not None:
        if known.digest != digest:
            return Refuse(
                ValidationFailed("id: this frame id was used for another message; give every message its own id")
            )
        return Join() if known.outcome is None else Repeat(known.outcome)
    if running is None:
        return Start()
    problem = _changed_setting(message, running)
    return Queue() if problem is None else Refuse(ValidationFailed(problem))


def _changed_setting(message: MessageSend, running: RunningSettings) -> str | None:
    if message.system_prompt is not None:
        return "data.systemPrompt: a turn is running, and its prompt cannot change; send this when it has ended"
    if message.model not in (None, running.model):
        return f"data.model: the running turn uses {running.model}; send this when it has ended, or leave model out"
    if message.reasoning_effort not in (None, running.reasoning_effort):
        own = running.reasoning_effort or "none"
        return f"data.reasoningEffort: the running turn uses {own}; send this when it has ended, or leave it out"
    return None


def acknowledgement(outcome: Outcome) -> Completed | Failed:
    """What the sender of a message hears when its turn has ended."""
    match outcome.state:
        case "completed":
            return Completed(queued=False)
        case "queued":
            return Completed(queued=True)
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
