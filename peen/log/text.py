"""A log line for people."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


def text_line(record: Mapping[str, object]) -> str:
    """One line for people: time, level, logger, event, then `key=value`. Control characters are escaped."""
    fields = dict(record)
    head = [str(fields.pop(key)) for key in ("timestamp", "level", "logger", "event")]
    exception = fields.pop("exception", None)
    line = f"{head[0]} {head[1].upper():<5} {head[2]} {_one_line(head[3])}"
    for key, value in fields.items():
        line += f" {key}={_shown(value)}"
    if exception is not None:
        line = "\n".join([line, *map(_one_line, str(exception).split("\n"))])
    return line


def _shown(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and value and not any(mark in value for mark in ' ="'):
        return value
    return msgspec.json.encode(value).decode()


def _one_line(text: str) -> str:
    return text if text.isprintable() else msgspec.json.encode(text).decode()[1:-1]
