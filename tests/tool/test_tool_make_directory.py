"""makeDirectory: what is missing is made, all or none, and the agent knows what it made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trio
from tool_world import World, ordinary_directory, ordinary_user


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_missing_parents_are_made_and_named_the_outermost_first(world: World) -> None:
    before = os.umask(0o027)
    try:
        result = await world.ok("makeDirectory", path="a/b/c")
    finally:
        os.umask(before)

    made = [str(world.directory / name) for name in ("a", "a/b", "a/b/c")]
    assert result == {"path": made[-1], "created": made}
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in made] == [0o750] * 3


async def test_what_exists_stays_and_nothing_was_created(world: World) -> None:
    world.file("d/f", b"x")
    os.symlink("d", world.directory / "link")

    for path in ("d", "link", ".", "/", "d/.."):
        assert (await world.ok("makeDirectory", path=path))["created"] == []
    assert (world.names(), world.content("d/f")) == (["d", "link"], b"x")


async def test_links_on_the_way_are_followed(world: World) -> None:
    (world.directory / "real").mkdir()
    os.symlink("real", world.directory / "link")
    os.symlink("absent", world.directory / "dangling")

    assert (await world.ok("makeDirectory", path="link/sub"))["created"] == [str(world.directory / "real/sub")]
    assert (await world.ok("makeDirectory", path="dangling"))["created"] == [str(world.directory / "absent")]


async def test_a_file_in_the_way_is_refused(world: World) -> None:
    world.file("f", b"x")
    os.symlink("loop", world.directory / "loop")

    assert (await world.refused("makeDirectory", path="f")).startswith("already exists: ")
    assert (await world.refused("makeDirectory", path="f/sub/deep")).startswith("not a directory: ")
    assert (await world.refused("makeDirectory", path="loop")).startswith("not regular: ")
    assert (await world.refused("makeDirectory", path="")).startswith("validation failed: makeDirectory: path: ")
    assert world.names() == ["f", "loop"]


async def test_if_one_cannot_be_made_none_is(world: World) -> None:
    too_long = "x" * 300

    assert (await world.refused("makeDirectory", path=f"a/b/{too_long}")).startswith("validation failed: ")
    assert world.names() == []


async def test_a_directory_that_may_not_be_written_is_named() -> None:
    with ordinary_directory() as directory, ordinary_user():
        world = World(directory)
        (directory / "locked").mkdir(mode=0o555)

        assert (await world.refused("makeDirectory", path="locked/sub")).startswith("permission denied: ")
        assert os.listdir(directory / "locked") == []


async def test_the_agent_knows_the_directories_it_made(world: World) -> None:
    outcome = await world.call("makeDirectory", path="a/b")

    assert sorted(seen.path for seen in outcome.ledger.observations) == [
        str(world.directory / name) for name in ("a", "a/b")
    ]
    await world.ok("removePath", path="a", recursive=True)
    assert world.names() == []


async def test_of_many_that_make_one_directory_each_succeeds_and_one_made_it(world: World) -> None:
    agents = [world.other_agent() for _ in range(8)]
    created: list[str] = []

    async def make(agent: World, name: str) -> None:
        created.extend((await agent.ok("makeDirectory", path=name))["created"])

    async with trio.open_nursery() as nursery:
        for number, agent in enumerate(agents):
            nursery.start_soon(make, agent, f"a/b/{number % 2}")

    assert sorted(created) == [str(world.directory / name) for name in ("a", "a/b", "a/b/0", "a/b/1")]
