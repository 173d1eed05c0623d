"""Files of every odd kind under every tool: what is changed is changed to the byte, what cannot be is left alone."""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from image_kit import JPEG, PNG
from tool_world import World, ordinary_directory, ordinary_user

MARK = codecs.BOM_UTF8


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def patch(name: str, *lines: str) -> str:
    return "\n".join(["*** Begin Patch", f"*** Update File: {name}", "@@", *lines, "*** End Patch"])


# name, what is before the changed line, its line end, what is behind it
CONTENTS: list[tuple[str, bytes, bytes, bytes]] = [
    ("line feeds", b"a\n", b"\n", b"c\n"),
    ("carriage returns and line feeds", b"a\r\n", b"\r\n", b"c\r\n"),
    ("carriage returns", b"a\r", b"\r", b"c\r"),
    ("all kinds of line ends", b"a\r\nb\n\rc\r\r\n", b"\r\n", b"d\ne\r\n"),
    ("no final line end", b"a\n", b"", b""),
    ("nothing else", b"", b"", b""),
    ("a byte order mark", MARK, b"\r\n", b"c"),
    ("Latin-1", "für\n".encode("latin-1"), b"\n", "Größe ¬ \n".encode("latin-1")),
    ("GBK", "中文\r\n乗乗乗\r\n".encode("gbk"), b"\r\n", "乗\r\n".encode("gbk")),
    ("Shift JIS", "表示\n".encode("shift-jis"), b"\n", "ソ\n".encode("shift-jis")),
    ("the end inside a character", b"a\n", b"\n", "中".encode()[:2]),
    ("single bytes that are no text", b"\x80\n", b"\n", b"\xfe\xff\xc0\x80\n"),
    ("bad bytes far behind", b"a\n" * 5000, b"\n", b"\xff\n"),
    ("control characters", b"\x01\x1b[0m\x0c\x7f\n", b"\n", b"\x0b\x1c\xc2\x85\xe2\x80\xa8\n"),
    ("a line of 600 KB", b"x" * 600_000 + b"\n", b"\n", b"y" * 600_000),
    ("many empty lines", b"\n" * 100_000, b"\n", b"\n" * 100_000),
]


@pytest.mark.parametrize(("_name", "before", "end", "after"), CONTENTS, ids=[each[0] for each in CONTENTS])
@pytest.mark.parametrize("tool", ["editFile", "applyPatch"])
async def test_every_byte_outside_of_the_change_stays(
    world: World, _name: str, before: bytes, end: bytes, after: bytes, tool: str
) -> None:
    path = world.file("f", before + b"needle" + end + after)
    path.chmod(0o710)
    await world.call("readFile", path="f")  # refused for some, and noted all the same

    if tool == "editFile":
        await world.ok("editFile", path="f", edits=[{"old": "needle", "new": "one\ntwo"}])
    else:
        await world.ok("applyPatch", patch=patch("f", "-needle", "+one", "+two"))

    assert world.content("f") == before + b"one" + (end or b"\n") + b"two" + end + after
    assert stat.S_IMODE(path.stat().st_mode) == 0o710
    assert world.names() == ["f"]


# 4000 characters without a line end, none of which has a NUL byte; one is U+2D41, whose bytes are "A-"
IDEOGRAMS = "".join(chr(0x4E01 + number) for number in range(6000) if (0x4E01 + number) & 0xFF)[:4500] + "\u2d41\u4e42"

