from __future__ import annotations

import msgspec
import pytest

from peen.context.pictures import shown_image
from peen.errors import ModelError
from peen.model import demo
from peen.model.fold import Answer, Fold
from peen.model.script import Call
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelRequest, TextDelta
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord
from peen.wire.summary import StandsFor, summary_text, transcript_text

TOOLS = (ToolDefinition(name="readFile", description="", parameters=msgspec.Raw(b"{}")),)


def listing(path: str | None = None) -> Call:
    return Call(name="listFiles", arguments={} if path is None else {"path": path})


def reading(path: str) -> Call:
    return Call(name="readFile", arguments={"path": path})


def searching(pattern: str, **more: str) -> Call:
    return Call(name="searchText", arguments={"pattern": pattern, **more})


def running(command: str) -> Call:
    return Call(name="runCommand", arguments={"command": command, "purpose": "run what was asked for"})


def writing(path: str, content: str) -> Call:
    return Call(name="writeFile", arguments={"path": path, "content": content})


def editing(path: str, old: str, new: str) -> Call:
    return Call(name="editFile", arguments={"path": path, "edits": [{"old": old, "new": new}]})


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("list", [[listing()]]),
        ("Please list files in src", [[listing("src")]]),
        ("list the files", [[listing()]]),
        ("list ..", [[listing("..")]]),
        ("read README.md.", [[reading("README.md")]]),
        ("read `my notes.txt`", [[reading("my notes.txt")]]),
        ("READ a and read b", [[reading("a"), reading("b")]]),
        ("list, read a, and search x", [[listing(), reading("a"), searching("x")]]),
        ("search for TODO in src", [[searching("TODO", path="src")]]),
        ("search `a in b`", [[searching("a in b")]]),
        ("run make test", [[running("make test")]]),
        ("run `read x then list`", [[running("read x then list")]]),
        ("run `a` then run `b and list`", [[running("a")], [running("b and list")]]),
        ("list\nread a\n\nrun `ls`", [[listing()], [reading("a")], [running("ls")]]),
        ("write a.txt: salt and pepper, then more", [[writing("a.txt", "salt and pepper, then more\n")]]),
        ("write a.py:\nx = 1\ny = 2\nthen read a.py", [[writing("a.py", "x = 1\ny = 2\n")], [reading("a.py")]]),
        ("write a: `list` and list", [[writing("a", "list\n"), listing()]]),
        ("write a: `one line`", [[writing("a", "one line\n")]]),
        ("write empty:", [[writing("empty", "")]]),
        ("replace `a` with `` in x", [[reading("x")], [editing("x", "a", "")]]),
        ("read x then replace `a` with `b` in x", [[reading("x")], [editing("x", "a", "b")]]),
        ("read x and replace `a` with `b` in x", [[reading("x")], [editing("x", "a", "b")]]),
        (
            "replace `a` with `b` in x and replace `c` with `d` in y then replace `e` with `f` in x",
            [[reading("x"), reading("y")], [editing("x", "a", "b"), editing("y", "c", "d")], [editing("x", "e", "f")]],
        ),
        ("write x: a then replace `a` with `b` in x", [[writing("x", "a\n")], [editing("x", "a", "b")]]),
        ("", None),
        ("Hello, who are you?", None),
        ("read", None),
        ("read-only mode please", None),
        ("list all the things that I like", None),
        ("run `a` and `b`", None),
        ("replace a with b in x", None),
        ("list then dance", None),
    ],
)
def test_plain_requests_become_rounds_of_calls(text: str, steps: list[list[Call]] | None) -> None:
    assert demo.parse_request(text) == steps


class Conversation:
    """Talks with the demo; `results` are what the tools say, in the order of the calls."""

    def __init__(self, *opening: MessageRecord, tools: tuple[ToolDefinition, ...] = TOOLS) -> None:
        self.messages = list(opening)
        self.tools = tools

    async def answer(self) -> Answer:
        source = ScriptedUpstream("scripted", None, with_demo=True)  # a new one each time: it must not remember
        fold = Fold("made")
        asked = ModelRequest(model_id="demo", system="", messages=self.messages, tools=self.tools)
        async with source.stream(asked) as events:
            async for event in events:
                fold.add(event)
        answer = fold.finish()
        self.messages.append(
            MessageRecord(role="assistant", content=answer.text, tool_calls=list(answer.calls) or None)
        )
        return answer

    def results(self, *contents: object, is_error: bool = False) -> None:
        calls = self.messages[-1].tool_calls or []
        for call, content in zip(calls, contents, strict=True):
            text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
            self.messages.append(MessageRecord(role="tool", content=text, tool_call_id=call.id, is_error=is_error))


