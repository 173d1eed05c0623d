"""writeFile: creates what is absent, replaces what was read, and touches nothing else."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
import trio
from tool_world import World, ordinary_directory, ordinary_user


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


async def test_a_new_file_gets_the_usual_mode_and_its_parents_are_made(world: World) -> None:
    before = os.umask(0o027)
    try:
        result = await world.ok("writeFile", path="a/b/c.txt", content="grüße\r\n")
    finally:
        os.umask(before)

    content = "grüße\r\n".encode()
    assert world.content("a/b/c.txt") == content
    assert (result["created"], result["bytes"]) == (True, len(content))
    assert result["sha256"] == hashlib.sha256(content).hexdigest()
    assert mode_of(world.directory / "a/b/c.txt") == 0o640
    assert mode_of(world.directory / "a/b") == 0o750
    assert os.listdir(world.directory / "a/b") == ["c.txt"]


async def test_an_existing_file_must_have_been_read(world: World) -> None:
    world.file("f", b"precious")

    text = await world.refused("writeFile", path="f", content="new")

    assert text.startswith("not observed: ")
    assert "readFile" in text
    assert (world.content("f"), world.names()) == (b"precious", ["f"])


async def test_listing_is_not_reading(world: World) -> None:
    world.file("f", b"precious")
    await world.ok("listFiles")

    assert (await world.refused("writeFile", path="f", content="new")).startswith("not observed: ")


async def test_a_file_that_was_read_is_replaced_and_keeps_its_mode(world: World) -> None:
    path = world.file("f", b"old")
    path.chmod(0o4755)
    await world.ok("readFile", path="f")

    result = await world.ok("writeFile", path="f", content="new")

    assert (result["created"], world.content("f"), world.names()) == (False, b"new", ["f"])
    assert mode_of(path) == 0o4755


async def test_what_the_agent_wrote_itself_it_may_replace(world: World) -> None:
    for content in ("one", "two", "three"):
        await world.ok("writeFile", path="f", content=content)

    assert world.content("f") == b"three"


async def test_content_counts_and_the_time_stamp_does_not(world: World) -> None:
    path = world.file("f", b"old")
    status = path.stat()
    await world.ok("readFile", path="f")

    os.utime(path, ns=(0, 0))
    await world.ok("writeFile", path="f", content="mine")

    status = path.stat()
    world.file("f", b"your")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    text = await world.refused("writeFile", path="f", content="mine again")
    assert text.startswith("stale hash: ")
    assert world.content("f") == b"your"


async def test_an_expected_hash_must_be_that_of_the_content(world: World) -> None:
    world.file("f", b"old")
    sha256 = (await world.ok("readFile", path="f"))["sha256"]

    assert (await world.refused("writeFile", path="f", content="x", expectedSha256="0" * 64)).startswith("stale hash")
    assert (await world.refused("writeFile", path="g", content="x", expectedSha256=sha256)).startswith("not found")
    await world.ok("writeFile", path="f", content="new", expectedSha256=sha256)

    assert (world.content("f"), world.names()) == (b"new", ["f"])


async def test_a_link_stays_a_link_and_its_target_is_written(world: World) -> None:
    world.file("real/target", b"old")
    os.symlink("real/target", world.directory / "link")
    await world.ok("readFile", path="link")

    await world.ok("writeFile", path="link", content="new")

    assert os.readlink(world.directory / "link") == "real/target"
    assert world.content("real/target") == b"new"
    # Both names are one file for the ledger.
    await world.ok("writeFile", path="real/target", content="newer")
    assert world.content("link") == b"newer"


async def test_a_link_to_nothing_creates_its_target(world: World) -> None:
    os.symlink("absent", world.directory / "link")

    result = await world.ok("writeFile", path="link", content="x")

    assert (result["created"], os.readlink(world.directory / "link")) == (True, "absent")
    assert world.content("absent") == b"x"


async def test_hard_links_stay_together(world: World) -> None:
    path = world.file("one", b"a longer old content")
    os.link(path, world.directory / "two")
    await world.ok("readFile", path="one")

    await world.ok("writeFile", path="one", content="short")

    assert (world.content("one"), world.content("two")) == (b"short", b"short")
    assert path.stat().st_nlink == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
async def test_the_owner_stays(world: World) -> None:
    path = world.file("f", b"old")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    await world.ok("readFile", path="f")

    await world.ok("writeFile", path="f", content="new")

    status = path.stat()
    assert (status.st_uid, status.st_gid, mode_of(path)) == (12345, 23456, 0o640)


async def test_a_write_protected_file_is_not_replaced() -> None:
    with ordinary_directory() as directory, ordinary_user():
        world = World(directory)
        world.file("f", b"old").chmod(0o444)
        await world.ok("readFile", path="f")

        text = await world.refused("writeFile", path="f", content="new")

        assert text.startswith("permission denied: ")
        assert (world.content("f"), world.names()) == (b"old", ["f"])


async def test_extended_attributes_are_kept(world: World) -> None:
    path = world.file("f", b"old")
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    await world.ok("readFile", path="f")

    await world.ok("writeFile", path="f", content="new")

    assert os.getxattr(path, "user.note") == b"kept"


async def test_pipes_devices_directories_and_loops_are_refused_without_waiting(world: World) -> None:
    os.mkfifo(world.directory / "pipe")
    os.symlink("loop", world.directory / "loop")
    (world.directory / "sub").mkdir()

    with trio.fail_after(2):
        for path in ("pipe", "loop", "sub", "/dev/null"):
            assert (await world.refused("writeFile", path=path, content="x")).startswith("not regular: ")


async def test_a_file_as_parent_is_no_directory(world: World) -> None:
    world.file("f", b"x")

    assert (await world.refused("writeFile", path="f/g", content="x")).startswith("not a directory: ")
    assert (await world.refused("writeFile", path="f/g/h", content="x")).startswith("not a directory: ")
    assert world.names() == ["f"]


async def test_content_over_the_limit_is_refused_before_anything_happens(tmp_path: Path) -> None:
    world = World(tmp_path, max_write_bytes=10)

    assert await world.refused("writeFile", path="d/f", content="é" * 6) == (
        "limit exceeded: content has 12 bytes; writeFile takes at most 10"
    )
    assert world.names() == []


async def test_of_many_that_create_one_file_exactly_one_succeeds(world: World) -> None:
    agents = [world.other_agent() for _ in range(8)]
    outcomes: dict[int, bool] = {}

    async def create(number: int) -> None:
        outcome = await agents[number].call("writeFile", path="f", content=str(number))
        outcomes[number] = not outcome.is_error

    async with trio.open_nursery() as nursery:
        for number in range(len(agents)):
            nursery.start_soon(create, number)

    winners = [number for number, succeeded in outcomes.items() if succeeded]
    assert len(winners) == 1
    assert world.content("f") == str(winners[0]).encode()
    assert world.names() == ["f"]


async def test_a_failed_write_leaves_the_old_file_and_no_other(world: World) -> None:
    path = world.file("f", b"old")
    await world.ok("readFile", path="f")
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        text = await world.refused("writeFile", path="f", content="x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert text.startswith("failed: ")
    assert (path.read_bytes(), world.names()) == (b"old", ["f"])
