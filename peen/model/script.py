"""Scripts: YAML files that say what a scripted model answers, round by round, and which faults it has.

A file holds `models: {<model id>: <model>}`, or one model at its top, which is then called `script`. Durations are
milliseconds, lengths characters, and a missing fault field means what its comment says.

What no well-behaved provider sends is written down byte by byte, as a `raw` round; `peen dev upstream` plays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from peen.errors import ValidationFailed
from peen.wire.records import Usage

SHORT_FORM_MODEL: Final = "script"

Millis = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(gt=0)]
NonEmpty = Annotated[str, Meta(min_length=1)]


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of everything in a script: a field that nobody knows is refused, since it is most likely a typo."""


class Fault(_Part, frozen=True, kw_only=True):
    """What goes wrong in a round.

    `status` answers with an HTTP status instead of a stream; `error` breaks the stream with the provider's own error,
    `cut` ends it without an end signal, `reset` breaks the connection, `silence` sends nothing more, each after
    `after_pieces` pieces.
    """

    kind: Literal["status", "cut", "reset", "silence", "error"]
    status: Annotated[int, Meta(ge=400, le=599)] | None = None  # only for `status`: 500 if missing
    after_pieces: Annotated[int, Meta(ge=0)] = 0
    times: Positive | None = None  # how many attempts of one round fail; missing: all of them
    message: str | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None  # seconds, as the HTTP header has them
    retry_after_as: Literal["seconds", "date", "milliseconds"] = "seconds"  # how `peen dev upstream` writes them
    after_head: bool = False  # before the first piece: whether `peen dev upstream` has sent the head of the response

    def __post_init__(self) -> None:
        if self.kind != "status" and self.status is not None:
            raise ValueError("`status` belongs to a fault of kind `status`; remove it or change the kind")


class RawPiece(_Part, frozen=True, kw_only=True):
    """Some bytes of a response, or what happens in their place: exactly one of the first five fields.

    `event` is an event of the stream: a text as it is, anything else as JSON; `name` goes with it as its `event:` line.
    `text` and `hex` are bytes as they stand. Behind `stop` nothing comes: `cut` closes the connection in the middle of
    the response, `reset` breaks it, `silence` keeps it open.
    """

    event: Any = msgspec.UNSET
    text: NonEmpty | None = None
    hex: NonEmpty | None = None
    pause_ms: Positive | None = None
    stop: Literal["cut", "reset", "silence"] | None = None
    name: NonEmpty | None = None

    def __post_init__(self) -> None:
        others = (self.text, self.hex, self.pause_ms, self.stop)
        if sum(value is not None for value in others) + (self.event is not msgspec.UNSET) != 1:
            raise ValueError("a raw piece is exactly one of `event`, `text`, `hex`, `pauseMs`, `stop`")
        if self.name is not None and self.event is msgspec.UNSET:
            raise ValueError("`name` belongs to an `event`")
        if self.hex is not None:
            bytes.fromhex(self.hex)

    def encoded(self) -> bytes:
        """Its bytes, with lines that end in LF; none for a pause or a stop."""
        if self.text is not None:
            return self.text.encode()
        if self.hex is not None:
            return bytes.fromhex(self.hex)
        if self.event is msgspec.UNSET:
            return b""
        data = self.event.encode() if isinstance(self.event, str) else msgspec.json.encode(self.event)
        name = b"" if self.name is None else b"event: %b\n" % self.name.encode()
        return b"%bdata: %b\n\n" % (name, data)


class RawResponse(_Part, frozen=True, kw_only=True):
    """The head of a raw response. Headers replace those of an ordinary stream by name, in any case."""

    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: dict[str, str] = {}


class Call(_Part, frozen=True, kw_only=True):
    """A tool call. `arguments` is a mapping, or text that is sent as it is, even if it is no JSON."""

    name: NonEmpty
    arguments: dict[str, Any] | str = {}
    id: str | None = None  # made from turn, round and position if missing


class Round(_Part, frozen=True, kw_only=True):
    """One answer of the model: thinking, then text, then calls.

    `{lastResult}` in text is the latest tool result, `{images}` type and size of all images in the request.
    """

    text: str = ""
    thinking: str = ""
    calls: list[Call] = []
    usage: Usage | None = None  # estimated from the number of characters if missing
    delay_ms: Millis = 0  # before the first piece
    piece_delay_ms: Millis = 0  # before every further piece
    chunk: Positive | None = None  # characters a piece; missing: each part whole
    finish_reason: NonEmpty | None = None  # missing: `tool_calls` with calls, else `stop`
    fault: Fault | None = None
    repeat: Positive = 1  # play this round so many times in a row
    raw: list[RawPiece] | None = None  # in the place of all the above: the bytes of the response
    response: RawResponse | None = None  # goes with `raw`: another status, other headers

    def __post_init__(self) -> None:
        if self.raw is None:
            if self.response is not None:
                raise ValueError("`response` belongs to a `raw` round")
            return
        if self.text or self.thinking or self.calls or self.usage or self.finish_reason or self.chunk:
            raise ValueError("a `raw` round is its bytes alone: remove text, thinking, calls, usage and finishReason")
        if self.fault is not None and self.fault.kind != "status":
            raise ValueError("in a `raw` round a `stop` piece does what a fault does elsewhere")
        if any(piece.stop is not None for piece in self.raw[:-1]):
            raise ValueError("nothing comes behind a `stop` piece: make it the last")


