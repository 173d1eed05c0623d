"""Characters that a provider cut in two. Pure.

JSON writes a character outside the basic plane as two escapes, `\\ud83d` and `\\ude42`, and some servers cut an answer
between them. Each half alone is no text that could be stored or sent: what is here puts them together again, and makes
U+FFFD of a half whose other one never comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from peen.model.stream import CallDelta, CallStopped, Finished, StreamEvent, TextDelta, ThinkingDelta

T = TypeVar("T")

_LOST: Final = "\ufffd"
_HALF: Final = re.compile("[\ud800-\udfff]")
_INNER: Final = re.compile("(?<=.)[\udc00-\udfff]|[\ud800-\udbff](?=.)", re.DOTALL)
_STREAMED: Final = frozenset({
    "content", "text", "reasoning_content", "reasoning", "thinking", "refusal", "arguments", "delta",
})  # fmt: skip
"""Fields whose text goes on in the next event, so that a half at either end may find its other one there."""


def decode_with_halves(data: bytes, wanted: type[T]) -> T:
    """What `data` holds, as `wanted`, where msgspec refused it.

    A half is left at the end of a text that goes on in the next event; it is lost everywhere else.
    Raises: msgspec.DecodeError if the data is not valid for another reason.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        raise msgspec.DecodeError("it is not valid JSON")
    try:
        return msgspec.convert(_clean(json.loads(data.decode())), wanted)
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError(f"it is not valid JSON: {type(exc).__name__}") from exc


def without_halves(data: bytes) -> bytes:
    """The JSON of `data` with every half lost. Raises: msgspec.DecodeError."""
    try:
        return msgspec.json.encode(_clean(json.loads(data.decode()), goes_on=False))
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError(f"it is not valid JSON: {type(exc).__name__}") from exc


class Mender:
    """Takes the events of one answer; gives them back with every character whole."""

    def __init__(self) -> None:
        self._halves: dict[tuple[type[StreamEvent], int], str] = {}

    def mend(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """The same, but a first half at the end of a piece waits for the next piece of the same kind."""
        mended: list[StreamEvent] = []
        for event in events:
            match event:
                case TextDelta(text=text):
                    self._add(mended, (TextDelta, 0), text, TextDelta)
                case ThinkingDelta(text=text):
                    self._add(mended, (ThinkingDelta, 0), text, ThinkingDelta)
                case CallDelta(index=index, json=text):
                    self._add(mended, (CallDelta, index), text, _call_delta(index))
                case CallStopped() | Finished():
                    self._give_up(mended)
                    mended.append(event)
                case _:
                    mended.append(event)
        return mended

    def _add(
        self,
        mended: list[StreamEvent],
        place: tuple[type[StreamEvent], int],
        text: str,
        make: Callable[[str], StreamEvent],
    ) -> None:
        text = self._halves.pop(place, "") + text
        if _joins(text):  # two halves side by side are still two: UTF-16 makes one character of them
            text = text[:2].encode("utf-16-le", "surrogatepass").decode("utf-16-le") + text[2:]
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[place] = text[-1]
            text = text[:-1]
        if text:
            mended.append(make(_HALF.sub(_LOST, text)))

    def _give_up(self, mended: list[StreamEvent]) -> None:
        for kind, index in self._halves:
            make = _call_delta(index) if kind is CallDelta else TextDelta if kind is TextDelta else ThinkingDelta
            mended.append(make(_LOST))
        self._halves.clear()


def _joins(text: str) -> bool:
    return len(text) > 1 and "\ud800" <= text[0] <= "\udbff" and "\udc00" <= text[1] <= "\udfff"


def _call_delta(index: int) -> Callable[[str], StreamEvent]:
    return lambda text: CallDelta(index, text)


def _clean(value: Any, field: str = "", *, goes_on: bool = True) -> Any:
    """`value` without halves, but for those at the ends of texts that go on."""
    if isinstance(value, str):
        return (_INNER if goes_on and field in _STREAMED else _HALF).sub(_LOST, value)
    if isinstance(value, dict):
        # Arguments that are an object come whole, whatever their fields are called.
        inner = goes_on and field != "arguments"
        return {_HALF.sub(_LOST, key): _clean(each, key, goes_on=inner) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, field, goes_on=goes_on) for each in value]
    return value
