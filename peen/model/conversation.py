"""Where a conversation stands, read from the messages of a request alone.

The scripted models keep no memory of their own, so that a restarted worker, a repeated attempt and a second
conversation all get the answer that belongs to what they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord
from peen.wire.summary import stands_for, transcript_lines


class Position(Struct, frozen=True):
    """`turn` and `round` count from 0; `round` is the number of answers that the turn has had already."""

    turn: int
    round: int


class CallResult(Struct, frozen=True):
    """A finished call of the current turn."""

    call: ToolCallRecord
    content: str
    is_error: bool


def begins_turn(message: MessageRecord) -> bool:
    """Whether a message asks for something new: a typed one, or the handler that woke the session.

    What else the service injects (skills, events, hook text, images, summaries) belongs to the turn it arrives in.
    """
    return message.role == "user" and (not message.injected or message.injected_kind == "handler")


def to_summarize(messages: Sequence[MessageRecord]) -> str | None:
    """The lines of the conversation that the model is to sum up; None if it is asked for anything else."""
    return transcript_lines(messages[0].content) if len(messages) == 1 and messages[0].role == "user" else None


def position(messages: Sequence[MessageRecord]) -> Position:
    """The turn is the number of messages that began one, minus 1; the round counts the answers after the last.

    Turns that failed or were stopped are in the history with their message, so they count. A message that was
    queued into a running turn counts as a turn of its own from where it was delivered. Messages that a summary stands
    for, or that were left out, count as if they were there.
    """
    begun, answers = 0, 0
    for message in messages:
        missing = stands_for(message.content) if message.role == "user" else None
        if missing is not None:
            begun += missing.requests
            answers = missing.answers + (0 if missing.requests else answers)
            continue
        if message.role == "assistant":
            answers += 1
        elif begins_turn(message):
            begun, answers = begun + 1, 0
    return Position(max(begun - 1, 0), answers)


def request_text(messages: Sequence[MessageRecord]) -> str:
    """What was asked last: several messages that arrived together are one text of several lines."""
    asked: list[str] = []
    for message in reversed(messages):
        if begins_turn(message):
            asked.append(message.content)
        elif asked and message.role != "user":
            break
    return "\n".join(reversed(asked))


def turn_images(messages: Sequence[MessageRecord]) -> list[ImageRef]:
    """Images of what was asked last, and of what has come since, in their order."""
    start = len(messages)
    while start and not begins_turn(messages[start - 1]):
        start -= 1
    while start and messages[start - 1].role == "user":
        start -= 1
    return [image for message in messages[start:] for image in message.images]


def describe_images(images: Sequence[ImageRef]) -> str:
    """Such as `image/png (70 bytes)`, with commas between."""
    return ", ".join(f"{image.media_type} ({image.size_bytes} bytes)" for image in images)


def turn_results(messages: Sequence[MessageRecord]) -> list[CallResult]:
    """The results that the current turn has received, in their order."""
    start = max((index for index, message in enumerate(messages) if begins_turn(message)), default=0)
    calls: dict[str, ToolCallRecord] = {}
    results: list[CallResult] = []
    for message in messages[start:]:
        for call in message.tool_calls or ():
            calls[call.id] = call
        if message.role == "tool" and message.tool_call_id in calls:
            results.append(CallResult(calls[message.tool_call_id], message.content, message.is_error))
    return results
