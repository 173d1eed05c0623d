"""Scripts: YAML files that say what a scripted model answers, round by round, and which faults it has.

A file holds `models: {<model id>: <model>}`, or one model at its top, which is then called `script`. Durations are
milliseconds, lengths characters, and a missing fault field means what its comment says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from peen.errors import ValidationFailed
from peen.wire.worker import Usage

SHORT_FORM_MODEL: Final = "script"

Millis = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(gt=0)]
NonEmpty = Annotated[str, Meta(min_length=1)]


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of everything in a script: a field that nobody knows is refused, since it is most likely a typo."""


class Fault(_Part, frozen=True, kw_only=True):
    """What goes wrong in a round.

    `status` answers with an HTTP status instead of a stream; `error` breaks the stream with the provider's own error,
    `cut` ends it without an end signal, `silence` sends nothing more, each after `after_pieces` pieces.
    """

    kind: Literal["status", "cut", "silence", "error"]
    status: Annotated[int, Meta(ge=400, le=599)] | None = None  # only for `status`: 500 if missing
    after_pieces: Annotated[int, Meta(ge=0)] = 0
    times: Positive | None = None  # how many attempts of one round fail; missing: all of them
    message: str | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None  # seconds, as the HTTP header has them

    def __post_init__(self) -> None:
        if self.kind != "status" and self.status is not None:
            raise ValueError("`status` belongs to a fault of kind `status`; remove it or change the kind")


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
    """One model. With `repeat_last_turn` the last turn answers every message past the end."""

    turns: Annotated[list[Turn], Meta(min_length=1)]
    context_window: Positive | None = None
    repeat_last_turn: bool = False

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
