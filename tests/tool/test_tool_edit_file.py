"""editFile: all edits or none, on the content that this agent knows."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
import trio
from tool_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def change(old: str, new: str) -> dict[str, str]:
    return {"old": old, "new": new}


async def test_an_edit_returns_the_diff_and_the_new_hash(world: World) -> None:
    path = world.file("f", b"one\ntwo\nthree\n")
    await world.ok("readFile", path="f")

    result = await world.ok("editFile", path="f", edits=[change("two", "2"), change("three\n", "")])

    assert world.content("f") == b"one\n2\n"
    assert result == {
        "path": str(path),
        "diff": f"--- {path}\n+++ {path}\n@@ -1,3 +1,2 @@\n one\n-two\n-three\n+2\n",
        "diffTruncated": False,
        "applied": 2,
        "sha256": hashlib.sha256(b"one\n2\n").hexdigest(),
    }


async def test_if_one_edit_fails_none_is_made(world: World) -> None:
    world.file("f", b"one two two")
    await world.ok("readFile", path="f")

    text = await world.refused("editFile", path="f", edits=[change("one", "1"), change("two", "2")])

    assert text.startswith("match not unique: edits[1].old occurs 2 times")
    assert (world.content("f"), world.names()) == (b"one two two", ["f"])


async def test_a_file_must_be_read_and_unchanged_whatever_its_time_stamp_says(world: World) -> None:
    path = world.file("f", b"one")
    assert (await world.refused("editFile", path="f", edits=[change("one", "1")])).startswith("not observed: ")

    await world.ok("readFile", path="f")
    status = path.stat()
    world.file("f", b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (await world.refused("editFile", path="f", edits=[change("two", "2")])).startswith("stale hash: ")

    await world.ok("readFile", path="f")
    os.utime(path, ns=(0, 0))
    await world.ok("editFile", path="f", edits=[change("two", "2")])
    await world.ok("editFile", path="f", edits=[change("2", "3")])
    assert world.content("f") == b"3"


async def test_links_mode_bits_and_hard_links_stay(world: World) -> None:
    script = world.file("script", b"#!/bin/sh\necho one\n")
    script.chmod(0o750)
    os.symlink("script", world.directory / "link")
    world.file("twin", b"one")
    os.link(world.directory / "twin", world.directory / "other")
    await world.ok("readFile", path="link")
    await world.ok("readFile", path="twin")

    await world.ok("editFile", path="link", edits=[change("one", "two")])
    await world.ok("editFile", path="twin", edits=[change("one", "two, longer")])
    await world.ok("editFile", path="twin", edits=[change("two, longer", "3")])

    assert os.readlink(world.directory / "link") == "script"
    assert world.content("script") == b"#!/bin/sh\necho two\n"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert world.content("twin") == world.content("other") == b"3"


async def test_line_ends_and_the_byte_order_mark_stay(world: World) -> None:
    world.file("f", b"\xef\xbb\xbfa\r\nb\r\nc")
    await world.ok("readFile", path="f")

    await world.ok("editFile", path="f", edits=[change("a\nb", "a\nx\nb")])

    assert world.content("f") == b"\xef\xbb\xbfa\r\nx\r\nb\r\nc"


async def test_a_latin_1_file_can_be_edited_in_ascii_once_readfile_has_refused_it(world: World) -> None:
    content = "# Größe\nsize = 1\n".encode("latin-1")
    world.file("f", content)
    assert (await world.refused("editFile", path="f", edits=[change("1", "2")])).startswith("not observed")
    await world.refused("readFile", path="f")

    assert (await world.refused("editFile", path="f", edits=[change("Größe", "x")])).startswith("binary: ")
    assert world.content("f") == content
    await world.ok("editFile", path="f", edits=[change("size = 1", "size = 2")])

    assert world.content("f") == content.replace(b"1", b"2")


async def test_a_file_too_large_to_be_shown_can_still_be_edited(world: World) -> None:
    world.file("f", b"x\n" * 200_000 + b"needle\n")
    await world.refused("readFile", path="f")

    await world.ok("editFile", path="f", edits=[change("needle", "found")])

    assert world.content("f").endswith(b"x\nfound\n")


async def test_binary_files_are_refused(world: World) -> None:
    world.file("f", b"text\0text")
    await world.refused("readFile", path="f")

    text = await world.refused("editFile", path="f", edits=[change("t", "T")])

    assert text.startswith("binary: ")
    assert text.endswith("/f holds NUL bytes and cannot be edited; use runCommand (iconv, xxd, perl, python3)")
    assert world.content("f") == b"text\0text"


async def test_limits_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path, max_edits=2, max_write_bytes=20)
    world.file("f", b"abcdefghij")
    await world.ok("readFile", path="f")

    many = await world.refused("editFile", path="f", edits=[change("a", "1"), change("b", "2"), change("c", "3")])
    large = await world.refused("editFile", path="f", edits=[change("a", "x" * 30)])

    assert many == "limit exceeded: 3 edits in one call; the limit is 2, split them up"
    assert large.startswith("limit exceeded: ")
    assert world.content("f") == b"abcdefghij"


async def test_a_long_diff_is_cut_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, max_diff_bytes=100)
    world.file("f", b"start\n")
    await world.ok("readFile", path="f")

    result = await world.ok("editFile", path="f", edits=[change("start", "é" * 500)])

    assert result["diffTruncated"] is True
    assert 90 < len(result["diff"].encode()) <= 100


async def test_parallel_edits_of_one_file_all_reach_the_disk(tmp_path: Path) -> None:
    for repeat in range(50):
        world = World(tmp_path)
        name = f"f{repeat}"
        world.file(name, b"".join(b"line %d\n" % number for number in range(4)))
        await world.ok("readFile", path=name)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(edit_line, world, name, number)

        assert world.content(name) == b"done 0\ndone 1\ndone 2\ndone 3\n"


async def edit_line(world: World, name: str, number: int) -> None:
    await world.ok("editFile", path=name, edits=[change(f"line {number}", f"done {number}")])


async def test_between_agents_exactly_the_successful_edits_are_on_disk(tmp_path: Path) -> None:
    for repeat in range(50):
        world = World(tmp_path)
        name = f"f{repeat}"
        world.file(name, b"one\ntwo\n")
        agents = [world, world.other_agent()]
        for agent in agents:
            await agent.ok("readFile", path=name)
        succeeded: list[int] = []

        async def edit(number: int, name: str, agents: list[World], succeeded: list[int]) -> None:
            outcome = await agents[number].call("editFile", path=name, edits=[change(["one", "two"][number], "X")])
            if outcome.is_error:
                assert outcome.content.startswith("stale hash: ")
            else:
                succeeded.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(edit, number, name, agents, succeeded)

        assert len(succeeded) == 1
        assert world.content(name) == (b"X\ntwo\n" if succeeded == [0] else b"one\nX\n")
