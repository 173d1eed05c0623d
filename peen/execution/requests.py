"""What was sent to the model, kept as it was sent: a list of messages that grows, saved at the price of what is new."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from peen.context.count import message_tokens, text_tokens
from peen.model.reasoning import items_for
from peen.model.stream import ModelInfo, ModelRequest
from peen.store.blobs.encoder import Encoder
from peen.store.blobs.text import Blob
from peen.wire.records import NOTHING, MessageRecord, NewBlob

_encode: Final = msgspec.json.encode


class SentRequests:
    """The requests of one execution, in the order of its rounds.

    Each is saved as JSON, `{"model", "reasoningEffort"?, "system", "tools": [...], "messages": [...]}` in this order.
    `known` are hashes of blobs that the store has for this session; all executions of a worker share them, so that a
    turn does not send the history again that the turn before it has sent.
    """

    def __init__(self, known: set[bytes], model: ModelInfo) -> None:
        self._known, self._encoder, self._model = known, Encoder(known), model
        self._handed_out: set[bytes] = set()
        self._length = 0
        self._messages: Sequence[MessageRecord] = ()
        self._around: tuple[object, bytes] = (None, b"")

    def save(self, request: ModelRequest) -> tuple[bytes, list[NewBlob]]:
        """The saved value of this request, and the blobs that it names and the store has not got yet."""
        self._follow(request.messages)
        saved = self._encoder.save(self._before(request), b"}")
        self._handed_out = {blob.hash for blob in saved.new_blobs}
        return saved.value, _travelling(saved.new_blobs)

    def forget_last(self) -> None:
        """The request saved last was not stored, as far as is known: nor were its blobs. No other is saved here."""
        self._known -= self._handed_out

    def blobs(self, hashes: Collection[bytes]) -> list[NewBlob]:
        """Those blobs of the request saved last, which the store turned out not to have."""
        wanted = set(hashes)
        return _travelling(self._encoder.blobs(wanted))

    def _follow(self, messages: Sequence[MessageRecord]) -> None:
        kept = self._length
        # A conversation that only grew is still the same list; what was left out of one, or summarized, makes another.
        if kept == 0 or (messages is self._messages and len(messages) >= kept):
            for message in messages[kept:]:
                self._encoder.append(_encode(as_sent(message, self._model)))
        else:
            self._encoder.replace_all(_encode(as_sent(message, self._model)) for message in messages)
        self._length, self._messages = len(messages), messages

    def _before(self, request: ModelRequest) -> bytes:
        """The text in front of the list of messages; the same object as long as nothing of it changes."""
        parts = (request.model_id, request.reasoning_effort, request.system, request.tools)
        if self._around[0] != parts:
            head: dict[str, object] = {"model": request.model_id}
            if request.reasoning_effort is not None:
                head["reasoningEffort"] = request.reasoning_effort
            head |= {"system": request.system, "tools": request.tools}
            self._around = (parts, _encode(head)[:-1] + b',"messages":')
        return self._around[1]


def as_sent(message: MessageRecord, model: ModelInfo) -> MessageRecord:
    """The message with what goes to this model: without the name of the one that wrote it, and without reasoning.

    Reasoning of its own that a model wants back stays.
    """
    if message.role != "assistant":
        return message
    is_own = message.model == model.name
    returns = bool(items_for(message, upstream=model.connection_name, model=model.model_id))
    return msgspec.structs.replace(
        message,
        model=None,
        thinking=message.thinking if is_own and model.thinking_returns else None,
        provider_reasoning=message.provider_reasoning if returns else NOTHING,
    )


def sent_tokens(message: MessageRecord, model: ModelInfo) -> int:
    """Tokens of the message for this model: reasoning counts where it is sent."""
    sent = as_sent(message, model)
    return message_tokens(sent) + text_tokens(sent.thinking or "")


def _travelling(blobs: list[Blob]) -> list[NewBlob]:
    return [NewBlob(digest=blob.hash, data=blob.data) for blob in blobs]
