"""What is wrong with a JSON document, in words that name the field."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import inspect

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_SHOWN_CHARACTERS: Final = 200  # a name or value that the sender chose is not repeated beyond this


def problem_text(error: msgspec.MsgspecError | UnicodeError | RecursionError, *, whole: str, kind: Any = None) -> str:
    """One line such as `data.message: is required`.

    `whole` names the document itself ("body", "frame") where the fault has no field of its own. `kind` is what it was
    to be: with it, a wrong word is answered with the right ones.
    """
    if not isinstance(error, msgspec.ValidationError):
        return f"{whole}: is not one valid JSON value ({_first_lower(str(error))})"
    match = _AT.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    if missing := _MISSING.match(what):
        return f"{_join(path, missing['field'])}: is required"
    if unknown := _UNKNOWN.match(what):
        return f"{_join(path, unknown['field'])}: is not a known field"
    if what.startswith("Invalid enum value") and (words := _words_at(kind, path)):
        return f"{path or whole}: must be one of {', '.join(words)}"
    return f"{path or whole}: {_first_lower(what)}"


def _words_at(kind: Any, path: str) -> list[str]:
    """The words that a field allows; empty where it is not known to have some."""
    at = None if kind is None else inspect.type_info(kind)
    for name in filter(None, path.split(".")):
        fields = [
            field.type for each in _members(at) for field in getattr(each, "fields", ()) if field.encode_name == name
        ]
        at = fields[0] if fields else None
    return [str(word) for each in _members(at) if isinstance(each, inspect.LiteralType) for word in each.values]


def _members(at: inspect.Type | None) -> tuple[inspect.Type, ...]:
    return at.types if isinstance(at, inspect.UnionType) else () if at is None else (at,)


def _join(path: str, field: str) -> str:
    name = field if len(field) <= _SHOWN_CHARACTERS else field[:_SHOWN_CHARACTERS] + "…"
    return f"{path}.{name}" if path else name


def _first_lower(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return cut[:1].lower() + cut[1:] if cut[1:2].islower() else cut