WIDE = "looks like UTF-16 text"
FOREIGN: list[tuple[str, bytes, str, str]] = [
    *[
        (encoding, "needle\nmore\n".encode(encoding), what, command)
        for encoding, what, command in [
            ("utf-16", "looks like UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
            ("utf-32", "looks like UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
            ("utf-16-le", "holds NUL bytes", "iconv"),
            ("utf-16-be", "holds NUL bytes", "iconv"),
        ]
    ],
    (
        "no NUL, little",
        codecs.BOM_UTF16_LE + IDEOGRAMS.encode("utf-16-le"),
        "looks like UTF-16 text",
        "iconv -f UTF-16",
    ),
    ("no NUL, big", codecs.BOM_UTF16_BE + IDEOGRAMS.encode("utf-16-be"), WIDE, "iconv -f UTF-16"),
    ("nothing but the mark", codecs.BOM_UTF16_LE, WIDE, "iconv -f UTF-16"),
    ("NUL comes late", (IDEOGRAMS + "A-\n").encode("utf-16-le"), "holds NUL bytes", "iconv"),
    ("a broken image", b"\x89PNG\r\n\x1a\n\0needle A-", "begins like an image (image/png)", "xxd"),
    ("another, without NUL", b"\xff\xd8\xff\xe0 needle A-", "begins like an image (image/jpeg)", "xxd"),
    ("a program", b"\x7fELF\x02\x01\x01\0needle A-", "holds NUL bytes", "xxd"),
]


@pytest.mark.parametrize(("_name", "content", "what", "command"), FOREIGN, ids=[each[0] for each in FOREIGN])
async def test_what_is_no_text_is_named_with_a_way_out_and_not_touched(
    world: World, _name: str, content: bytes, what: str, command: str
) -> None:
    at = world.file("f", content)
    pieces = ["needle", "A-", "-", "N"]

    calls: list[tuple[str, dict[str, object]]] = [("readFile", {"path": "f"}), *changing("f", *pieces)]
    for tool, arguments in calls:
        text = await world.refused(tool, **arguments)
        assert text.startswith(f"binary: {at} {what}"), tool
        assert "runCommand (" in text
        assert command in text
    calls = [
        ("writeFile", {"path": "f", "content": "x"}),
        ("removePath", {"path": "f"}),
        ("movePath", {"source": "f", "destination": "g"}),
        ("applyPatch", {"patch": "*** Begin Patch\n*** Delete File: f\n*** End Patch"}),
    ]
    for tool, arguments in calls:
        text = await world.refused(tool, **arguments)
        assert text.startswith(f"not observed: {at} {what}, and readFile cannot show it; use runCommand ("), tool
    # Nor if the agent knows the content from before.
    world.context.ledger.saw_content(str(at), hashlib.sha256(content).hexdigest())
    for tool, arguments in changing("f", *pieces):
        assert (await world.refused(tool, **arguments)).startswith("binary: ")

    assert (world.content("f"), world.names()) == (content, ["f"])


def changing(name: str, *pieces: str) -> list[tuple[str, dict[str, object]]]:
    """Calls that would change a piece of a file."""
    calls: list[tuple[str, dict[str, object]]] = []
    for piece in pieces:
        calls.append(("editFile", {"path": name, "edits": [{"old": piece, "new": "x"}]}))
        calls.append(("applyPatch", {"patch": patch(name, f"-{piece}", "+x")}))
    return calls


@pytest.mark.parametrize("content", [PNG + b"needle", JPEG + b"needle"])
async def test_an_image_can_be_replaced_once_it_was_seen_and_is_never_edited(world: World, content: bytes) -> None:
    at = world.file("f", content)
    assert (await world.refused("writeFile", path="f", content="x")).endswith("read it with readFile, then retry")
    blind = dataclasses.replace(world.context, image_input=False)
    seeing, world.context = world.context, blind
    text = await world.refused("writeFile", path="f", content="x")
    assert text.startswith(f"not observed: {at} is an image (image/")
    assert "readFile cannot show it; use runCommand (mv, rm)" in text
    world.context = seeing

    await world.ok("readFile", path="f")
    for tool, arguments in changing("f", "needle"):
        assert (await world.refused(tool, **arguments)).startswith(f"binary: {at} is an image (image/"), tool
    assert world.content("f") == content
    await world.ok("writeFile", path="f", content="x")

    assert world.content("f") == b"x"


def looking_and_changing(name: str) -> list[tuple[str, dict[str, object]]]:
    """A call of each tool that reads or changes the content of a file."""
    return [
        ("readFile", {"path": name}),
        ("searchText", {"pattern": "a", "path": name}),
        ("writeFile", {"path": name, "content": "x"}),
        ("editFile", {"path": name, "edits": [{"old": "a", "new": "b"}]}),
        ("applyPatch", {"patch": patch(name, "-a", "+b")}),
    ]


async def test_pipes_sockets_devices_directories_and_loops_are_refused_at_once_by_every_tool(world: World) -> None:
    os.mkfifo(world.directory / "pipe")
    os.symlink("pipe", world.directory / "link to pipe")
    os.symlink("loop", world.directory / "loop")
    os.symlink("ring2", world.directory / "ring1")
    os.symlink("ring1", world.directory / "ring2")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.directory / "socket"))
        kinds = ["pipe", "link to pipe", "socket", "loop", "ring1", "/dev/null", "/dev/zero", "/dev/tty", "loop/f"]
        names = world.names()

        with trio.fail_after(20):
            for name in kinds:
                for tool, arguments in looking_and_changing(name):
                    text = await world.refused(tool, **arguments)
                    assert text.startswith("not regular: "), (tool, name, text)
            for name in ("pipe", "socket"):
                assert (await world.refused("removePath", path=name)).startswith("not regular: ")
                assert (await world.refused("movePath", source=name, destination="x")).startswith("not regular: ")
            # In a walk they are passed over.
            world.file("sub/f", b"needle\n")
            assert len((await world.ok("searchText", pattern="needle"))["matches"]) == 1
            listed = {entry["path"]: entry["type"] for entry in (await world.ok("listFiles"))["entries"]}

    assert listed == {
        **dict.fromkeys(["pipe", "socket"], "other"),
        **dict.fromkeys(["link to pipe", "loop", "ring1", "ring2"], "symlink"),
        "sub": "directory",
    }
    assert world.names() == sorted([*names, "sub"])