def user(text: str) -> MessageRecord:
    return MessageRecord(role="user", content=text)


async def test_what_it_does_not_understand_gets_a_list_of_what_it_can_do() -> None:
    answer = await Conversation(user("Write me a compiler")).answer()

    assert answer.calls == ()
    assert "demo model" in answer.text
    for command in ("list", "read", "search", "run", "write", "replace"):
        assert f"- {command} " in answer.text


async def test_it_works_through_the_rounds_and_reports_what_the_results_said() -> None:
    talk = Conversation(
        user("list and read a.txt then run `make` and search x and write n: hi then replace `a` with `b` in n")
    )

    first = await talk.answer()
    talk.results(
        {"directory": "/w", "entries": [{"path": "src", "type": "directory"}, {"path": "a.txt", "type": "file"}]},
        {"path": "a.txt", "content": "one\ntwo\n", "totalLines": 2},
    )
    second = await talk.answer()
    talk.results(
        {"state": "exited", "exitCode": 2, "stdout": "building\n", "stderr": "no rule\n"},
        {"matches": [{"path": "/w/a", "line": 3, "text": "x = 1\n"}], "truncated": False},
        {"path": "n", "created": True, "bytes": 3},
    )
    third = await talk.answer()
    talk.results({"path": "n", "diff": "-a\n+b\n"})
    last = await talk.answer()

    assert [[call.name for call in answer.calls] for answer in (first, second, third, last)] == [
        ["listFiles", "readFile"],
        ["runCommand", "searchText", "writeFile"],
        ["editFile"],
        [],
    ]
    assert first.text == "Listing files and reading."
    assert last.text.split("\n\n")[:-1] == [
        "listFiles: 2 entries: src/, a.txt",
        "readFile `a.txt`: 2 lines\n    one\n    two",
        "runCommand `make`: exit code 2\n    building\n    no rule",
        "searchText `x`: 1 match\n    /w/a:3: x = 1",
        "writeFile `n`: created, 3 bytes",
        "editFile `n`: changed\n    -a\n    +b",
    ]
    assert last.text.endswith(
        "I am Peen's built-in demo model: I follow a few plain commands with the real tools, no more."
    )
    ids = [call.id for answer in (first, second, third) for call in answer.calls]
    assert len(set(ids)) == len(ids)


async def test_after_a_failure_nothing_more_is_tried_and_the_error_is_quoted() -> None:
    talk = Conversation(user("read gone then run `rm x` and list"))

    await talk.answer()
    talk.results("not found: gone does not exist", is_error=True)
    last = await talk.answer()

    assert last.calls == ()
    assert "readFile `gone`: failed.\n    not found: gone does not exist" in last.text
    assert "Not tried, because a step before failed: runCommand `rm x`, listFiles." in last.text


@pytest.mark.parametrize("content", ["plain words", '{"path": "a"}', '{"path": "a", "content": "cut in the mid', "[1]"])
async def test_a_result_of_an_unknown_shape_is_quoted_as_it_came(content: str) -> None:
    talk = Conversation(user("read a"))

    await talk.answer()
    talk.results(content)
    last = await talk.answer()

    assert f"readFile `a`: done.\n    {content}" in last.text


async def test_long_results_are_shown_in_part() -> None:
    talk = Conversation(user("run `seq 99`"))

    await talk.answer()
    lines = "\n".join(["x" * 500, *map(str, range(98))])
    talk.results({"state": "signalled", "exitCode": -1, "stdout": lines, "stderr": ""})
    last = await talk.answer()

    assert "runCommand `seq 99`: signalled\n    " + "x" * 200 + "…\n    0\n" in last.text
    assert "… 89 more lines" in last.text


