"""The demo model: obeys plain requests with the real tools, says what came of it, and understands nothing else.

A request is a few commands: `list [DIR]`, ``read X``, `search WORD [in DIR]`, ``run `cmd` ``, `write X: text`,
``replace `a` with `b` in X``. A new line or "then" starts a new round; "and" puts calls side by side into one round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from peen.model.conversation import (
    describe_images,
    position,
    request_text,
    to_summarize,
    turn_images,
    turn_results,
)
from peen.model.demoreport import report
from peen.model.script import Call, Round
from peen.model.stream import ModelRequest
from peen.wire.records import ImageRef

SUMMARY_CHARACTERS: Final = 60
"""Of each request, in a summary."""
PIECE_CHARACTERS: Final = 12  # small enough that a client sees the answer grow
INTRODUCTION: Final = "I am Peen's built-in demo model: I follow a few plain commands with the real tools, no more."
ABILITIES: Final = """\
Try one of these:
- list [DIR]
- read FILE
- search WORD [in DIR]
- run `COMMAND`
- write FILE: TEXT
- replace `OLD` with `NEW` in FILE

Join commands with "and" to run them side by side, and with "then" or a new line to run them one after the other.
To work with a real model, set ANTHROPIC_API_KEY, OPENAI_API_KEY or PEEN_UPSTREAMS."""

Step = list[Call]  # calls of one round

_VERB: Final = r"(?:please\s+)?(?:list|read|search|run|write|replace)(?![\w-])"
# A separator counts only before another command, so that the text of a `write` may hold any words.
_QUOTED_OR_BREAK: Final = re.compile(rf"`[^`]*`|(?P<then>\s*(?:\n|\bthen\b)\s*)(?={_VERB})", re.IGNORECASE)
_QUOTED_OR_AND: Final = re.compile(rf"`[^`]*`|(?P<and>\s*(?:,|\band\b)\s*(?:and\s+)?)(?={_VERB})", re.IGNORECASE)
_QUOTES: Final = "`'\""


def answer(request: ModelRequest) -> Round:
    """The next answer to what was asked last, derived from the messages alone.

    Commands after a failed one are not tried: the one who reads the report decides how to go on.
    """
    lines = to_summarize(request.messages)
    if lines is not None:
        return summary(lines)
    steps = parse_request(request_text(request.messages))
    images = turn_images(request.messages)
    if steps is None and images:
        return _say(f"{_shown(images)}\n\n{INTRODUCTION}")
    if steps is None:
        return _say(f"{INTRODUCTION} I did not understand that.\n\n{ABILITIES}")
    if not request.tools:
        return _say(f"{INTRODUCTION} I was given no tools, so there is nothing that I can do here.")
    results = turn_results(request.messages)
    played = position(request.messages).round
    failed = any(result.is_error for result in results)
    if played < len(steps) and not failed:
        return Round(text=_announce(steps[played]), calls=steps[played], chunk=PIECE_CHARACTERS)
    left = [call for step in steps[played:] for call in step]
    parts = [report(results, left), *([_shown(images)] if images else []), INTRODUCTION]
    return _say("\n\n".join(parts))


def _shown(images: Sequence[ImageRef]) -> str:
    what = "an image" if len(images) == 1 else f"{len(images)} images"
    return f"I was shown {what}: {describe_images(images)}. A demo has no eyes, so that is all I can say."


def summary(lines: str) -> Round:
    """A summary of a conversation, given as the lines that a summarizer gets: what the user asked for, and no more."""
    earlier = re.search(r"^The user asked for:\n((?:- .*\n)+)", lines, re.MULTILINE)
    asked = [line.removeprefix("user: ") for line in lines.splitlines() if line.startswith("user: ")]
    text = "".join(f"- {_first_words(line)}\n" for line in asked)
    return _say(f"The user asked for:\n{earlier[1] if earlier else ''}{text}\nEverything of it was answered.")


def _first_words(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARACTERS else f"{text[: SUMMARY_CHARACTERS - 1]}…"


def parse_request(text: str) -> list[Step] | None:
    """The rounds of calls that `text` asks for, or None if any part of it is no command.

    An edit needs to have seen its file, so a round that reads it is put before unless the text does so itself.
    """
    steps: list[Step] = []
    known: set[str] = set()
    for step_text in _split(text.strip(), _QUOTED_OR_BREAK, "then"):
        calls: Step = []
        for command in _split(step_text, _QUOTED_OR_AND, "and"):
            call = _parse_command(command)
            if call is None:
                return None
            calls.append(call)
        unread = {path: None for call in calls if call.name == "editFile" and (path := _path(call)) not in known}
        if unread:
            steps.append([Call(name="readFile", arguments={"path": path}) for path in unread])
            calls = [call for call in calls if call.name != "readFile" or _path(call) not in unread]
        steps.append(calls)
        known.update(unread, (_path(call) for call in calls if call.name in ("readFile", "writeFile")))
    return steps


def _split(text: str, pattern: re.Pattern[str], separator: str) -> Iterator[str]:
    start = 0
    for match in pattern.finditer(text):
        if match[separator] is not None:
            yield text[start : match.start()]
            start = match.end()
    yield text[start:]


def _list(rest: str) -> Call | None:
    match = re.fullmatch(r"(?:(?:the\s+)?files)?\s*(?:(?:in|of)\s+)?(.*)", rest, re.IGNORECASE | re.DOTALL)
    if match is None or not match[1]:
        return Call(name="listFiles")
    directory = _name(match[1])
    return Call(name="listFiles", arguments={"path": directory}) if directory else None


def _read(rest: str) -> Call | None:
    path = _name(rest)
    return Call(name="readFile", arguments={"path": path}) if path else None


def _search(rest: str) -> Call | None:
    match = re.fullmatch(r"(?:for\s+)?(?:`([^`]+)`|([^`]+?))(?:\s+in\s+(\S+))?", rest, re.IGNORECASE)
    if match is None:
        return None
    arguments = {"pattern": match[1] or match[2].strip("\"'")}
    if match[3]:
        arguments["path"] = _name(match[3]) or ""
    return Call(name="searchText", arguments=arguments) if arguments["pattern"] else None


def _run(rest: str) -> Call | None:
    match = re.fullmatch(r"`([^`]+)`\.?|([^`]+)", rest)
    if match is None:
        return None
    command = match[1] or match[2]
    return Call(name="runCommand", arguments={"command": command, "purpose": "run what was asked for"})


def _write(rest: str) -> Call | None:
    match = re.fullmatch(r"([^:\n]+):[ \t]?\n?(.*)", rest, re.DOTALL)
    path = _name(match[1]) if match else None
    if match is None or path is None:
        return None
    quoted = re.fullmatch(r"`([^`]*)`", match[2].strip())
    content = quoted[1] if quoted else match[2]
    # A text file ends with a line end, and a request in plain words cannot show one.
    if content and not content.endswith("\n"):
        content += "\n"
    return Call(name="writeFile", arguments={"path": path, "content": content})


def _replace(rest: str) -> Call | None:
    match = re.fullmatch(r"`([^`]+)`\s+(?:with|by)\s+`([^`]*)`\s+in\s+(.+)", rest, re.IGNORECASE | re.DOTALL)
    path = _name(match[3]) if match else None
    if match is None or path is None:
        return None
    return Call(name="editFile", arguments={"path": path, "edits": [{"old": match[1], "new": match[2]}]})


_COMMANDS: Final[dict[str, Callable[[str], Call | None]]] = {
    "list": _list,
    "read": _read,
    "search": _search,
    "run": _run,
    "write": _write,
    "replace": _replace,
}


def _parse_command(text: str) -> Call | None:
    match = re.fullmatch(rf"({_VERB})\s*(.*)", text.strip(), re.IGNORECASE | re.DOTALL)
    if match is None:
        return None
    return _COMMANDS[match[1].split()[-1].lower()](match[2].strip())


def _name(text: str) -> str | None:
    """A file name: in quotes anything, else one word, without the punctuation of a sentence behind it."""
    text = text.strip()
    if len(text) > 2 and text[0] == text[-1] and text[0] in _QUOTES:
        return text[1:-1]
    if text in (".", ".."):
        return text
    text = text.rstrip(",;!?")
    if not text.endswith("/.."):
        text = text.removesuffix(".")
    return text if text and not re.search(r"\s", text) else None


def _path(call: Call) -> str:
    return str(call.arguments["path"]) if isinstance(call.arguments, dict) else ""


_DOING: Final = {
    "listFiles": "listing files",
    "readFile": "reading",
    "searchText": "searching",
    "runCommand": "running a command",
    "writeFile": "writing",
    "editFile": "editing",
}


def _announce(step: Step) -> str:
    doing = list(dict.fromkeys(_DOING[call.name] for call in step))
    text = " and ".join(doing)
    return f"{text[0].upper()}{text[1:]}."


def _say(text: str) -> Round:
    return Round(text=text, chunk=PIECE_CHARACTERS)
