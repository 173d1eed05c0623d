"""The one shape of a model call: a request goes in, a stream of events comes out.

Every upstream translates its provider's dialect into these events; `peen.model.fold` turns them into an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from msgspec import Raw, Struct

from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, Usage


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of the answer's text, never empty of meaning but of any length."""

    text: str


class ThinkingDelta(Struct, frozen=True, gc=False):
    """A piece of the model's reasoning, for display."""

    text: str


class CallStarted(Struct, frozen=True, gc=False):
    """A tool call begins. `index` names it within this answer; `id` may be empty when the provider gave none."""

    index: int
    id: str
    name: str


class CallDelta(Struct, frozen=True, gc=False):
    """A piece of the arguments' JSON text of call `index`."""

    index: int
    json: str


class CallStopped(Struct, frozen=True, gc=False):
    """The provider closed call `index`: its arguments are whole."""

    index: int


class ReasoningKept(Struct, frozen=True, gc=False):
    """A part of the answer's reasoning that the provider wants back as it is, in its place; never shown.

    `item` is JSON in a form of the upstream's own, which may also stand for what lies between two such parts. With
    `call` it is an object that stands for the call of that index and names it in `id`: by the id that the call is known
    by in the end, which need not be the provider's.
    """

    item: Raw
    call: int | None = None


class UsageReported(Struct, frozen=True):
    """Tokens so far. A later report replaces the fields that it names and leaves the others."""

    usage: Usage


class Finished(Struct, frozen=True, gc=False):
    """The provider ended the answer. Only `UsageReported` may follow.

    `reason` is the provider's own word, except that every word for "the output limit cut it" is given as `length`.
    """

    reason: str
    response_model: str


StreamEvent = (
    TextDelta | ThinkingDelta | CallStarted | CallDelta | CallStopped | ReasoningKept | UsageReported | Finished
)


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One provider request. `model_id` is the provider's own name of the model, without the upstream.

    `images` holds the bytes of all images that the messages name, by their hash (SHA-256, hex).
    """

    model_id: str
    system: str
    messages: Sequence[MessageRecord]
    tools: Sequence[ToolDefinition] = ()
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    images: Mapping[str, bytes] = {}


class ModelInfo(Struct, frozen=True, kw_only=True):
    """One model that an upstream offers. `name` is `<upstream>/<model id>`; a window of None is not published."""

    name: str
    connection_name: str
    model_id: str
    context_window_tokens: int | None = None
    image_input: bool = True
    thinking_returns: bool = False
    """Whether what this model thought is sent back to it, as text."""


@runtime_checkable
class Answered(Protocol):
    """A stream of events that came over HTTP."""

    @property
    def status(self) -> int:
        """The status of the answer that it is the body of."""


class Upstream(Protocol):
    """A provider connection."""

    @property
    def name(self) -> str:
        """The upstream's name in the configuration: the part of a model's name before the first `/`."""

    async def discover(self) -> list[ModelInfo]:
        """The models that can be asked, in the order of preference. Raises: ModelError."""

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        """Send the request. Entering may raise ModelError, and so may each step of the iteration.

        Leaving the context, for whatever reason, closes the provider request at once. An iterator over HTTP is
        `Answered`. An iteration that ends without `Finished` is a cut stream. How long to wait in silence is the
        caller's business.
        """
