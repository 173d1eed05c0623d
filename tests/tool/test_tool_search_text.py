"""searchText: every matching line of text files, and nothing else."""

from __future__ import annotations

import codecs
import os
import struct
import zlib
from pathlib import Path

import pytest
import trio
from image_kit import PNG
from tool_world import World

from peen.tool.matches import MAX_TEXT_BYTES


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def found(world: World, **arguments: object) -> list[tuple[str, int, str]]:
    """Matches as (path relative to the world, line, text)."""
    matches = (await world.ok("searchText", **arguments))["matches"]
    return [(match["path"].removeprefix(f"{world.directory}/"), match["line"], match["text"]) for match in matches]


async def test_matches_are_sorted_by_path_and_line(world: World) -> None:
    for name in ("b", "a/x", "a.txt", ".hidden", "sub/ignored"):
        world.file(name, b"needle 1\nhay\nneedle 2\r\n")
    world.file(".gitignore", b"ignored\n")

    matches = await found(world, pattern="needle")

    assert [match[:2] for match in matches] == [
        (name, line) for name in (".hidden", "a.txt", "a/x", "b", "sub/ignored") for line in (1, 3)
    ]
    assert {match[2] for match in matches} == {"needle 1", "needle 2"}


async def test_a_pattern_is_taken_literally_unless_regex_says_otherwise(world: World) -> None:
    world.file("f", b"a.c\nabc\r\n-x\nABC\n")

    assert await found(world, pattern="a.c") == [("f", 1, "a.c")]
    assert await found(world, pattern="a.c", regex=True) == [("f", 1, "a.c"), ("f", 2, "abc")]
    assert await found(world, pattern="^abc$", regex=True) == [("f", 2, "abc")]
    assert await found(world, pattern="(?i)^abc$", regex=True) == [("f", 2, "abc"), ("f", 4, "ABC")]
    assert await found(world, pattern="-x") == [("f", 3, "-x")]
    assert await found(world, pattern="nowhere") == []


async def test_a_bad_regular_expression_is_explained(world: World) -> None:
    assert (await world.refused("searchText", pattern="(a", regex=True)).startswith(
        "validation failed: pattern: regex parse error:"
    )
    assert "unclosed group" in await world.refused("searchText", pattern="(a", regex=True)
    assert "line end" in await world.refused("searchText", pattern="a\nb")
    assert "line end" in await world.refused("searchText", pattern="a\nb", regex=True)
    assert "NUL" in await world.refused("searchText", pattern="a\0b")


async def test_binary_large_and_linked_files_and_git_are_skipped_in_a_walk(tmp_path: Path) -> None:
    world = World(tmp_path, max_search_file_bytes=1000)
    world.file("binary", b"needle\n\0\n")
    world.file("late", b"needle\n" + b"x\n" * 400 + b"\0")
    world.file("large", b"needle\n" + b"x" * 1000)
    world.file(".git/config", b"needle\n")
    world.file("sub/.git", b"needle\n")
    world.file("outside/f", b"needle\n")
    world.file("tree/f", b"needle\n")
    os.symlink("../outside", world.directory / "tree/directory")
    os.symlink("f", world.directory / "tree/file")
    os.mkfifo(world.directory / "pipe")

    with trio.fail_after(5):
        assert [match[0] for match in await found(world, pattern="needle")] == ["outside/f", "tree/f"]
    assert [match[0] for match in await found(world, pattern="needle", path="tree")] == ["tree/f"]
    assert [match[0] for match in await found(world, pattern="needle", path="tree/directory")] == ["tree/directory/f"]
    assert [match[0] for match in await found(world, pattern="needle", path=".git")] == [".git/config"]


