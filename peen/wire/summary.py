"""What stands in a model's input for history that is not there, in words that programs can read as well.

A summary, and a note about what was left out, are messages of the user that begin with a tag; its attributes say how
many messages they stand for, and how many of these had asked for something or answered. A summarizer is sent the
history in a tag of its own.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SUMMARY_KIND: Final = "summary"
OMITTED_KIND: Final = "omitted"
"""Values of `injectedKind`."""

_TAG: Final = re.compile(r'<(?:summary|omitted) messages="(\d+)" requests="(\d+)"(?: answers="(\d+)")?>')
_TRANSCRIPT: Final = "<transcript>\n"
_LEAD: Final = (
    "Summary of the earlier conversation. It stands in the place of its messages, which you do not see any more."
)
_LEFT_OUT: Final = (
    "Earlier messages and tool results of this conversation were left out, since the context window is full. Look "
    "again at files and state that you need, rather than relying on what you no longer see."
)


class StandsFor(NamedTuple):
    """How many messages are not there, how many of them began a turn or were queued into one, and how many answers of
    the model behind the last of these."""

    messages: int
    requests: int
    answers: int = 0

    def then(self, later: StandsFor) -> StandsFor:
        """Both, one behind the other."""
        answers = later.answers if later.requests else self.answers + later.answers
        return StandsFor(self.messages + later.messages, self.requests + later.requests, answers)


def summary_text(text: str, standing: str, missing: StandsFor) -> str:
    """The whole message: its lead line, the summarizer's words, and how things stood when it was written."""
    parts = [f"{_tag('summary', missing)}\n{_LEAD}", text.strip().replace("</summary>", "</ summary>"), standing]
    return "\n\n".join(part for part in parts if part) + "\n</summary>"


def omitted_text(missing: StandsFor) -> str:
    """The note in the place of messages that were dropped."""
    return f'{_tag("omitted", missing)[:-1]} answers="{missing.answers}">{_LEFT_OUT}</omitted>'


def stands_for(content: str) -> StandsFor | None:
    """What a summary or a note stands for; None for any other message."""
    match = _TAG.match(content)
    return None if match is None else StandsFor(int(match[1]), int(match[2]), int(match[3] or 0))


def transcript_text(lines: str) -> str:
    """What a summarizer is asked about."""
    inner = lines.replace("</transcript>", "</ transcript>")
    return f"{_TRANSCRIPT}{inner}\n</transcript>"


def transcript_lines(content: str) -> str | None:
    """The lines inside of such a message; None for any other one."""
    if not content.startswith(_TRANSCRIPT):
        return None
    return content.removeprefix(_TRANSCRIPT).removesuffix("\n</transcript>")


def _tag(name: str, missing: StandsFor) -> str:
    return f'<{name} messages="{missing.messages}" requests="{missing.requests}">'
