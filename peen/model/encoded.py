"""Conversations in a provider's words, kept so that a round pays only for the messages that are new in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peen.model.stream import ModelRequest
from peen.model.strict import StrictCheck
from peen.wire.records import MessageRecord

KEPT: Final = 16
"""Conversations whose encoded messages are kept: a root and its children at work. The one used longest ago goes."""
KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much they may be together; the newest one is always kept."""

EncodeMessage = Callable[[MessageRecord, str], bytes]
"""A message as one or more JSON objects with commas between; the second argument is the model that will read it."""


class EncodedConversations:
    """Encodes messages. Remembers, for a few conversations, what it has encoded and checked already."""

    def __init__(self, encode: EncodeMessage) -> None:
        self._encode = encode
        self._kept: list[_Encoded] = []

    def messages(self, request: ModelRequest) -> bytearray:
        """The messages of `request`, as JSON objects with commas between; for reading, until the next call.

        Raises: ModelError `invalid_request` as `strict_request_check` does.
        """
        messages = request.messages if isinstance(request.messages, list) else list(request.messages)
        found = next((kept for kept in self._kept if kept.is_prefix_of(messages, request.model_id)), None)
        if found is None:
            found = _Encoded(self._encode, request.model_id)
        else:
            self._kept.remove(found)
        found.advance(request, messages)
        self._kept = [found, *self._kept[: KEPT - 1]]
        while len(self._kept) > 1 and sum(len(kept.json) for kept in self._kept) > KEPT_BYTES:
            self._kept.pop()
        return found.json


class _Encoded:
    """The messages of one conversation so far, checked."""

    def __init__(self, encode: EncodeMessage, model_id: str) -> None:
        self.json = bytearray()
        self._encode, self._model_id = encode, model_id
        self._messages: list[MessageRecord] = []
        self._check = StrictCheck()

    def is_prefix_of(self, messages: list[MessageRecord], model_id: str) -> bool:
        # Within a turn these are the same objects, which the comparison sees without looking into them.
        return self._model_id == model_id and messages[: len(self._messages)] == self._messages

    def advance(self, request: ModelRequest, messages: list[MessageRecord]) -> None:
        new = messages[len(self._messages) :]
        self._check.take(request, new)
        for message in new:
            if self.json:
                self.json += b","
            self.json += self._encode(message, self._model_id)
        self._messages += new