async def test_a_file_named_directly_is_searched_or_refused_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path, max_search_file_bytes=10_000)
    world.file("text", b"needle\n")
    world.file("binary", b"needle\0\n")
    world.file("large", b"needle\n" * 10_000)
    os.mkfifo(world.directory / "pipe")

    with trio.fail_after(5):
        assert await found(world, pattern="needle", path="text") == [("text", 1, "needle")]
        assert (await world.refused("searchText", pattern="needle", path="binary")).startswith("binary: ")
        assert (await world.refused("searchText", pattern="needle", path="large")).startswith("limit exceeded: ")
        assert (await world.refused("searchText", pattern="needle", path="pipe")).startswith("not regular: ")
        assert (await world.refused("searchText", pattern="needle", path="none")).startswith("not found: ")


LATE = b"needle 1\r\n" + b"x\n" * 5000 + b"\0a\0needle 2\0needle 3\n\0\nneedle 4"
FOUND_LATE = [(1, "needle 1"), (5002, "\0a\0needle 2\0needle 3"), (5004, "needle 4")]


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("where", ["text", "."])
async def test_in_a_walk_and_by_name_the_same_files_are_text_as_for_read_file(
    world: World, where: str, mark: bytes
) -> None:
    world.file("text", mark + LATE)
    world.file("early", b"needle\n\0")
    world.file("wide", "needle\n".encode("utf-16"))
    world.file("wide without NUL", codecs.BOM_UTF16_LE + b"needle.." * 10 + b"\x41\x2d\x42\x4e")
    world.file("image", b"\xff\xd8\xff needle")

    matches = await found(world, pattern="needle", path=where)

    assert [(line, text.removeprefix("\ufeff")) for _, line, text in matches] == FOUND_LATE
    assert {name for name, _, _ in matches} == {"text"}
    shown = (await world.ok("readFile", path="text", offset=5002))["content"]
    assert shown.split("\n")[0] == FOUND_LATE[1][1]
    for name in ("early", "wide", "wide without NUL", "image"):
        for tool, arguments in (("searchText", {"pattern": "needle", "path": name}), ("editFile", edit(name))):
            assert (await world.refused(tool, **arguments)).startswith("binary: ")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


LARGE_PNG = PNG[:33] + chunk(b"tEXt", b"Comment\0" + b"needle\n" * 3000) + PNG[33:]

# None begins as UTF-8, so what comes behind the beginning counts as well.
LATE_KINDS = [
    ("binary", b"\xe9\n" + b"line\n" * 3000 + b"\0 needle\n" * 300, "holds NUL bytes"),
    ("more matches than wanted", b"\xe9\n" + b"needle\n" * 3000 + b"\0", "holds NUL bytes"),
    ("a large image", LARGE_PNG, "is an image (image/png)"),
    ("a cut image", LARGE_PNG[:-20], "begins like an image (image/png)"),
]


@pytest.mark.parametrize(("_name", "content", "what"), LATE_KINDS, ids=[each[0] for each in LATE_KINDS])
async def test_what_only_the_end_of_a_file_shows_to_be_no_text_is_known_to_all_tools(
    world: World, _name: str, content: bytes, what: str
) -> None:
    at = world.file("f", content)

    by_name = await world.refused("searchText", pattern="needle", path="f")
    edited = await world.refused("editFile", **edit("f"))

    assert by_name.startswith(f"binary: {at} {what}; search it with runCommand")
    assert edited.startswith(f"binary: {at} {what} and cannot be edited")
    assert await found(world, pattern="needle") == []


async def test_latin_1_is_searched_however_long_it_is(world: World) -> None:
    world.file("f", b"\xe9\n" + b"line\n" * 3000 + b"needle \xe9\n")

    assert await found(world, pattern="needle", path="f") == [("f", 3002, "needle \ufffd")]
    assert await found(world, pattern="needle") == [("f", 3002, "needle \ufffd")]


def edit(name: str) -> dict[str, object]:
    return {"path": name, "edits": [{"old": "needle", "new": "x"}]}


async def test_matches_in_what_is_no_text_take_no_room(world: World) -> None:
    for number in range(20):
        world.file(f"binary{number:02}", b"\0" + b"needle\n" * 50)
    world.file("z", b"needle\n" * 3)

    result = await world.ok("searchText", pattern="needle", maxMatches=3)

    assert [match["line"] for match in result["matches"]] == [1, 2, 3]
    assert result["truncated"] is False


