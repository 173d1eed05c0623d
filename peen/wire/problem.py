"""What is wrong with a JSON document, in words that name the field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\[(?P<at>\d+|\.\.\.)\]|(?P<field>[^.\[\]]+)")
_SHOWN_CHARACTERS: Final = 200  # a name or value that the sender chose is not repeated beyond this
_SHOWN_BYTES: Final = 60  # of a value beside what it should have been


def problem_text(
    error: msgspec.MsgspecError | UnicodeError | RecursionError,
    *,
    whole: str,
    kind: Any = None,
    given: bytes | str | None = None,
) -> str:
    """One line such as `data.message: is required`.

    `whole` names the document itself ("body", "frame") where the fault has no field of its own. `kind` is what it was
    to be: with it, a wrong word is answered with the right ones, and a text of the wrong form with the description of
    the right one that stands at its type, beside what was there in `given`, the document.
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
    if form := _form_at(kind, path):
        description, pattern = form
        named, value = _wrong_at(given, path, pattern)
        return f"{named or whole}: must be {description}{value}"
    return f"{path or whole}: {_first_lower(what)}"


def _words_at(kind: Any, path: str) -> list[str]:
    """The words that a field allows; empty where it is not known to have some."""
    return [
        str(word) for each in _types_at(kind, path) if isinstance(each, inspect.LiteralType) for word in each.values
    ]


def _form_at(kind: Any, path: str) -> tuple[str, str] | None:
    """The form of a text and its pattern, where the type of a field describes one."""
    for each in _types_at(kind, path):
        if isinstance(each, inspect.Metadata) and isinstance(each.type, inspect.StrType) and each.type.pattern:
            description = (each.extra_json_schema or {}).get("description")
            return (description, each.type.pattern) if description else None
    return None


def _types_at(kind: Any, path: str) -> tuple[inspect.Type, ...]:
    """What may stand at a place; empty where that is not known."""
    at: tuple[inspect.Type, ...] = () if kind is None else _members(inspect.type_info(kind))
    for step in _STEP.finditer(path):
        inner = (_inner(_bare(each), step["field"]) for each in at)
        at = tuple(member for each in inner if each is not None for member in _members(each))
    return at


def _inner(at: inspect.Type, field: str | None) -> inspect.Type | None:
    """The type of a field, or without one of the members of a list or a mapping."""
    if field is not None:
        fields = (each.type for each in getattr(at, "fields", ()) if each.encode_name == field)
        return next(fields, None)
    if isinstance(at, inspect.DictType):
        return at.value_type
    return getattr(at, "item_type", None)


def _bare(at: inspect.Type) -> inspect.Type:
    return at.type if isinstance(at, inspect.Metadata) else at


def _members(at: inspect.Type) -> tuple[inspect.Type, ...]:
    return at.types if isinstance(at, inspect.UnionType) else (at,)


def _wrong_at(given: bytes | str | None, path: str, pattern: str) -> tuple[str, str]:
    """The place with the keys of mappings in it, which msgspec does not tell, and what stands there."""
    if given is None:
        return path, ""
    for found, value in _values_at(msgspec.json.decode(given), list(_STEP.finditer(path)), ""):
        if not (isinstance(value, str) and re.search(pattern, value)):
            text = msgspec.json.encode(value).decode()
            return found, f"; got {text if len(text) <= _SHOWN_BYTES else text[:_SHOWN_BYTES] + '…'}"
    return path, ""


def _values_at(value: Any, steps: list[re.Match[str]], path: str) -> Iterator[tuple[str, Any]]:
    """Every place that the steps may lead to, with what stands there."""
    if not steps:
        yield path, value
        return
    step, rest = steps[0], steps[1:]
    if step["field"] is not None:
        if isinstance(value, dict) and step["field"] in value:
            yield from _values_at(value[step["field"]], rest, _join(path, step["field"]))
    elif step["at"] == "...":
        for key, each in value.items() if isinstance(value, dict) else ():
            yield from _values_at(each, rest, _join(path, key))
    elif isinstance(value, list) and int(step["at"]) < len(value):
        yield from _values_at(value[int(step["at"])], rest, f"{path}[{step['at']}]")


def _join(path: str, field: str) -> str:
    name = field if len(field) <= _SHOWN_CHARACTERS else field[:_SHOWN_CHARACTERS] + "…"
    return f"{path}.{name}" if path else name


def _first_lower(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return cut[:1].lower() + cut[1:] if cut[1:2].islower() else cut
