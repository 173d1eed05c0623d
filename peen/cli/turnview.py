"""Frames of one session folded into what a person or a script wants to know about one message. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec import Raw

from peen.cli.ends import printable
from peen.cli.frames import FOLDED, Data, Frame, decode_data, decode_frame
from peen.cli.outcome import Outcome, State

_INTERRUPTIONS: Final = frozenset({"interrupted", "shutdown"})
_TELLING: Final = ("command", "path", "pattern", "query", "directory", "source")  # arguments that say most
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The answer to our own frame. Without a request id the message was refused and nothing stored."""

    accepted: bool
    request_id: str | None
    queued: bool
    code: str
    message: str
    reason: str | None


@dataclass(slots=True)
class _Turn:
    """One request as the frames told it so far."""

    request_id: str
    model: str | None = None
    state: State | None = None
    text: str = ""
    finish_reason: str | None = None
    reason: str | None = None
    error: str | None = None
    tool_calls: int = 0
    sequence: int | None = None
    doing: str = "starting"
    running: dict[str, str] = field(default_factory=dict)
    queue: Literal["", "waiting", "delivered"] = ""
    """For a message that joined a running turn: whether that turn's model has it. Then that turn answers it."""


class TurnView:
    """Follows one message, among whatever else happens in its session.

    `after` is the sequence of the last frame that is not of interest.
    """

    def __init__(self, frame_id: str, message: str, *, after: int) -> None:
        self.last_sequence = after
        self.acknowledged: Acknowledgement | None = None
        self._frame_id, self._message = frame_id, message
        self._turns: dict[str, _Turn] = {}
        self._ours: _Turn | None = None  # a guess by the text, until the acknowledgement names the request
        self._latest: _Turn | None = None  # the one that did something last

    def fold(self, payload: bytes) -> bool:
        """Take one frame. False if it was taken before: the feed repeats what came live, and who asks again is told
        again."""
        try:
            frame = decode_frame(payload)
        except (msgspec.MsgspecError, UnicodeError):
            return True  # unknown to this version; it is passed on all the same
        sequence = frame.metadata.sequence
        if sequence is not None:
            if sequence <= self.last_sequence:
                return False
            self.last_sequence = sequence
        elif frame.triggered_by == self._frame_id and self.acknowledged is not None:
            return False
        if frame.type in FOLDED:
            try:
                self._take(frame, decode_data(frame.data))
            except (msgspec.MsgspecError, UnicodeError):
                return True
        return True

    @property
    def is_settled(self) -> bool:
        """Nothing more is to come: the message was refused, or its turn has ended and that was acknowledged."""
        ack = self.acknowledged
        if ack is None or ack.request_id is None or not ack.queued:
            return ack is not None
        return self._turns[ack.request_id].state is not None

    @property
    def is_stored(self) -> bool:
        """Whether the message is known to have been accepted."""
        return self._ours is not None

    @property
    def is_guest(self) -> bool:
        """The message waits for, or has joined, a turn that it did not open."""
        turn = self._ours
        return turn is not None and turn.queue != "" and turn.model is None

    @property
    def model(self) -> str | None:
        """The model that works on the message, once that is known."""
        return None if self._ours is None else self._ours.model

    @property
    def needs_feed(self) -> bool:
        """The message is answered, but the end of its turn went by before we looked: it stands in the feed."""
        ack = self.acknowledged
        if ack is None or ack.request_id is None or ack.queued:
            return False
        turn = self._turns.get(ack.request_id)
        return turn is None or turn.state is None

    def activity(self) -> str:
        """What happens now, in a few words."""
        turn = self._ours
        if turn is None:
            return "waiting for the session"
        if turn.queue == "waiting":
            return "queued behind the running turn"
        if turn.queue == "delivered" and self._latest is not None:
            turn = self._latest
        if not turn.running:
            return turn.doing
        *others, latest = turn.running.values()
        return f"{latest} (+{len(others)})" if others else latest

    def outcome(self) -> Outcome:
        """What is known by now."""
        ack = self.acknowledged
        if ack is not None and ack.request_id is None and not ack.accepted:
            return Outcome(state="refused", code=ack.code, error=ack.message, reason=ack.reason)
        turn = self._ours if ack is None or ack.request_id is None else self._turns.get(ack.request_id)
        if turn is None or turn.state is None:
            return _by_acknowledgement(ack, turn)
        return Outcome(
            state=turn.state,
            request_id=turn.request_id,
            text=turn.text,
            model=turn.model,
            finish_reason=turn.finish_reason,
            error=turn.error,
            reason=turn.reason,
            tool_calls=turn.tool_calls,
            sequence=turn.sequence,
        )

    # --- folding

    def _take(self, frame: Frame, data: Data) -> None:
        if frame.type in ("message.completed", "message.failed"):
            if frame.triggered_by == self._frame_id:
                self._acknowledge(frame, data)
            return
        request_id = frame.metadata.request_id
        if request_id is None:
            return
        turn = self._turns.get(request_id)
        if turn is None:
            turn = self._turns[request_id] = _Turn(request_id)
        if frame.type == "userMessage.created":
            if data.message == self._message and self.acknowledged is None:
                self._ours = turn
        elif frame.type in ("userMessage.queued", "userMessage.delivered"):
            turn.queue = "waiting" if frame.type == "userMessage.queued" else "delivered"
        elif frame.type in ("turn.completed", "turn.failed", "turn.cancelled"):
            _end(turn, frame, data)
            for queued in self._turns.values():
                if queued.queue and queued.state is None:
                    _end_queued(queued, turn)
        else:
            self._latest = turn
            _go_on(turn, frame.type, data)

    def _acknowledge(self, frame: Frame, data: Data) -> None:
        request_id = frame.metadata.request_id
        self.acknowledged = Acknowledgement(
            accepted=frame.type == "message.completed",
            request_id=request_id,
            queued=data.queued,
            code=data.code,
            message=data.message,
            reason=data.reason,
        )
        self._ours = None if request_id is None else self._turns.setdefault(request_id, _Turn(request_id))