@pytest.mark.parametrize(
    ("include", "names"),
    [
        (["*.py"], ["a.py", "sub/c.py"]),
        (["a.*", "b.t?t"], ["a.py", "b.txt"]),
        (["*.{py,txt}"], ["a.py", "b.txt", "sub/c.py"]),
        (["!x"], ["!x"]),
        (["#y"], ["#y"]),
        (["["], []),
        (["[", "*.py", "{b"], ["a.py", "sub/c.py"]),
        ([""], []),
        ([], []),
        (["sub"], []),
    ],
)
async def test_globs_choose_files_by_base_name_and_a_malformed_one_matches_nothing(
    world: World, include: list[str], names: list[str]
) -> None:
    for name in ("a.py", "b.txt", "sub/c.py", "!x", "#y"):
        world.file(name, b"needle\n")

    assert sorted(match[0] for match in await found(world, pattern="needle", include=include)) == names


async def test_a_glob_with_a_slash_is_refused_with_the_remedy(world: World) -> None:
    text = await world.refused("searchText", pattern="x", include=["*.py", "src/**/*.py"])

    assert text.startswith("validation failed: include[1]: ")
    assert "path" in text


async def test_no_more_matches_than_asked_for_and_truncated_says_so(world: World) -> None:
    world.file("a", b"needle\n" * 3)
    world.file("b", b"needle\n" * 3)
    world.file("c", b"needle\n" * 100_000)

    for most, truncated in ((2, True), (5, True), (500, True)):
        result = await world.ok("searchText", pattern="needle", maxMatches=most)
        assert (len(result["matches"]), result["truncated"]) == (min(most, 200), truncated)

    exact = await world.ok("searchText", pattern="needle", path="a", maxMatches=3)
    assert (len(exact["matches"]), exact["truncated"]) == (3, False)


async def test_a_result_that_would_be_too_large_is_truncated(world: World) -> None:
    world.file("f", (b'"' * 400 + b"needle\n") * 190)

    result = await world.ok("searchText", pattern="needle")

    assert result["truncated"] is True
    assert 20 < len(result["matches"]) < 190


async def test_a_long_line_is_shortened_around_the_match(world: World) -> None:
    world.file("f", "é".encode() * 5000 + b"needle" + "ü".encode() * 5000)

    [(_, _, text)] = await found(world, pattern="needle")

    assert "needle" in text
    assert (text[0], text[-1]) == ("…", "…")
    assert "\ufffd" not in text
    assert len(text.strip("…").encode()) <= MAX_TEXT_BYTES


async def test_names_and_lines_that_are_not_utf8_are_shown_as_far_as_possible(world: World) -> None:
    world.file(os.fsdecode(b"caf\xe9"), b"na\xefve needle\n")

    [match] = (await world.ok("searchText", pattern="needle"))["matches"]

    assert match["path"] == f"{world.directory}/caf\\xe9"
    assert match["text"] == "na\ufffdve needle"


async def test_a_search_is_stopped_by_cancellation(world: World) -> None:
    world.file("f", b"x\n" * 900_000)

    with trio.CancelScope() as scope:
        scope.cancel()
        await world.call("searchText", pattern="x")

    assert scope.cancelled_caught


async def test_of_too_many_matches_it_is_always_the_first_by_path_that_are_kept(world: World) -> None:
    for number in range(300):
        world.file(f"d{number % 7}/f{number:03}", b"needle\n" * 3)
    every = sorted(str(path) for path in world.directory.rglob("f*"))

    for _ in range(10):
        result = await world.ok("searchText", pattern="needle", maxMatches=100)

        assert [match["path"] for match in result["matches"]] == [path for path in every[:34] for _ in range(3)][:100]
        assert result["truncated"] is True
    whole = await world.ok("searchText", pattern="needle", path="d0")
    assert [match["line"] for match in whole["matches"]] == [1, 2, 3] * 43
    assert whole["truncated"] is False
