"""The published schemas, read from the repository as a client's author would read them, and held to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker

FOLDER = Path(__file__).parents[2] / "protocol"
Schema = dict[str, Any]


def closed(schema: Any) -> Any:
    """The schema with every object shut: a member that is not described is an error.

    Published schemas of what the server sends are open, so that old clients live with new members. We are not.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        shut.setdefault("additionalProperties", False)
    return shut


@cache
def validator(name: str) -> Draft202012Validator:
    """Checks against `protocol/schemas/<name>.json`, closed."""
    schema = json.loads((FOLDER / "schemas" / f"{name}.json").read_text())
    return Draft202012Validator(closed(schema), format_checker=FormatChecker())


def problems(name: str, value: Any) -> list[str]:
    """What the schema `name` has to say against `value`."""
    return [f"{name}: {fault.json_path}: {fault.message}" for fault in validator(name).iter_errors(value)]


@cache
def document(name: str) -> Schema:
    """`protocol/<name>.yaml`."""
    loaded: Schema = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return loaded


def references(schema: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(schema, list):
        for item in schema:
            yield from references(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)


def resolve(whole: Schema, reference: str) -> Any:
    """What `#/a/b` names. Raises: KeyError if nothing does."""
    found: Any = whole
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found
