"""applyPatch: all changes or none, byte for byte, whatever fails."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from disk_kit import tiny_disk
from tool_world import World, ordinary_directory, ordinary_user

from peen.tool.apply_patch import ApplyPatch
from peen.tool.disk import Disk
from peen.tool.list_files import ListFiles
from peen.tool.read_file import ReadFile
from peen.tool.registry import Tools


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory: kind, mode, owner, identity, links and content of each entry."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content: object = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = (
            *(status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_nlink),
            content,
        )
    return found


async def test_all_kinds_of_changes_in_one_patch(world: World) -> None:
    world.file("update", b"one\r\ntwo\r\n").chmod(0o750)
    world.file("delete", b"x")
    world.file("move", b"as it is\xff")
    world.file("both", b"a\nb").chmod(0o640)
    for name in ("update", "delete", "both"):
        await world.ok("readFile", path=name)
    await world.refused("readFile", path="move")  # not UTF-8, and noted all the same

    result = await world.ok(
        "applyPatch",
        patch=patch(
            *("*** Add File: new/dir/file", "+grüße"),
            *("*** Update File: update", "@@", " one", "-two", "+2"),
            *("*** Delete File: delete",),
            *("*** Update File: move", "*** Move to: elsewhere/moved"),
            *("*** Update File: both", "*** Move to: both2", "@@", "-a", "+A"),
        ),
    )

    at = str(world.directory)
    contents = {
        "new/dir/file": "grüße\n".encode(),
        "update": b"one\r\n2\r\n",
        "elsewhere/moved": b"as it is\xff",
        "both2": b"A\nb",
    }
    assert {name: world.content(name) for name in contents} == contents
    assert world.names() == ["both2", "elsewhere", "new", "update"]
    assert [stat.S_IMODE((world.directory / name).stat().st_mode) for name in ("update", "both2")] == [0o750, 0o640]
    applied: dict[str, Any] = {"outcome": "applied"}
    assert result["files"] == [
        {
            **applied,
            "operation": "add",
            "path": f"{at}/new/dir/file",
            "bytes": 8,
            "sha256": sha256(contents["new/dir/file"]),
        },
        {**applied, "operation": "update", "path": f"{at}/update", "bytes": 8, "sha256": sha256(contents["update"])},
        {**applied, "operation": "delete", "path": f"{at}/delete", "bytes": 0},
        {
            **applied,
            "operation": "move",
            "path": f"{at}/move",
            "destination": f"{at}/elsewhere/moved",
            "bytes": 9,
        },
        {
            **applied,
            "operation": "move",
            "path": f"{at}/both",
            "destination": f"{at}/both2",
            "bytes": 3,
            "sha256": sha256(contents["both2"]),
        },
    ]
    assert result["diff"] == (
        f"--- {at}/update\n+++ {at}/update\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
        f"--- {at}/both\n+++ {at}/both\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n"
    )
    assert result["diffTruncated"] is False


async def test_what_it_wrote_is_known_and_what_it_deleted_is_not(world: World) -> None:
    world.file("f", b"a\n")
    world.file("g", b"g\n")
    world.file("h", b"h\n")
    for name in "fgh":
        await world.ok("readFile", path=name)

    for number in range(3):
        await world.ok("applyPatch", patch=patch("*** Update File: f", "@@", f"-{number or 'a'}", f"+{number + 1}"))
    await world.ok(
        "applyPatch",
        patch=patch("*** Add File: new", "+x", "*** Delete File: g", "*** Update File: h", "*** Move to: i"),
    )
    await world.ok("editFile", path="new", edits=[{"old": "x", "new": "y"}])
    await world.ok("editFile", path="i", edits=[{"old": "h", "new": "i"}])
    world.file("g", b"another\n")

    assert (await world.refused("applyPatch", patch=patch("*** Delete File: g"))).startswith("not observed: ")
    assert [world.content(name) for name in ("f", "new", "i")] == [b"3\n", b"y\n", b"i\n"]


REFUSED: list[tuple[str, list[str], str]] = [
    ("not read", ["*** Update File: unread", "@@", "-a", "+b"], "not observed: "),
    ("not read", ["*** Delete File: unread"], "not observed: "),
    ("not read", ["*** Update File: unread", "*** Move to: x"], "not observed: "),
    ("changed since", ["*** Update File: changed", "@@", "-a", "+b"], "stale hash: "),
    ("changed since", ["*** Delete File: changed"], "stale hash: "),
    ("absent", ["*** Update File: absent", "@@", "-a", "+b"], "not found: "),
    ("there", ["*** Add File: good", "+x"], "already exists: "),
    ("there", ["*** Add File: dangling", "+x"], "already exists: "),
    ("there", ["*** Update File: good", "*** Move to: unread"], "already exists: "),
    ("there", ["*** Update File: good", "*** Move to: unread", "@@", "-a", "+b"], "already exists: "),
    ("to itself", ["*** Update File: good", "*** Move to: ./good"], "patch conflict: "),
    ("twice", ["*** Update File: good", "@@", "-a", "+b", "*** Delete File: sub/../good"], "patch conflict: "),
    ("twice", ["*** Add File: x", "+x", "*** Update File: good", "*** Move to: x"], "patch conflict: "),
    ("twice", ["*** Update File: link", "@@", "-a", "+b", "*** Delete File: good"], "patch conflict: "),
    ("inside", ["*** Add File: x", "+x", "*** Add File: x/y", "+y"], "patch conflict: "),
    (
        "hard links",
        ["*** Update File: twin1", "@@", "-a", "+b", "*** Update File: twin2", "@@", "-a", "+b"],
        "patch conflict: ",
    ),
    (
        "hard links",
        ["*** Update File: twin1", "@@", "-a", "+b", "*** Delete File: twin2"],
        "patch conflict: ",
    ),
    ("in a file", ["*** Add File: good/x", "+x"], "not a directory: "),
    ("directory", ["*** Delete File: sub"], "not regular: "),
    ("directory", ["*** Update File: sub", "@@", "-a", "+b"], "not regular: "),
    ("workspace", ["*** Delete File: ."], "permission denied: "),
    ("root", ["*** Update File: /", "*** Move to: x"], "permission denied: "),
    ("link", ["*** Delete File: link"], "not regular: "),
    ("link", ["*** Update File: link", "*** Move to: x"], "not regular: "),
    ("loop", ["*** Update File: loop", "@@", "-a", "+b"], "not regular: "),
    ("pipe", ["*** Update File: pipe", "@@", "-a", "+b"], "not regular: "),
    ("pipe", ["*** Delete File: pipe"], "not regular: "),
    ("device", ["*** Update File: /dev/null", "@@", "-a", "+b"], "not regular: "),
    ("sparse", ["*** Update File: sparse", "@@", "-a", "+b"], "limit exceeded: "),
    ("sparse", ["*** Delete File: sparse"], "limit exceeded: "),
    ("binary", ["*** Update File: binary", "@@", "-a", "+b"], "binary: "),
    ("no match", ["*** Update File: good", "@@", "-b", "+c"], "context not found: "),
    ("match not unique", ["*** Update File: double", "@@", "-a", "+b"], "context not unique: "),
    ("half a patch", ["*** Update File: good", "@@"], "invalid patch: "),
]


@pytest.mark.parametrize(("_why", "lines", "kind"), REFUSED, ids=[f"{each[0]}-{n}" for n, each in enumerate(REFUSED)])
async def test_if_one_part_cannot_be_done_nothing_is_and_nothing_waits(
    world: World, _why: str, lines: list[str], kind: str
) -> None:
    for name in ("good", "changed", "twin1", "first"):
        world.file(name, b"a\n")
    world.file("double", b"a\na\n")
    world.file("binary", b"a\n\0")
    os.link(world.directory / "twin1", world.directory / "twin2")
    os.symlink("good", world.directory / "link")
    os.symlink("nowhere", world.directory / "dangling")
    os.symlink("loop", world.directory / "loop")
    os.mkfifo(world.directory / "pipe")
    (world.directory / "sub").mkdir()
    (world.directory / "sparse").touch()
    for name in ("good", "changed", "twin1", "twin2", "double", "first"):
        await world.ok("readFile", path=name)
    world.context.ledger.saw_content(str(world.directory / "binary"), sha256(b"a\n\0"))
    world.file("unread", b"a\n")
    world.file("changed", b"a \n")
    os.truncate(world.directory / "sparse", 2 * 1024**3)
    os.unlink(world.directory / "pipe")
    os.truncate(world.directory / "sparse", 0)
    before = tree(world.directory)
    os.mkfifo(world.directory / "pipe")
    os.truncate(world.directory / "sparse", 2 * 1024**3)

    with trio.fail_after(10):
        text = await world.refused(
            "applyPatch", patch=patch("*** Update File: first", "@@", "-a", "+b", "*** Add File: new/f", "+x", *lines)
        )

    assert text.startswith(kind)
    os.unlink(world.directory / "pipe")
    assert (world.directory / "sparse").stat().st_size == 2 * 1024**3
    os.truncate(world.directory / "sparse", 0)
    assert tree(world.directory) == before


async def test_what_is_wrong_in_several_files_is_told_at_once(world: World) -> None:
    world.file("a", b"a\n")
    world.file("b", b"b\n")
    await world.ok("readFile", path="a")

    text = await world.refused(
        "applyPatch",
        patch=patch("*** Update File: a", "@@", "-A", "+x", "*** Update File: b", "@@", "-b", "+x"),
    )

    at = world.directory
    assert text == (
        f"context not found: hunk 1 of {at}/a (line 3 of the patch): its context does not occur; nothing in it is like "
        "that: look with readFile and copy the text exactly\n"
        f"not observed: {at}/b exists, and you have not read it; read it with readFile, then retry\n"
        "No file was changed."
    )


async def test_links_stay_and_their_targets_are_changed(world: World) -> None:
    world.file("target", b"a\n")
    os.symlink("target", world.directory / "link")
    world.file("twin", b"a\n")
    os.link(world.directory / "twin", world.directory / "other")
    await world.ok("readFile", path="link")
    await world.ok("readFile", path="twin")

    await world.ok(
        "applyPatch",
        patch=patch("*** Update File: link", "@@", "-a", "+longer", "*** Update File: twin", "@@", "-a", "+longer"),
    )

    assert os.readlink(world.directory / "link") == "target"
    assert world.content("target") == world.content("twin") == world.content("other") == b"longer\n"
    assert world.names() == ["link", "other", "target", "twin"]


async def test_both_names_of_a_file_can_go_or_move(world: World) -> None:
    for name in ("one", "other"):
        world.file(name, b"a\n")
        os.link(world.directory / name, world.directory / f"{name}2")
        await world.ok("readFile", path=name)
        await world.ok("readFile", path=f"{name}2")

    await world.ok(
        "applyPatch",
        patch=patch(
            "*** Delete File: one", "*** Delete File: one2", "*** Delete File: other", "*** Update File: other2",
            "*** Move to: moved",
        ),
    )  # fmt: skip

    assert (world.names(), world.content("moved")) == (["moved"], b"a\n")


async def test_limits_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path, max_write_bytes=2000)
    world.file("f", b"x" * 1500 + b"\ny\n")
    await world.ok("readFile", path="f")
    before = tree(tmp_path)
    for lines, told in (
        (["*** Update File: f", "@@", "-y", "+" + "y" * 600], "limit exceeded: "),
        (["*** Add File: n", "+" + "y" * 2000], "limit exceeded: "),
        (
            ["*** Add File: n", "+" + "y" * 1500, "*** Add File: m", "+" + "y" * 1500],
            "limit exceeded: 3002 bytes would",
        ),
    ):
        assert (await world.refused("applyPatch", patch=patch(*lines))).startswith(told)

    assert (await world.refused("applyPatch", patch=patch("*** Add File: n", "+" + "y" * 1024 * 1024))).startswith(
        "limit exceeded: the patch has 1048"
    )
    assert tree(tmp_path) == before


# What may fail, and is made to fail: each step of the disk, one after another.


class FailingDisk(Disk):
    """Fails at the n-th step, counted from 0, and at `more` that follow."""

    def __init__(self, fail_at: int, more: int = 0) -> None:
        self.steps, self.fail_at, self.more = 0, fail_at, more
        self.failed: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name not in (
            "create",
            "create_like",
            "overwrite",
            "rename",
            "rename_new",
            "link",
            "unlink",
            "make_parents",
            "sync",
        ):
            return found

        def step(*arguments: Any) -> Any:
            number, self.steps = self.steps, self.steps + 1
            if self.fail_at <= number <= self.fail_at + self.more:
                self.failed.append(name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return found(*arguments)

        return step


EVERYTHING = patch(
    *("*** Add File: new/dir/file", "+x"),
    *("*** Update File: script", "@@", "-two", "+2", "+3"),
    *("*** Update File: twin", "@@", "-a", "+longer"),
    *("*** Delete File: delete",),
    *("*** Update File: move", "*** Move to: elsewhere/moved"),
    *("*** Update File: both", "*** Move to: new/both2", "@@", "-a", "+A"),
)


async def furnished(directory: Path, disk: Disk) -> World:
    world = World(directory, tools=Tools([ReadFile(), ListFiles(), ApplyPatch(disk)]))
    world.file("script", b"one\r\ntwo\r\n").chmod(0o751)
    world.file("twin", b"a\n")
    os.link(directory / "twin", directory / "other")
    world.file("delete", b"x\0y").chmod(0o600)
    world.file("move", b"m")
    world.file("both", b"a\nb").chmod(0o640)
    for name in ("script", "twin", "move", "both"):
        await world.ok("readFile", path=name)
    world.context.ledger.saw_content(str(directory / "delete"), sha256(b"x\0y"))
    return world


async def test_whichever_step_fails_every_file_is_as_it_was(tmp_path: Path) -> None:
    seen: set[str] = set()
    for fail_at in itertools.count():
        directory = tmp_path / str(fail_at)
        directory.mkdir()
        disk = FailingDisk(fail_at)
        world = await furnished(directory, disk)
        before = tree(directory)

        outcome = await world.call("applyPatch", patch=EVERYTHING)

        if not disk.failed:
            assert not outcome.is_error
            break
        seen.update(disk.failed)
        if outcome.is_error:
            assert outcome.content.startswith("limit exceeded: no space is left on the device")
            assert outcome.content.endswith("\nNo file was changed.")
            assert tree(directory) == before, f"step {fail_at}: {disk.failed}"
            # It may be tried again at once.
            disk.fail_at = -1
            await world.ok("applyPatch", patch=EVERYTHING)
        else:
            # Only throwing away what is not needed any more may fail without a word.
            assert disk.failed == ["unlink"]
        assert (directory / "script").read_bytes() == b"one\r\n2\r\n3\r\n"

    assert seen == {
        "create",
        "create_like",
        "overwrite",
        "rename",
        "rename_new",
        "link",
        "unlink",
        "make_parents",
        "sync",
    }
    assert tree(tmp_path / str(fail_at)).keys() == {
        *("elsewhere", "elsewhere/moved", "new", "new/both2", "new/dir", "new/dir/file", "other", "script", "twin")
    }


@pytest.mark.parametrize("more", [1, 2, 5, 100])
async def test_if_it_cannot_be_undone_the_result_names_what_is_changed(tmp_path: Path, more: int) -> None:
    old = {"script": b"one\r\ntwo\r\n", "twin": b"a\n", "delete": b"x\0y", "move": b"m", "both": b"a\nb"}
    told = 0
    for fail_at in itertools.count():
        directory = tmp_path / str(fail_at)
        directory.mkdir()
        disk = FailingDisk(fail_at, more)
        world = await furnished(directory, disk)

        outcome = await world.call("applyPatch", patch=EVERYTHING)

        if not disk.failed:
            break
        if not outcome.is_error:
            continue
        named = {name for name in [*old, "new/dir/file"] if f'"path":"{directory}/{name}"' in outcome.content}
        told += bool(named)
        for name, content in old.items():
            if name not in named:
                assert (directory / name).read_bytes() == content, f"step {fail_at}: {name} is changed but not named"
        if "new/dir/file" not in named:
            assert not (directory / "new/dir/file").exists()
        # Whatever happened, no old content is lost.
        kept = {path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        assert kept >= set(old.values()) - ({old["twin"]} if "twin" in named else set()), f"step {fail_at}"
    assert told > 0


async def test_where_there_are_no_hard_links_it_is_undone_all_the_same(tmp_path: Path) -> None:
    class WithoutLinks(FailingDisk):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    for fail_at in itertools.count():
        directory = tmp_path / str(fail_at)
        directory.mkdir()
        disk = WithoutLinks(fail_at)
        world = await furnished(directory, disk)
        before = tree(directory)

        outcome = await world.call("applyPatch", patch=EVERYTHING)

        if not disk.failed:
            assert not outcome.is_error
            return
        if outcome.is_error:
            assert tree(directory) == before, f"step {fail_at}: {disk.failed}"


async def test_a_real_write_that_fails_in_the_middle_changes_nothing(world: World) -> None:
    resource = pytest.importorskip("resource")
    world.file("small", b"a\n")
    world.file("large", b"a\n" + b"x" * 4000)
    for name in ("small", "large"):
        await world.ok("readFile", path=name)
    before = tree(world.directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        text = await world.refused(
            "applyPatch",
            patch=patch(
                "*** Add File: d/new",
                "+x",
                *("*** Update File: small", "@@", "-a", "+b"),
                *("*** Update File: large", "@@", "-a", "+b"),
            ),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert text.startswith("failed: ")
    assert tree(world.directory) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_on_a_full_disk_every_tool_leaves_every_byte_as_it_was(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", kib=96):
        world = World(tmp_path / "disk")
        world.file("one", b"a\n" + b"x" * 20_000)
        world.file("twin", b"b\n" + b"y" * 20_000)
        os.link(world.directory / "twin", world.directory / "other")
        for name in ("one", "twin"):
            await world.ok("readFile", path=name)
        before = tree(world.directory)
        long = "z" * 100_000
        calls: list[tuple[str, dict[str, object]]] = [
            ("writeFile", {"path": "one", "content": long}),
            ("writeFile", {"path": "twin", "content": long}),
            ("writeFile", {"path": "d/e/new", "content": long}),
            ("editFile", {"path": "one", "edits": [{"old": "a\n", "new": long}]}),
            ("editFile", {"path": "twin", "edits": [{"old": "b\n", "new": long}]}),
            ("applyPatch", {"patch": patch("*** Update File: one", "@@", "-a", "+A", "*** Add File: d/n", "+" + long)}),
            (
                "applyPatch",
                {
                    "patch": patch(
                        "*** Update File: one", "@@", "-a", "+A", "*** Update File: twin", "@@", "-b", "+" + long
                    )
                },
            ),
        ]

        for tool, arguments in calls:
            text = await world.refused(tool, **arguments)
            assert text.startswith("limit exceeded: no space is left on the device"), (tool, text)
            assert tree(world.directory) == before, tool

        await world.ok("editFile", path="twin", edits=[{"old": "b\n", "new": "B\n"}])
        assert world.content("other") == b"B\n" + b"y" * 20_000


async def test_a_directory_that_may_not_be_written_changes_nothing() -> None:
    with ordinary_directory() as directory, ordinary_user():
        world = World(directory)
        world.file("closed/f", b"a\n")
        world.file("open", b"a\n")
        world.file("protected", b"a\n").chmod(0o444)
        for name in ("closed/f", "open", "protected"):
            await world.ok("readFile", path=name)
        (directory / "closed").chmod(0o555)
        try:
            for lines in (
                ["*** Delete File: closed/f"],
                ["*** Add File: closed/new", "+x"],
                ["*** Update File: closed/f", "*** Move to: x"],
                ["*** Update File: protected", "@@", "-a", "+b"],
            ):
                before = tree(directory)
                text = await world.refused("applyPatch", patch=patch("*** Update File: open", "@@", "-a", "+b", *lines))
                assert text.startswith("permission denied: ")
                assert tree(directory) == before
            # The file itself may be written, and is, in place.
            await world.ok("applyPatch", patch=patch("*** Update File: closed/f", "@@", "-a", "+b"))
            assert world.content("closed/f") == b"b\n"
        finally:
            (directory / "closed").chmod(0o755)


async def test_what_others_write_between_look_and_change_is_kept(tmp_path: Path) -> None:
    class Busy(Disk):
        """Somebody writes the second file when the first one is written."""

        def create_like(self, path: Path, data: bytes, real: Path, status: os.stat_result) -> bool:
            (tmp_path / "b").write_bytes(b"by hand\n")
            return super().create_like(path, data, real, status)

    world = World(tmp_path, tools=Tools([ReadFile(), ApplyPatch(Busy())]))
    for name in "ab":
        world.file(name, b"x\n")
        await world.ok("readFile", path=name)

    text = await world.refused(
        "applyPatch", patch=patch("*** Update File: a", "@@", "-x", "+y", "*** Update File: b", "@@", "-x", "+y")
    )

    assert text == (
        f"stale hash: {tmp_path}/b was changed at this moment; read it again, then retry\nNo file was changed."
    )
    assert (world.content("a"), world.content("b"), world.names()) == (b"x\n", b"by hand\n", ["a", "b"])


async def test_parallel_patches_and_edits_of_one_file_all_reach_the_disk(tmp_path: Path) -> None:
    for repeat in range(50):
        world = World(tmp_path)
        name = f"f{repeat}"
        world.file(name, b"".join(b"line %d\n" % number for number in range(6)))
        await world.ok("readFile", path=name)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(change_line, world, name, number)

        assert world.content(name) == b"".join(b"done %d\n" % number for number in range(6))


async def change_line(world: World, name: str, number: int) -> None:
    if number % 2:
        await world.ok("editFile", path=name, edits=[{"old": f"line {number}\n", "new": f"done {number}\n"}])
    else:
        lines = ["@@", f"-line {number}", f"+done {number}"]
        await world.ok("applyPatch", patch=patch(f"*** Update File: {name}", *lines))


async def test_of_two_names_of_one_file_exactly_the_successful_changes_are_on_disk(tmp_path: Path) -> None:
    for repeat in range(50):
        world = World(tmp_path)
        names = [f"f{repeat}", f"twin{repeat}"]
        world.file(names[0], b"line 0\nline 1\n")
        os.link(tmp_path / names[0], tmp_path / names[1])
        for name in names:
            await world.ok("readFile", path=name)
        succeeded: list[int] = []

        async def change(number: int, world: World, name: str, succeeded: list[int]) -> None:
            edits = [{"old": f"line {number}", "new": f"done {number}"}]
            outcome = await world.call("editFile", path=name, edits=edits)
            if outcome.is_error:
                assert outcome.content.startswith("stale hash: ")
            else:
                succeeded.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(change, number, world, names[number], succeeded)

        [winner] = succeeded
        assert world.content(names[0]) == world.content(names[1]) == [b"done 0\nline 1\n", b"line 0\ndone 1\n"][winner]


async def test_patches_that_name_the_same_files_in_other_orders_do_not_wait_for_each_other(world: World) -> None:
    for name in "abc":
        world.file(name, b"0\n")
        await world.ok("readFile", path=name)

    async def grow(names: str) -> None:
        lines = [line for name in names for line in (f"*** Update File: {name}", "@@", "+x", "*** End of File")]
        await world.ok("applyPatch", patch=patch(*lines))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for names in ("abc", "cba", "bca", "acb"):
                nursery.start_soon(grow, names)

    assert [world.content(name) for name in "abc"] == [b"0\nx\nx\nx\nx\n"] * 3
