"""Structs to plain JSON Schema, and decoding errors to words that name the field and the remedy."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, Final

import msgspec

Schema = dict[str, Any]

_EXPECTED: Final = re.compile(r"Expected `([^`]+)`(.*?)(?:, got `([^`]+)`)?$")
_WORDS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_ENUM: Final = "Invalid enum value "
_EXAMPLE: Final = re.compile(r'such as ("[^"]*")')
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than", "==": "exactly"}


def plain_schema(arguments: type[msgspec.Struct]) -> Schema:
    """One self-contained object schema, as every provider understands it: no `$ref`, no titles, no null branches."""
    document = msgspec.json.schema(arguments)
    definitions: dict[str, Schema] = document.get("$defs", {})
    schema = _inlined(document, definitions)
    schema.pop("description", None)  # the docstring of the struct is for readers of the code
    return schema


def _inlined(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in schema:
        inner = dict(definitions[schema["$ref"].rpartition("/")[2]])
        inner.pop("description", None)
        return _inlined(inner, definitions)
    plain = {key: value for key, value in schema.items() if key not in ("title", "$defs", "default")}
    if "anyOf" in plain:
        # An optional argument may be null; saying so as a union is more than some providers accept.
        kinds = [kind for kind in plain.pop("anyOf") if kind != {"type": "null"}]
        if len(kinds) != 1:
            raise TypeError(f"an argument of a tool has one type, not {len(kinds)}")
        plain |= _inlined(kinds[0], definitions)
    if "items" in plain:
        plain["items"] = _inlined(plain["items"], definitions)
    if "properties" in plain:
        plain["properties"] = {name: _inlined(part, definitions) for name, part in plain["properties"].items()}
    return plain


def explain_bad_arguments(tool: str, schema: Schema, problem: Exception) -> str:
    """What a model must change, from the error of decoding: `editFile: edits[0].old: expected text, got a number`."""
    if not isinstance(problem, msgspec.ValidationError):
        return f"{tool}: the arguments are not valid JSON ({problem}); send one JSON object"
    message, _, at = str(problem).partition(" - at `$")
    where = at.rstrip("`").removeprefix(".")
    if message.startswith("Object contains unknown field"):
        field = message.split("`")[1]
        known = list(_schema_at(schema, where).get("properties", {}))
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]}?" if near else "it takes " + (", ".join(known) or "no arguments")
        return f"{tool}: {_joined(where, field)}: unknown argument; {remedy}"
    if message.startswith("Object missing required field"):
        return f"{tool}: {_joined(where, message.split('`')[1])}: required, but missing"
    field_schema = _schema_at(schema, where)
    if message.startswith(_ENUM):
        return f"{tool}: {where}: expected {_choice(field_schema)}, got {message.removeprefix(_ENUM)}"
    expected = _EXPECTED.match(message)
    if expected is None:
        return f"{tool}: {where or 'arguments'}: {message}"
    if not where:
        return f"{tool}: expected one JSON object with the arguments, got {_words(expected[3] or 'something else')}"
    got = f", got {_words(expected[3])}" if expected[3] else ""
    wanted = _choice(field_schema) or f"{_words(expected[1])}{_bound(expected[2])}{_example(field_schema)}"
    return f"{tool}: {where}: expected {wanted}{got}"


def repeated_name(arguments: bytes) -> str | None:
    """A name that an object in this JSON document has twice, so that one of its values would be lost; else None.

    The document has been decoded before and is known to be valid.
    """
    try:
        json.loads(arguments, object_pairs_hook=_require_once)
    except _Repeated as exc:
        return exc.name
    return None


class _Repeated(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _require_once(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _Repeated(name)
        names.add(name)


def _choice(schema: Schema) -> str:
    """The values that may be sent; empty where any may that has the right type."""
    values = [value if isinstance(value, str) else json.dumps(value) for value in schema.get("enum", ())]
    return " or ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def _example(schema: Schema) -> str:
    """The first example that the description of a text gives."""
    found = _EXAMPLE.search(schema.get("description", "")) if schema.get("type") == "string" else None
    return f" such as {found[1]}" if found else ""


def _schema_at(schema: Schema, where: str) -> Schema:
    """The schema that a path such as `edits[0].old` names."""
    for part in filter(None, re.split(r"\.|(?=\[)", where)):
        schema = schema.get("items", {}) if part.startswith("[") else schema.get("properties", {}).get(part, {})
    return schema


def _joined(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _words(kinds: str) -> str:
    names = [name for name in kinds.split(" | ") if name != "null"] or ["null"]
    return " or ".join(_WORDS.get(name, name) for name in names)


def _bound(bound: str) -> str:
    words = bound.strip().split(" ")
    return " " + " ".join(_BOUNDS.get(word, word) for word in words) if bound.strip() else ""
