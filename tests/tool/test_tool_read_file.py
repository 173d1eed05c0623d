"""readFile: windows of lines, and what is refused at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest
import trio
from image_kit import IMAGES, PNG
from tool_world import World

from peen.tool.base import ToolImage
from peen.tool.read_file import window_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_small_file_comes_whole_with_its_hash(world: World) -> None:
    content = "eins\nzwei ünï\nthree".encode()
    path = world.file("f.txt", content)

    result = await world.ok("readFile", path="f.txt")

    assert result == {
        "path": str(path),
        "content": content.decode(),
        "firstLine": 1,
        "lastLine": 3,
        "totalLines": 3,
        "nextOffset": 0,
        "truncated": False,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


@pytest.mark.parametrize(
    ("offset", "limit", "content", "last", "following", "truncated"),
    [
        (1, 2, "a\nb", 2, 3, True),
        (2, 2, "b\nc\n", 3, 0, False),
        (3, None, "c\n", 3, 0, False),
        (4, None, "", 3, 0, False),
        (99, 5, "", 98, 0, False),
    ],
)
async def test_a_window_says_where_to_go_on(
    world: World, offset: int, limit: int | None, content: str, last: int, following: int, truncated: bool
) -> None:
    world.file("f", b"a\nb\nc\n")

    result = await world.ok("readFile", path="f", offset=offset, limit=limit)

    assert (result["content"], result["lastLine"], result["totalLines"]) == (content, last, 3)
    assert (result["nextOffset"], result["truncated"]) == (following, truncated)


async def test_an_empty_file_has_no_lines(world: World) -> None:
    world.file("f", b"")

    result = await world.ok("readFile", path="f")

    assert [result[key] for key in ("content", "firstLine", "lastLine", "totalLines", "nextOffset")] == ["", 1, 0, 0, 0]


@pytest.mark.parametrize("content", ["a\r\nb\r\n", "a\r\nb\n", "\ufeffa\nb", "a\x0bb\x0c\u2028c\n", "a\rb\r"])
async def test_line_ends_marks_and_odd_characters_are_shown_as_they_are(world: World, content: str) -> None:
    world.file("f", content.encode())

    assert (await world.ok("readFile", path="f"))["content"] == content


async def test_paging_by_next_offset_gives_every_line_once(world: World) -> None:
    lines = [f'{number} "quoted" \t line {"é" * (number % 90)}' for number in range(1500)]
    world.file("f", "\n".join(lines).encode())

    seen: list[str] = []
    offset = 1
    while offset:
        result = await world.ok("readFile", path="f", offset=offset)
        seen += result["content"].split("\n")
        offset = result["nextOffset"]

    assert seen == lines


async def test_no_more_than_the_greatest_number_of_lines_is_given(tmp_path: Path) -> None:
    world = World(tmp_path, max_read_lines=3)
    world.file("f", b"1\n2\n3\n4\n")

    result = await world.ok("readFile", path="f", limit=1000)

    assert (result["content"], result["nextOffset"]) == ("1\n2\n3", 4)


async def test_a_very_long_line_is_cut_and_the_rest_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path, max_read_bytes=1_000_000)
    world.file("f", b"x" * 600_000 + b"\nnext\n")

    result = await world.ok("readFile", path="f")

    assert set(result["content"]) == {"x"}
    assert len(result["content"]) > 30_000
    assert f"{600_000 - len(result['content'])} bytes of it are left out" in result["note"]
    assert (result["lastLine"], result["nextOffset"], result["truncated"]) == (1, 2, True)
    assert (await world.ok("readFile", path="f", offset=2))["content"] == "next\n"


def test_a_character_is_never_cut_in_two() -> None:
    window = window_of("é".encode() * 1000, 1, 10, 101)

    assert window.text == "é" * 50
    assert window.cut == 1900


async def test_a_file_over_the_limit_names_its_size_and_the_way_on(tmp_path: Path) -> None:
    world = World(tmp_path, max_write_bytes=400_000)
    for size in (262_145, 400_001):
        world.file("f", b"x" * size)

        text = await world.refused("readFile", path="f")

        assert text.startswith(f"limit exceeded: {world.directory}/f has {size} bytes, readFile takes at most 262144.")
        assert "searchText" in text
        assert "sed -n" in text


async def test_the_limit_itself_is_readable(world: World) -> None:
    world.file("f", b"x\n" * 131_072)

    assert (await world.ok("readFile", path="f"))["totalLines"] == 131_072


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"ab\0cd", "NUL"),
        (b"\x7fELF\x02\x01\x01\0\0", "NUL"),
        (b"PK\x03\x04\x14\0\0\0", "NUL"),
        ("\ufeffhé\n".encode("utf-16-le"), "UTF-16"),
        ("café\n".encode("latin-1"), "Latin-1"),
        ("中文字符 abc\n".encode("gbk") * 20, "GBK"),
    ],
)
async def test_what_is_not_utf8_text_is_refused_with_its_kind_and_the_way_on(
    world: World, content: bytes, word: str
) -> None:
    world.file("f", content)

    text = await world.refused("readFile", path="f")

    assert text.startswith("binary: ")
    assert word in text
    assert "runCommand" in text


async def test_a_character_across_the_end_of_the_inspected_part_is_no_fault(world: World) -> None:
    content = b"x" * 7999 + "é".encode() + b"tail"
    world.file("f", content)

    assert (await world.ok("readFile", path="f"))["content"] == content.decode()


async def test_a_character_cut_by_the_end_of_the_file_is_one(world: World) -> None:
    world.file("f", b"x" * 7999 + b"\xc3")

    assert "not UTF-8" in await world.refused("readFile", path="f")


async def test_bad_bytes_behind_the_inspected_part_are_shown_as_replaced(world: World) -> None:
    world.file("f", b"x" * 8000 + b"\xff\n")

    result = await world.ok("readFile", path="f")

    assert result["content"].endswith("x\ufffd\n")
    assert "U+FFFD" in result["note"]


async def test_links_are_followed_and_known_by_their_target(world: World) -> None:
    target = world.file("target", b"x\n")
    os.symlink("target", world.directory / "link")

    outcome = await world.call("readFile", path="link")

    assert [seen.path for seen in outcome.ledger.observations] == [str(target.resolve())]


async def test_pipes_devices_directories_and_loops_are_refused_without_waiting(world: World) -> None:
    os.mkfifo(world.directory / "pipe")
    os.symlink("loop", world.directory / "loop")
    os.symlink("/dev/zero", world.directory / "device")
    (world.directory / "sub").mkdir()

    with trio.fail_after(2):
        for name, word in [
            ("pipe", "a named pipe"),
            ("loop", "a loop of symbolic links"),
            ("device", "a character device"),
            ("sub", "a directory; use listFiles"),
        ]:
            text = await world.refused("readFile", path=name)
            assert text.startswith("not regular: ")
            assert word in text


async def test_a_missing_file_is_named_and_so_is_a_similar_one(world: World) -> None:
    world.file("settings.py", b"")

    assert await world.refused("readFile", path="setings.py") == (
        f"not found: {world.directory}/setings.py does not exist; did you mean settings.py?"
    )
    assert await world.refused("readFile", path="no/such") == (
        f"not found: {world.directory}/no/such does not exist; nor does {world.directory}/no"
    )
    assert (await world.refused("readFile", path="settings.py/x")).startswith("not a directory: ")


async def test_a_path_may_be_relative_absolute_or_at_home(world: World) -> None:
    world.file("home/at/h", b"home\n")
    absolute = world.file("a", b"absolute\n")

    assert (await world.ok("readFile", path="~/at/h"))["content"] == "home\n"
    assert (await world.ok("readFile", path=str(absolute)))["content"] == "absolute\n"
    assert (await world.ok("readFile", path="./home/../a"))["content"] == "absolute\n"
    assert (await world.refused("readFile", path="a\0b")).startswith("validation failed: a path cannot hold a NUL")
    assert (await world.refused("readFile", path="x" * 5000)).startswith("validation failed: the path is too long")


async def test_a_file_whose_size_is_not_known_beforehand_is_read(world: World) -> None:
    result = await world.ok("readFile", path="/proc/self/status")

    assert result["content"].startswith("Name:")


async def test_names_that_are_not_utf8_are_shown_escaped(world: World) -> None:
    world.file(os.fsdecode(b"caf\xe9"), b"x\n")
    os.symlink(b"caf\xe9", os.fsencode(world.directory) + b"/link")

    outcome = await world.call("readFile", path="link")

    assert not outcome.is_error
    assert outcome.ledger.observations[0].path.endswith("caf\\xe9")


# --- images


@pytest.mark.parametrize(("media_type", "data"), IMAGES.items())
async def test_an_image_is_shown_and_its_result_says_what_it_is(world: World, media_type: str, data: bytes) -> None:
    world.file("a.bin", data)

    outcome = await world.call("readFile", path="a.bin")

    path = f"{world.directory}/a.bin"
    assert not outcome.is_error
    assert outcome.image == ToolImage(path, data)
    told = json.loads(outcome.content)
    assert told.pop("note")
    assert told == {
        "path": path,
        "mediaType": media_type,
        "sizeBytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


async def test_a_model_that_takes_no_images_is_told_how_to_learn_about_one(world: World) -> None:
    world.file("a.png", PNG)
    world.context = dataclasses.replace(world.context, image_input=False)

    outcome = await world.call("readFile", path="a.png")

    assert outcome.is_error
    assert outcome.image is None
    assert outcome.content.startswith(
        f"binary: {world.directory}/a.png is an image (image/png), and this model takes no"
    )
    assert "runCommand" in outcome.content


async def test_an_image_has_a_limit_of_its_own(world: World) -> None:
    limit = world.context.settings.max_image_bytes
    world.file("fits.png", PNG + bytes(limit - len(PNG)))
    world.file("large.png", PNG + bytes(limit - len(PNG) + 1))

    fits = await world.call("readFile", path="fits.png")
    large = await world.refused("readFile", path="large.png")

    assert fits.image is not None
    assert len(fits.image.data) == limit
    assert large.startswith("limit exceeded: ")


async def test_a_lower_limit_of_images_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, max_image_bytes=100)
    world.file("large.png", PNG + bytes(100))

    text = await world.refused("readFile", path="large.png")

    assert "has 170 bytes, an image may have 100 (PEEN_MAX_IMAGE_BYTES)" in text
    assert "resize" in text


async def test_a_broken_image_is_not_shown_and_the_model_is_told_what_is_wrong(world: World) -> None:
    world.file("a.png", PNG[:-12])

    text = await world.refused("readFile", path="a.png")

    assert text.startswith(
        f"binary: {world.directory}/a.png begins like an image (image/png) and is broken: it is cut off"
    )
    assert "runCommand" in text


async def test_a_text_that_begins_like_an_image_is_a_text(world: World) -> None:
    world.file("notes.txt", b"GIF89a is how a GIF begins\n")

    assert (await world.ok("readFile", path="notes.txt"))["content"].startswith("GIF89a is")


async def test_an_image_that_was_seen_may_be_replaced(world: World) -> None:
    path = world.file("a.png", PNG)

    await world.call("readFile", path="a.png")
    await world.ok("removePath", path="a.png")

    assert not path.exists()