def _end(turn: _Turn, frame: Frame, data: Data) -> None:
    if frame.type == "turn.completed":
        turn.state, turn.text, turn.finish_reason = "completed", data.text, data.finish_reason
        turn.model = data.model or turn.model
    elif frame.type == "turn.cancelled":
        turn.state = "cancelled"
    else:
        turn.state = "interrupted" if data.reason in _INTERRUPTIONS else "failed"
    turn.reason, turn.error, turn.sequence = data.reason, data.error, frame.metadata.sequence
    turn.running.clear()


def _end_queued(queued: _Turn, ended: _Turn) -> None:
    """What the end of a turn means for a message that had joined it."""
    if queued.queue == "waiting" and ended.state == "completed":
        return  # a turn follows that has it
    queued.state, queued.reason, queued.sequence = ended.state, ended.reason, ended.sequence
    queued.tool_calls = ended.tool_calls
    if queued.queue == "delivered":
        queued.text, queued.model, queued.finish_reason = ended.text, ended.model, ended.finish_reason
        queued.error = ended.error
    else:
        queued.state, queued.tool_calls = "interrupted", 0
        queued.error = f"the turn that the message waited for was {ended.state} before it read it"


def _go_on(turn: _Turn, frame_type: str, data: Data) -> None:
    match frame_type:
        case "turn.started":
            turn.model, turn.doing = data.model, "waiting for the model"
        case "tool.use":
            turn.tool_calls += 1
            turn.running[data.call_id] = _call_text(data.name, data.arguments)
        case "tool.result":
            turn.running.pop(data.call_id, None)
            turn.doing = "waiting for the model"
        case "provider.retry":
            turn.doing = f"waiting for the provider (attempt {data.attempt} failed)"
        case "content_block_start":
            kinds = {"text": "answering", "thinking": "thinking", "tool_use": "preparing a call"}
            turn.doing = kinds.get(data.content_block.type, turn.doing)


def _call_text(name: str, arguments: Raw) -> str:
    """The tool and the argument that says most, on one short line."""
    try:
        members = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, UnicodeError):
        members = None
    shown = ""
    if isinstance(members, dict):
        told = [members[key] for key in _TELLING if isinstance(members.get(key), str)]
        told += [value for value in members.values() if isinstance(value, str)]
        shown = printable(told[0].strip()) if told else ""
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
    return f"{printable(name)} {shown}".rstrip()


def _by_acknowledgement(ack: Acknowledgement | None, turn: _Turn | None) -> Outcome:
    """For a turn whose end was not seen: as much as its acknowledgement says."""
    state: State = "unfinished"
    if ack is not None and not ack.accepted:
        if ack.code == "TURN_CANCELLED":
            state = "cancelled"
        else:
            state = "interrupted" if ack.reason in _INTERRUPTIONS else "failed"
    return Outcome(
        state=state,
        request_id=turn.request_id if turn is not None else None if ack is None else ack.request_id,
        model=None if turn is None else turn.model,
        code=None if ack is None or ack.accepted else ack.code,
        error=None if ack is None or ack.accepted else ack.message,
        reason=None if ack is None else ack.reason,
        tool_calls=0 if turn is None else turn.tool_calls,
    )