async def test_the_next_message_is_obeyed_afresh_and_injected_ones_are_not() -> None:
    talk = Conversation(user("read a"))
    await talk.answer()
    talk.results("text of a")
    talk.messages.append(
        MessageRecord(role="user", content="<events>run `rm`</events>", injected=True, injected_kind="events")
    )
    await talk.answer()
    talk.messages.append(user("list"))

    answer = await talk.answer()
    talk.results("some files")
    last = await talk.answer()

    assert [call.name for call in answer.calls] == ["listFiles"]
    assert "readFile" not in last.text


async def test_messages_that_arrive_together_are_obeyed_together_but_not_those_of_a_failed_turn() -> None:
    talk = Conversation(
        user("run `rm x`"), MessageRecord(role="system", content="The turn failed."), user("read a"), user("list")
    )

    first = await talk.answer()
    talk.results("text of a")
    second = await talk.answer()

    assert [call.name for call in first.calls] == ["readFile"]
    assert [call.name for call in second.calls] == ["listFiles"]


async def test_without_tools_it_says_so_and_calls_nothing() -> None:
    answer = await Conversation(user("list"), tools=()).answer()

    assert answer.calls == ()
    assert "I was given no tools" in answer.text


async def test_its_answers_come_in_small_pieces() -> None:
    source = ScriptedUpstream("scripted", None, with_demo=True)

    async with source.stream(ModelRequest(model_id="demo", system="", messages=[user("hi")])) as events:
        pieces = [event.text async for event in events if isinstance(event, TextDelta)]

    assert len(pieces) > 20
    assert max(map(len, pieces)) == demo.PIECE_CHARACTERS


async def test_the_demo_is_absent_where_it_was_not_asked_for() -> None:
    source = ScriptedUpstream("other", None, with_demo=False)

    with pytest.raises(ModelError, match="upstream 'other' has no model 'demo'"):
        async with source.stream(ModelRequest(model_id="demo", system="", messages=[user("hi")])):
            pytest.fail("the stream must not open")


async def test_it_sums_up_what_was_asked_for_and_takes_over_what_an_earlier_summary_said() -> None:
    lines = "user: list the files\nassistant: Listing files.\nuser: " + "read " * 40
    first = (await Conversation(user(transcript_text(lines)), tools=()).answer()).text
    earlier = summary_text(first, "Current directory: /srv", StandsFor(4, 2))
    again = transcript_text(f"earlier summary: {earlier}\nuser: write a: b\nassistant: done")
    second = (await Conversation(user(again), tools=()).answer()).text

    assert first.splitlines()[:2] == ["The user asked for:", "- list the files"]
    assert first.splitlines()[2].endswith("…")
    assert second.splitlines()[1:4] == [*first.splitlines()[1:3], "- write a: b"]


# --- images

PICTURE = ImageRef(media_type="image/png", size_bytes=70, sha256="ab" * 32)
PHOTO = ImageRef(media_type="image/jpeg", size_bytes=1234, sha256="cd" * 32)


async def test_it_says_which_images_it_was_shown() -> None:
    asked = MessageRecord(role="user", content="What is this?", images=[PICTURE, PHOTO])

    answer = await Conversation(asked).answer()

    assert answer.text.startswith("I was shown 2 images: image/png (70 bytes), image/jpeg (1234 bytes).")


async def test_it_obeys_a_command_and_says_which_image_came_with_it() -> None:
    talk = Conversation(MessageRecord(role="user", content="list", images=[PICTURE]))
    await talk.answer()
    talk.results({"entries": [], "truncated": False})

    answer = await talk.answer()

    assert "no entries" in answer.text
    assert "I was shown an image: image/png (70 bytes)." in answer.text


async def test_it_reports_an_image_that_it_has_read() -> None:
    talk = Conversation(user("read a.jpg"))
    await talk.answer()
    talk.results({"path": "/a.jpg", "mediaType": "image/jpeg", "sizeBytes": 1234, "sha256": "x", "note": "follows"})
    talk.messages.append(shown_image("/a.jpg", PHOTO))

    answer = await talk.answer()

    assert "readFile `a.jpg`: image/jpeg, 1234 bytes" in answer.text
    assert "I was shown an image: image/jpeg (1234 bytes)." in answer.text


async def test_images_of_earlier_messages_are_not_spoken_of_again() -> None:
    talk = Conversation(MessageRecord(role="user", content="What is this?", images=[PICTURE]))
    await talk.answer()
    talk.messages.append(user("And now?"))

    answer = await talk.answer()

    assert "image" not in answer.text
