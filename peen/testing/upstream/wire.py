"""What the server needs to know of a provider's dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from peen.errors import ModelError
from peen.model.fold import Answer
from peen.model.sse import SseEvent
from peen.model.stream import ModelInfo, ModelRequest, StreamEvent


class Asked(Struct, frozen=True, kw_only=True):
    """A request of the dialect as a model sees it. `name` is unique among the answers of this server.

    `misses_reasoning`: it has tools, and an earlier answer in it has no reasoning, not even an empty one.
    `seals`: reasoning is to be given in a form that can come back; `reasoning` counts answers that brought some back.
    """

    request: ModelRequest
    stream: bool
    include_usage: bool
    name: str
    created_s: int
    seals: bool = False
    reasoning: int = 0
    misses_reasoning: bool = False


class AnswerWriter(Protocol):
    """Writes one streamed answer."""

    def begin(self) -> Iterable[SseEvent]:
        """What comes before the first piece."""

    def take(self, event: StreamEvent) -> Iterable[SseEvent]:
        """One event of the answer."""

    def end(self) -> Iterable[SseEvent]:
        """What comes last."""


class Wire(Protocol):
    """One dialect. Paths come without a query."""

    base_path: str
    """What the base URL that clients are given has behind the host."""
    answer_path: str
    models_path: str

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """The API key that a request carries."""

    def parse(self, body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
        """Raises: ModelError with status 400 for what the provider would refuse."""

    def writer(self, asked: Asked) -> AnswerWriter:
        """For a streamed answer."""

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        """The document of an answer that is not streamed."""

    def models(self, infos: Sequence[ModelInfo], created_s: int) -> bytes:
        """The document that lists the models."""

    def refusal(self, error: ModelError) -> bytes:
        """The document of an error."""

    def broken(self, error: ModelError) -> SseEvent:
        """An error in the place of a piece of a stream."""
