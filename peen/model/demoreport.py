"""What the demo model says about the results of its calls: short, and nothing but what the results say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from peen.model.conversation import CallResult
from peen.model.script import Call

MAX_LINES: Final = 10
MAX_ENTRIES: Final = 20
_MAX_LINE_CHARACTERS: Final = 200
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


def report(results: Sequence[CallResult], left: Sequence[Call]) -> str:
    """One paragraph a result, then the calls that were left out because one before them failed."""
    parts = [_paragraph(result) for result in results]
    if left:
        names = ", ".join(f"{call.name} {_subject(call.name, call.arguments)}".rstrip() for call in left)
        parts.append(f"Not tried, because a step before failed: {names}.")
    return "\n\n".join(parts)


def _paragraph(result: CallResult) -> str:
    name = result.call.name
    title = f"{name} {_subject(name, _object(bytes(result.call.arguments)))}".rstrip()
    if result.is_error:
        return f"{title}: failed.\n{_indented(result.content)}"
    return f"{title}: {_outcome(name, result.content)}"


def _subject(name: str, arguments: object) -> str:
    if not isinstance(arguments, dict):
        return ""
    value = arguments.get({"runCommand": "command", "searchText": "pattern"}.get(name, "path"))
    return f"`{_cut(str(value))}`" if value else ""


def _outcome(name: str, content: str) -> str:
    """A result in a shape that we do not know, or cut in the middle, is quoted as it came."""
    fields = _object(content.encode())
    describe = _DESCRIPTIONS.get(name)
    if fields is not None and describe is not None:
        try:
            return describe(fields)
        except (KeyError, TypeError):
            pass
    return f"done.\n{_indented(content)}"


def _files(fields: dict[str, Any]) -> str:
    entries = [entry["path"] + ("/" if entry["type"] == "directory" else "") for entry in fields["entries"]]
    more = ", and more" if fields.get("truncated") or len(entries) > MAX_ENTRIES else ""
    return (
        f"{_count(len(entries), 'entry', 'entries')}: {', '.join(entries[:MAX_ENTRIES])}{more}"
        if entries
        else "no entries"
    )


def _text(fields: dict[str, Any]) -> str:
    if "mediaType" in fields:
        return f"{fields['mediaType']}, {_count(fields['sizeBytes'], 'byte', 'bytes')}"
    return f"{_count(fields['totalLines'], 'line', 'lines')}\n{_indented(fields['content'])}"


def _matches(fields: dict[str, Any]) -> str:
    lines = [f"{match['path']}:{match['line']}: {match['text']}".rstrip("\n") for match in fields["matches"]]
    return f"{_count(len(lines), 'match', 'matches')}\n{_indented(chr(10).join(lines))}" if lines else "no matches"


def _command(fields: dict[str, Any]) -> str:
    end = f"exit code {fields['exitCode']}" if fields["state"] == "exited" else str(fields["state"])
    output = "".join(f"\n{_indented(fields[stream])}" for stream in ("stdout", "stderr") if fields[stream].strip())
    return f"{end}{output or ', no output'}"


def _written(fields: dict[str, Any]) -> str:
    return f"{'created' if fields['created'] else 'replaced'}, {_count(fields['bytes'], 'byte', 'bytes')}"


def _edited(fields: dict[str, Any]) -> str:
    return f"changed\n{_indented(fields['diff'])}"


_DESCRIPTIONS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "listFiles": _files,
    "readFile": _text,
    "searchText": _matches,
    "runCommand": _command,
    "writeFile": _written,
    "editFile": _edited,
}


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        return _decode_object(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _indented(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    shown = [f"    {_cut(line)}".rstrip() for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"    … {len(lines) - MAX_LINES} more lines")
    return "\n".join(shown)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[:_MAX_LINE_CHARACTERS] + "…"