def bytes_read() -> int:
    """What this process has read so far, wherever from."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar: "):
            return int(line.removeprefix("rchar: "))
    raise AssertionError("no count of what was read")


async def test_a_sparse_file_of_two_gigabytes_is_refused_and_not_read(world: World) -> None:
    path = world.file("huge", b"needle\n")
    os.truncate(path, 2 * 1024**3)
    world.file("small", b"needle\n")
    await world.ok("searchText", pattern="needle", path="small")  # what is imported on the way is imported now
    began = bytes_read()

    with trio.fail_after(20):
        calls: list[tuple[str, dict[str, object]]] = [
            *looking_and_changing("huge"),
            ("removePath", {"path": "huge"}),
            ("movePath", {"source": "huge", "destination": "x"}),
        ]
        for tool, arguments in calls:
            text = await world.refused(tool, **arguments)
            assert text.startswith("limit exceeded: "), (tool, text)
        matches = (await world.ok("searchText", pattern="needle"))["matches"]

    assert [match["path"] for match in matches] == [str(world.directory / "small")]
    assert bytes_read() - began < 512 * 1024
    assert path.stat().st_size == 2 * 1024**3


NAMES = [
    b"line\nend",
    b"tab\tand \x1b[0m",
    b"latin-1 \xe9",
    b"half \xe4\xb8",
    b"\xff\xfe",
    b"-rf",
    b" spaces ",
    b"quote\"quote'",
    b"back\\slash",
    b"\\xe9",
    "e\u0301 and \u00e9".encode(),
    b"*?[a]",
]


@pytest.mark.parametrize("name", NAMES, ids=repr)
async def test_a_file_of_any_name_can_be_listed_read_changed_moved_and_removed(world: World, name: bytes) -> None:
    others = {b"sentinel-1", name.replace(b"\xe9", b"\\xe9") + b"-other"}
    world.file(os.fsdecode(name), b"needle\nb")
    for other in others:
        world.file(os.fsdecode(other), b"as it was")

    [shown] = [
        entry["path"]
        for entry in (await world.ok("listFiles"))["entries"]
        if not entry["path"].endswith(("sentinel-1", "-other"))
    ]
    [match] = (await world.ok("searchText", pattern="needle"))["matches"]
    assert match["path"] == f"{world.directory}/{shown}"
    assert (await world.ok("readFile", path=shown))["content"] == "needle\nb"
    await world.ok("editFile", path=match["path"], edits=[{"old": "needle", "new": "n"}])
    if b"\n" not in name and name.strip() == name:  # a patch names a path in a line
        await world.ok("applyPatch", patch=patch(shown, "-b", "+B"))
    else:
        await world.ok("editFile", path=shown, edits=[{"old": "b", "new": "B"}])
    assert world.content(os.fsdecode(name)) == b"n\nB"
    await world.ok("movePath", source=shown, destination="moved")
    assert world.content("moved") == b"n\nB"
    await world.ok("movePath", source="moved", destination="sub/x")
    await world.ok("removePath", path="sub/x")

    assert {os.fsencode(left) for left in world.names()} == {*others, b"sub"}
    assert [world.content(os.fsdecode(other)) for other in others] == [b"as it was"] * len(others)


async def test_a_shown_byte_is_taken_for_the_byte_only_where_nothing_has_the_name_as_it_stands(world: World) -> None:
    byte, directory = os.fsdecode(b"\xe9"), os.fsdecode(b"d\xff")
    world.file(byte, b"byte")
    text = world.file("\\xe9", b"text")
    (world.directory / directory).mkdir()

    assert (await world.ok("readFile", path="\\xe9"))["content"] == "text"
    text.unlink()
    assert (await world.ok("readFile", path="\\xe9"))["content"] == "byte"
    # A new file gets its name as it stands, in a directory that may have such a byte.
    await world.ok("writeFile", path="new\\xff", content="x")
    await world.ok("writeFile", path="d\\xff/new", content="x")

    assert set(world.names()) == {byte, "new\\xff", directory}
    assert world.content(directory + "/new") == b"x"


async def test_what_is_write_protected_is_left_alone_by_every_tool() -> None:
    with ordinary_directory() as directory, ordinary_user():
        world = World(directory)
        world.file("f", b"a\n").chmod(0o444)
        await world.ok("readFile", path="f")
        before = (directory / "f").stat()

        for tool, arguments in looking_and_changing("f")[2:]:
            assert (await world.refused(tool, **arguments)).startswith("permission denied: "), tool

        after = (directory / "f").stat()
        assert world.content("f") == b"a\n"
        assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
        assert world.names() == ["f"]


@pytest.fixture(scope="module")
def crowded() -> Iterator[Path]:
    """50,000 files in 50 directories, one of them with 20,000."""
    memory = Path("/dev/shm")  # five times as fast
    with tempfile.TemporaryDirectory(prefix="peen-test-", dir=memory if memory.is_dir() else None) as name:
        root = Path(name) / "crowded"
        for number in range(50):
            (root / f"d{number:02}").mkdir(parents=True)
        for number in range(50_000):
            place = f"d00/f{number:05}" if number < 20_000 else f"d{number % 49 + 1:02}/f{number:05}"
            descriptor = os.open(root / place, os.O_WRONLY | os.O_CREAT, 0o644)
            if number % 10_000 == 9_999:
                os.write(descriptor, b"needle\n")
            os.close(descriptor)
        yield root


async def test_a_tree_of_fifty_thousand_files_is_listed_and_searched_in_order(crowded: Path) -> None:
    world = World(crowded, max_tool_result_tokens=100_000)

    listed = await world.ok("listFiles", recursive=True)
    matches = (await world.ok("searchText", pattern="needle"))["matches"]
    few = await world.ok("searchText", pattern="needle", maxMatches=2)

    paths = [entry["path"] for entry in listed["entries"]]
    assert (len(paths), listed["truncated"]) == (1000, True)
    assert paths == ["d00", *(f"d00/f{number:05}" for number in range(999))]
    found = [match["path"] for match in matches]
    assert found == sorted(found)
    assert len(found) == 5
    assert few == {"matches": matches[:2], "truncated": True}


async def test_a_tree_of_fifty_thousand_files_is_not_removed_by_accident(crowded: Path) -> None:
    world = World(crowded.parent, workspace=crowded.parent / "elsewhere")
    await world.ok("listFiles")

    text = await world.refused("removePath", path=crowded.name, recursive=True)

    assert text.startswith("limit exceeded: ")
    assert sum(len(files) for _, _, files in os.walk(crowded)) == 50_000
