"""Chunks of chat completions in which some field has another type than it should: what can be taken of them. Pure.

Only what the strict decoder has refused comes here, so an ordinary stream does not pay for it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from peen.errors import ModelError
from peen.model.chatwire import Chunk

_decode_any: Final = msgspec.json.Decoder(Any).decode
_TEXTS: Final = ("reasoning_content", "refusal")
_TEXTS_OR_OBJECTS: Final = ("reasoning", "thinking")
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens")
_DETAILS: Final = {
    "prompt_tokens_details": ("cached_tokens", "cache_write_tokens"),
    "completion_tokens_details": ("reasoning_tokens",),
}


def odd_chunk(data: bytes) -> Chunk:
    """The chunk in `data`, which is valid JSON. What has no meaning in its place is left out.

    Raises: ModelError `bad_stream`, which no later attempt mends, if it is no object at all.
    """
    found = _decode_any(data)
    if isinstance(found, list) and found and isinstance(found[0], dict) and found[0].get("error"):
        found = found[0]  # Google puts its errors into a list
    if not isinstance(found, dict):
        raise ModelError(
            f"the provider's answer holds {_kind(found)} where an object belongs", kind="bad_stream", retryable=False
        )
    return msgspec.convert(
        {
            "model": _text(found.get("model")),
            "choices": [_choice(each) for each in _list(found.get("choices"))],
            "usage": _usage(found.get("usage")),
            "error": _error(found.get("error")),
        },
        Chunk,
    )


def _choice(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": _number(given.get("index")),
        "delta": _delta(given.get("delta")),
        "message": _delta(given.get("message")),
        "finish_reason": _reason(given.get("finish_reason")),
    }


def _delta(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, dict):
        return None
    delta: dict[str, Any] = {name: _text(given.get(name)) for name in _TEXTS}
    for name in _TEXTS_OR_OBJECTS:
        delta[name] = given[name] if isinstance(given.get(name), str | dict) else None
    delta["content"] = _content(given.get("content"))
    delta["reasoning_details"] = _list(given.get("reasoning_details"))
    delta["tool_calls"] = [_call(each) for each in _list(given.get("tool_calls"))]
    delta["function_call"] = given.get("function_call")
    return delta


def _content(given: Any) -> str | list[Any] | None:
    """Text, or the parts of it; one part may stand there without its list."""
    if isinstance(given, str):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        return _json(given)
    parts = given if isinstance(given, list) else [given]
    return [
        part if isinstance(part, str) else _part(part) for part in parts if isinstance(part, str | dict)
    ]  # fmt: skip


def _part(given: dict[str, Any]) -> dict[str, Any]:
    thinking = given.get("thinking")
    inner = [_part(each) for each in _list(thinking)] if isinstance(thinking, list) else _text(thinking)
    said = given.get("text")
    return {"type": _text(given.get("type")) or "", "text": _text(said), "thinking": inner}


def _call(given: dict[str, Any]) -> dict[str, Any]:
    function = given.get("function")
    found = _function(function) if isinstance(function, dict) else None
    return {"index": _number(given.get("index")), "id": _name(given.get("id")), "function": found, **_function(given)}


def _function(given: dict[str, Any]) -> dict[str, Any]:
    return {"name": _text(given.get("name")), "arguments": _arguments(given.get("arguments"))}


def _arguments(given: Any) -> str | dict[str, Any] | None:
    """Nothing, text, or an object; anything else as JSON text, for the tool to refuse."""
    if given is None or given == []:
        return None
    return given if isinstance(given, str | dict) else msgspec.json.encode(given).decode()


def _usage(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, dict):
        return None
    counts: dict[str, Any] = {name: _number(given.get(name)) for name in _COUNTS}
    for details, names in _DETAILS.items():
        inner = given.get(details)
        if isinstance(inner, dict):
            counts[details] = {name: _number(inner.get(name)) for name in names}
    return counts


def _error(given: Any) -> Any:
    """An error object, or its text; a value that says that there is none gives None."""
    if isinstance(given, dict):
        message = given.get("message")
        return {
            "message": message if message is None or isinstance(message, str) else _json(message),
            "type": _text(given.get("type")),
            "code": _name(given.get("code")),
            "param": given.get("param"),
        }
    return given if isinstance(given, str) else _json(given) if given else None


def _number(given: Any) -> int | None:
    """A whole number, also as `100.0` or `"100"`; None for anything else."""
    if isinstance(given, bool):
        return None
    if isinstance(given, str):
        given = given.strip()
        return int(given) if given.isascii() and given.isdecimal() and len(given) <= 18 else None
    if isinstance(given, float):
        return int(given) if given.is_integer() and abs(given) < 1 << 53 else None
    return given if isinstance(given, int) and abs(given) < 1 << 63 else None


def _reason(given: Any) -> str | None:
    """A finish reason; one that is no text is a reason too, unless it stands for nothing."""
    return given if isinstance(given, str) else _json(given) if given else None


def _name(given: Any) -> str | None:
    """An id; some servers number their calls."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else _text(given)


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) else None


def _list(given: Any) -> list[dict[str, Any]]:
    """The objects of a list; one that stands there alone is taken as a list of one."""
    each = given if isinstance(given, list) else [given]
    return [one for one in each if isinstance(one, dict)]


def _json(given: Any) -> str:
    return msgspec.json.encode(given).decode()


def _kind(given: Any) -> str:
    return "a list" if isinstance(given, list) else "text" if isinstance(given, str) else repr(given)[:40]
