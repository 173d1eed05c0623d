"""The reasoning of a chat completions answer, put together as its provider takes it back. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw

from peen.model.chatwire import Delta
from peen.model.reasoning import chat_item

_TEXTS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Types of parts whose text goes on from delta to delta, and where it stands."""


class Thought:
    """Takes the deltas of one answer.

    The field is the one that the reasoning comes in. Of several for the same, `reasoning_details` goes back, which may
    be signed or encrypted; without it the one that says most, and of two equal ones `reasoning_content`.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []

    def take(self, delta: Delta) -> None:
        # An empty text counts too: a provider that sends one wants it back.
        if delta.reasoning_content is not None:
            self._texts.setdefault("reasoning_content", []).append(delta.reasoning_content)
        if isinstance(delta.reasoning, str):
            self._texts.setdefault("reasoning", []).append(delta.reasoning)
        for part in delta.reasoning_details or ():
            self._add(part)

    def item(self) -> Raw | None:
        """What is to be kept of the answer; None if it had no reasoning."""
        if self._details:
            return chat_item("reasoning_details", self._details)
        texts = {field: "".join(pieces) for field, pieces in self._texts.items()}
        content, other = texts.get("reasoning_content"), texts.get("reasoning", "")
        if len(other) > len(content or ""):
            return chat_item("reasoning", _whole(other))
        return None if content is None else chat_item("reasoning_content", _whole(content))

    def _add(self, part: dict[str, Any]) -> None:
        last = self._details[-1] if self._details else None
        kind = part.get("type")
        text = _TEXTS.get(kind) if isinstance(kind, str) else None
        if last is None or text is None or (last.get("type"), last.get("index")) != (kind, part.get("index")):
            self._details.append(dict(part))
            return
        said = (last.get(text) or "", part.get(text) or "")
        last |= {name: value for name, value in part.items() if value is not None}
        if all(isinstance(each, str) for each in said):
            last[text] = "".join(said)


def _whole(text: str) -> str:
    """`text` whose characters may have been cut in halves."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