class Turn(_Part, frozen=True, kw_only=True):
    """What answers one message."""

    rounds: Annotated[list[Round], Meta(min_length=1)]

    def round_at(self, index: int) -> Round | None:
        """Round `index` from 0, repeated ones counted as often as they play; None past the end."""
        for candidate in self.rounds:
            if index < candidate.repeat:
                return candidate
            index -= candidate.repeat
        return None

    @property
    def length(self) -> int:
        """Number of rounds, repeated ones counted as often as they play."""
        return sum(candidate.repeat for candidate in self.rounds)


class ModelScript(_Part, frozen=True, kw_only=True):
    """One model. With `repeat_last_turn` the last turn answers every message past the end.

    `summary` answers whoever asks for a summary of a conversation; missing: what the user had asked for, listed.
    `refuse_over` is the longest request that is taken, in tokens of four characters; what is longer is refused.
    """

    turns: Annotated[list[Turn], Meta(min_length=1)]
    context_window: Positive | None = None
    repeat_last_turn: bool = False
    summary: Round | None = None
    refuse_over: Positive | None = None

    def turn_at(self, index: int) -> Turn | None:
        """Turn `index` from 0, or None past the end of a script that does not repeat."""
        if index < len(self.turns):
            return self.turns[index]
        return self.turns[-1] if self.repeat_last_turn else None


class Script(Struct, frozen=True):
    """Every model of a file, in the file's order. `source` is the file, for messages."""

    source: str
    models: Mapping[str, ModelScript]


# From the end of a path in the file to the struct that belongs there, to name its fields in a message.
_PARTS: Final[tuple[tuple[str, type[Struct]], ...]] = (
    (".usage", Usage),
    (".fault", Fault),
    (".calls[", Call),
    (".raw[", RawPiece),
    (".response", RawResponse),
    (".rounds[", Round),
    (".turns[", Turn),
    ("", ModelScript),
)


def load_script(path: Path) -> Script:
    """Read a script file. Raises: ValidationFailed naming the file, the place in it, and the remedy."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ValidationFailed(f"{path}: cannot be read as UTF-8 text: {exc}") from exc
    return parse_script(text, source=str(path))


def parse_script(text: str, *, source: str) -> Script:
    """The script in `text`. Raises: ValidationFailed naming `source`, the place in it, and the remedy."""
    import yaml  # most models have no script

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same loader, ten times as fast where it is built
    try:
        document = yaml.load(text, Loader=loader)
    except yaml.YAMLError as exc:
        raise ValidationFailed(f"{source}: is not valid YAML: {exc}") from exc
    if not isinstance(document, dict):
        raise ValidationFailed(f"{source}: must be a mapping with `models` or `turns` at its top")
    if "models" not in document:
        return Script(source, {SHORT_FORM_MODEL: _model(document, source, "")})
    others = sorted(str(key) for key in document if key != "models")
    if others:
        raise ValidationFailed(
            f"{source}: `{others[0]}` cannot stand beside `models`; move it into the model that it belongs to"
        )
    models = document["models"]
    if not isinstance(models, dict) or not models:
        raise ValidationFailed(f"{source}: models: must map at least one model id to its turns")
    for name in models:
        if not isinstance(name, str) or not name:
            raise ValidationFailed(f"{source}: models: {name!r} is no model id; write it as non-empty text in quotes")
    return Script(source, {name: _model(value, source, f"models.{name}") for name, value in models.items()})


def _model(value: object, source: str, prefix: str) -> ModelScript:
    try:
        return msgspec.convert(value, ModelScript)
    except msgspec.ValidationError as exc:
        problem, _, place = str(exc).partition(" - at `$")
        place = (prefix + place.removesuffix("`")).removeprefix(".")
        where = f"{source}: {place}: " if place else f"{source}: "
        raise ValidationFailed(f"{where}{problem}{_remedy(problem, place)}") from exc


def _remedy(problem: str, place: str) -> str:
    if "field" not in problem:
        return ""
    last = place[place.rfind(".") :] if "." in place else f".{place}"
    part = next(part for ending, part in _PARTS if last.startswith(ending))
    return f" (fields here: {', '.join(part.__struct_encode_fields__)})"
