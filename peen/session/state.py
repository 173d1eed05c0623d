"""What one conversation holds in memory. All of it can be lost: the store has what matters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from peen.session.ending import Ending
from peen.wire.client import MessageSend
from peen.wire.records import ImageRef


class Origin(Protocol):
    """The socket that sent a message."""

    @property
    def session_filter(self) -> str | None:
        """The only session that this socket hears, or None for all."""

    def reply(self, frame: bytes) -> None:
        """Send a ready frame to this socket alone. Never blocks and never raises."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A well-formed message, in the order of receipt over all sockets."""

    message: MessageSend
    origin: Origin
    met_stop: int | None = None
    """Number of the Stop that was under way when the message came; another Stop after that cancels its wait."""


@dataclass(slots=True)
class RunningTurn:
    """A turn between acceptance and its terminal commit, and who waits to hear of it.

    The bytes of the message's images are not kept with it: `images` says where they are stored.
    """

    turn_id: str
    request_id: str
    message: MessageSend
    waiting: list[tuple[str, Origin]] = field(default_factory=list)
    """(client frame id, its socket): the first submission and every resend of it."""
    images: list[ImageRef] = field(default_factory=list)
    execution_id: str | None = None
    """Set for a turn that goes on after a pause."""
    is_stopped: bool = False
    """Whether the fence of a Stop is stored: whatever happens next, the turn ends as cancelled."""
    taken: Ending | None = None
    """How it ends because its execution was taken from a worker that let all leases run out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message, as far as an acknowledgement tells.

    `state` is that of its turn, never `running`; or `queued` for a message that joined a running turn.
    """

    state: str
    reason: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Known:
    """An earlier acceptance of the same frame id. `outcome` is None while its turn has not ended."""

    digest: bytes
    outcome: Outcome | None
