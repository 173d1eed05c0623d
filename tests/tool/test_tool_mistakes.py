"""What models get wrong again and again, and the words that put them right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_world import World

CODE = (
    "import os\n\n\n"
    "def area(width: int, height: int) -> int:\n"
    "    if width < 0:\n"
    '        raise ValueError("negative\\n")\n'
    "    return width * height\n\n\n"
    "def volume(width: int, height: int, depth: int) -> int:\n"
    "\treturn area(width, height) * depth\n"
)
AT = "match not found: edits[0].old does not occur in {path}"
RETRY = "; add surrounding text until it occurs once"

# name, the old text of an edit, and what is said
EDITS: list[tuple[str, str, str]] = [
    (
        "the line numbers of some viewer",
        "     5\t    if width < 0:\n     6\t        raise ValueError",
        f"{AT}; without its line numbers it does at line 5",
    ),
    ("line numbers with a bar", "7|    return width * height", f"{AT}; without its line numbers it does at line 7"),
    (
        "an indentation that is not there",
        "  if width < 0:\n      raise",
        f'{AT}; it is most like line 5 and on, but line 5 is "    if width < 0:", not "  if width < 0:"',
    ),
    (
        "another indentation of whole lines",
        "        return width * height\n\n\ndef volume(width: int, height: int, depth: int) -> int:",
        f'{AT}; only white space differs: line 7 is "    return width * height", not "        return width * height"',
    ),
    (
        "spaces for a tab",
        "def volume(width: int, height: int, depth: int) -> int:\n    return area(width, height) * depth",
        rf'{AT}; only white space differs: line 11 is "\treturn area(width, height) * depth", '
        'not "    return area(width, height) * depth"',
    ),
    (
        "white space at the end of a line",
        "    if width < 0: \n        raise",
        f"{AT}; without the white space at the ends of its lines it does at line 5",
    ),
    (
        "one empty line too few",
        "import os\n\ndef area(width: int, height: int) -> int:",
        f'{AT}; it is most like line 1 and on, but line 3 is "", not "def area(width: int, height: int) -> int:"',
    ),
    (
        "line ends around it that are not there",
        "\n\n\nimport os\n",
        f"{AT}; without the line ends around it it does at line 1",
    ),
    (
        "an escape taken for the character",
        'raise ValueError("negative\n")',
        rf"{AT}; with escapes such as \n and \" as the file has them it does at line 6",
    ),
    (
        "the character taken for an escape",
        r"import os\n\n\ndef area",
        rf"{AT}; with real characters in place of escapes such as \n and \" it does at line 1",
    ),
    ("entities of HTML", "if width &lt; 0:", f"{AT}; with < > & in place of &lt; &gt; &amp; it does at line 5"),
    (
        "typographic quotes",
        "raise ValueError(\u201cnegative",
        f"{AT}; with plain quotes, dashes and spaces it does at line 6",
    ),
    (
        "a word from memory",
        "def area(width: int, length: int) -> int:",
        f'{AT}; the nearest is line 4, "def area(width: int, height: int) -> int:"',
    ),
    (
        "one line of several from memory",
        "    if width < 0:\n        raise TypeError()\n    return width * height\n",
        f'{AT}; it is most like line 5 and on, but line 6 is "        raise ValueError(\\"negative\\\\n\\")", '
        'not "        raise TypeError()"',
    ),
    (
        "something else altogether",
        "SELECT 1 FROM 2",
        f"{AT}; nothing in it is like that: look with readFile and copy the text exactly",
    ),
    (
        "what occurs often",
        "width",
        f"match not unique: edits[0].old occurs 5 times in {{path}} (at lines 4, 5, 7, 10, 11){RETRY}",
    ),
    (
        "what occurs twice",
        "height: int",
        f"match not unique: edits[0].old occurs 2 times in {{path}} (at lines 4, 10){RETRY}",
    ),
]


@pytest.mark.parametrize(("name", "old", "told"), EDITS, ids=[each[0] for each in EDITS])
async def test_an_edit_that_does_not_fit_is_told_why(tmp_path: Path, name: str, old: str, told: str) -> None:
    world = World(tmp_path)
    path = world.file("code.py", CODE.encode())
    await world.ok("readFile", path="code.py")

    text = await world.refused("editFile", path="code.py", edits=[{"old": old, "new": "x"}])

    assert text == told.format(path=path)
    assert world.content("code.py") == CODE.encode()


async def test_carriage_returns_are_no_mistake(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file("unix", b"a\nb\n")
    world.file("dos", b"a\r\nb\r\n")
    for name, old in (("unix", "a\r\nb"), ("dos", "a\nb")):
        await world.ok("readFile", path=name)
        await world.ok("editFile", path=name, edits=[{"old": old, "new": "x\ny"}])

    assert (world.content("unix"), world.content("dos")) == (b"x\ny\n", b"x\r\ny\r\n")


async def test_an_edit_that_was_made_before_is_recognised(tmp_path: Path) -> None:
    world = World(tmp_path)
    path = world.file("f", b"one\ntwo\n")
    await world.ok("readFile", path="f")
    await world.ok("editFile", path="f", edits=[{"old": "one", "new": "uno"}])

    text = await world.refused("editFile", path="f", edits=[{"old": "one", "new": "uno"}])

    assert text == (
        f"match not found: edits[0].old does not occur in {path}, but its new text does at line 1: "
        "perhaps it was applied before"
    )


# What is there, what was read of it, what is there now, and what is said of the difference.
CHANGES: list[tuple[bytes, bytes, str]] = [
    (b"a\nb\nc\n", b"a\nB\nc\n", ": line 2 changed."),
    (b"a\nb\nc\n", b"a\nX\nY\n", ": lines 2-3 changed."),
    (b"a\nb\nc\n", b"a\nb\nx\ny\nc\n", ": lines 3-4 are new."),
    (b"a\nb\nc\n", b"a\n", ": lines 2-3 are gone."),
    (b"a\nb\nc\n", b"a\nx\ny\nz\n", ": lines 2-3 became lines 2-4."),
    (b"a\nb", b"a\nb\n", ": line 2 changed."),
    (b"a\rb\r", b"a\rx\r", ": line 2 changed."),
    (b"a\n" * 20_000, b"b\n" * 20_000, "."),
]


@pytest.mark.parametrize(("before", "after", "told"), CHANGES)
@pytest.mark.parametrize("by", ["hand", "another agent"])
async def test_who_comes_second_learns_which_lines_changed(
    tmp_path: Path, before: bytes, after: bytes, told: str, by: str
) -> None:
    world = World(tmp_path)
    path = world.file("f", before)
    await world.ok("readFile", path="f")
    if by == "hand":
        path.write_bytes(after)
    else:
        other = world.other_agent()
        await other.ok("readFile", path="f")
        await other.ok("writeFile", path="f", content=after.decode())

    expected = (
        f"stale hash: {path} was changed by something else since you last read or wrote it{told} "
        "Nothing was written. Read it again with readFile, then retry with its present content"
    )
    patch = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+x\n*** End Patch"
    assert await world.refused("editFile", path="f", edits=[{"old": "a", "new": "x"}]) == expected
    assert await world.refused("writeFile", path="f", content="x") == expected
    assert await world.refused("applyPatch", patch=patch) == f"{expected}\nNo file was changed."
    assert path.read_bytes() == after


async def test_what_an_agent_wrote_itself_is_compared_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    patch = "*** Begin Patch\n*** Add File: patched\n+a\n+b\n*** End Patch"
    await world.ok("writeFile", path="written", content="a\nb\n")
    await world.ok("applyPatch", patch=patch)
    await world.ok("applyPatch", patch=patch.replace("Add", "Update").replace("\n+a\n+b", "\n@@\n-a\n+A"))
    await world.ok("movePath", source="patched", destination="moved")
    for name in ("written", "moved"):
        world.file(name, b"a\n" if name == "written" else b"A\n")

        text = await world.refused("editFile", path=name, edits=[{"old": "b", "new": "x"}])

        assert f"{name} was changed by something else since you last read or wrote it: line 2 is gone. " in text


# tool, arguments, what is said; {at} is the directory
CALLS: list[tuple[str, dict[str, object], str]] = [
    (
        "editFile",
        {"path": "unread", "edits": [{"old": "a", "new": "b"}]},
        "not observed: {at}/unread exists, and you have not read it; read it with readFile, then retry",
    ),
    (
        "writeFile",
        {"path": "unread", "content": "x"},
        "not observed: {at}/unread exists, and you have not read it; read it with readFile, then retry",
    ),
    (
        "editFile",
        {"path": "unread", "edits": [{"old": "", "new": "b"}]},
        "validation failed: editFile: edits[0].old: expected text of length at least 1",
    ),
    (
        "editFile",
        {"path": "unread", "oldText": "a", "newText": "b"},
        "validation failed: editFile: oldText: unknown argument; it takes path, edits, expectedSha256",
    ),
    (
        "editFile",
        {"path": "unread", "edits": []},
        "validation failed: editFile: edits: expected a list of length at least 1",
    ),
    ("readFile", {"path": "sub"}, "not regular: {at}/sub is a directory; use listFiles"),
    ("writeFile", {"path": "sub", "content": "x"}, "not regular: {at}/sub is a directory; use listFiles"),
    ("listFiles", {"path": "unread"}, "not a directory: {at}/unread is a file; use readFile"),
    ("readFile", {"path": "undead"}, "not found: {at}/undead does not exist; did you mean unread?"),
    ("readFile", {"path": "nowhere/f"}, "not found: {at}/nowhere/f does not exist; nor does {at}/nowhere"),
    ("readFile", {"path": "loop"}, "not regular: {at}/loop is a loop of symbolic links"),
    ("readFile", {"path": "../../../../../../../../../nowhere"}, "not found: /nowhere does not exist"),
    (
        "removePath",
        {"path": "sub"},
        "not observed: {at}/sub is a directory that you have not seen; list it with listFiles first, then retry",
    ),
    ("removePath", {"path": "."}, "permission denied: {at} is or holds the workspace and is never removed or moved"),
    (
        "searchText",
        {"pattern": "a\nb"},
        "validation failed: pattern: lines are searched one by one, so it cannot hold a line end",
    ),
    (
        "applyPatch",
        {"patch": "--- a/f\n+++ b/f\n"},
        'invalid patch: its first line must be "*** Begin Patch"; a unified diff is not understood',
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "told"), CALLS)
async def test_a_call_that_cannot_work_says_what_to_do(
    tmp_path: Path, tool: str, arguments: dict[str, object], told: str
) -> None:
    world = World(tmp_path)
    world.file("unread", b"a")
    (tmp_path / "sub").mkdir()
    os.symlink("loop", tmp_path / "loop")

    assert await world.refused(tool, **arguments) == told.format(at=tmp_path)
