"""What senders of messages hear: acknowledgements, which are not stored, and come behind the frames that they mean."""

from __future__ import annotations

from collections.abc import Sequence

from peen.entropy import Entropy
from peen.errors import Refused, StorageError
from peen.feed.pump import FeedPump
from peen.session.decide import acknowledgement
from peen.session.state import Origin, Outcome
from peen.wire.feed import Completed, Failed, ack_frame
from peen.wire.websocket import text_frame


class Answers:
    """Acknowledgements of one session."""

    def __init__(self, session_id: str, pump: FeedPump, entropy: Entropy) -> None:
        self._id, self._pump, self._entropy = session_id, pump, entropy

    def announce(self, waiting: Sequence[tuple[str, Origin]], outcome: Outcome) -> None:
        """Tell what became of a message: everybody who hears the session once, and every resend once more, alone.

        `waiting` holds frame id and sender of the message and of each resend. A sender that hears only another session
        is told by itself.
        """
        for number, (frame_id, origin) in enumerate(waiting):
            payload = self._frame(acknowledgement(outcome), frame_id, outcome.request_id)
            if number == 0:
                self._pump.announce(self._id, payload)
            if number > 0 or origin.session_filter not in (None, self._id):
                origin.reply(text_frame(payload))

    def repeat(self, frame_id: str, origin: Origin, outcome: Outcome) -> None:
        """Answer a resend alone, as the message was answered."""
        origin.reply(text_frame(self._frame(acknowledgement(outcome), frame_id, outcome.request_id)))

    def refuse(self, frame_id: str, origin: Origin, error: Refused | StorageError) -> None:
        """Tell the sender alone that nothing was stored, and why."""
        text = error.message if isinstance(error, Refused) else "the disk is full or failing; nothing was stored"
        origin.reply(text_frame(self._frame(Failed(code=error.code, message=text), frame_id, None)))

    def _frame(self, data: Completed | Failed, frame_id: str, request_id: str | None) -> bytes:
        return ack_frame(
            str(self._entropy.uuid4()),
            data,
            self._entropy.now_ms(),
            session_id=self._id,
            request_id=request_id,
            triggered_by=frame_id,
        )
