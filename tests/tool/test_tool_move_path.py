"""movePath: another name, nothing replaced, nothing moved unseen, and what is known moves along."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio
from tool_world import World, ordinary_directory, ordinary_user

from peen.tool import rename
from peen.tool.rename import rename_without_replacing


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_file_that_was_read_moves_with_mode_and_knowledge(world: World) -> None:
    path = world.file("f", b"old")
    path.chmod(0o755)
    await world.ok("readFile", path="f")

    result = await world.ok("movePath", source="f", destination="new/sub/g")

    assert result == {"source": str(path), "destination": str(world.directory / "new/sub/g")}
    assert world.names() == ["new"]
    assert (world.directory / "new/sub/g").stat().st_mode & 0o777 == 0o755
    # Known under the new name, and so are the directories made for it.
    await world.ok("writeFile", path="new/sub/g", content="newer")
    await world.ok("removePath", path="new", recursive=True)


async def test_the_old_name_is_forgotten(world: World) -> None:
    world.file("f", b"same")
    await world.ok("readFile", path="f")
    await world.ok("movePath", source="f", destination="g")

    world.file("f", b"same")

    assert (await world.refused("writeFile", path="f", content="x")).startswith("not observed: ")


async def test_a_file_must_have_been_read_and_be_unchanged(world: World) -> None:
    world.file("f", b"old")
    await world.ok("listFiles")
    assert (await world.refused("movePath", source="f", destination="g")).startswith("not observed: ")

    await world.ok("readFile", path="f")
    os.utime(world.directory / "f", ns=(0, 0))
    await world.ok("movePath", source="f", destination="g")

    world.file("g", b"changed")
    assert (await world.refused("movePath", source="g", destination="h")).startswith("stale hash: ")
    assert world.names() == ["g"]


async def test_a_directory_must_have_been_listed_and_takes_what_is_known_along(world: World) -> None:
    world.file("d/sub/f", b"x")
    world.file("dd", b"y")
    await world.ok("readFile", path="d/sub/f")
    assert (await world.refused("movePath", source="d", destination="e")).startswith("not observed: ")

    await world.ok("listFiles", path=".", recursive=True)
    await world.ok("movePath", source="d", destination="e")

    assert world.names() == ["dd", "e"]
    assert world.context.ledger.at_or_below(str(world.directory / "d")) == []
    assert world.context.ledger.at_or_below(str(world.directory / "e")) == [
        str(world.directory / name) for name in ("e", "e/sub", "e/sub/f")
    ]
    assert world.context.ledger.knows(str(world.directory / "dd"))
    await world.ok("writeFile", path="e/sub/f", content="changed")


async def test_saved_knowledge_is_the_same_after_a_move(world: World) -> None:
    world.file("d/f", b"x")
    deltas = []
    for tool, arguments in (
        ("listFiles", {"recursive": True}),
        ("readFile", {"path": "d/f"}),
        ("movePath", {"source": "d", "destination": "e"}),
    ):
        deltas.append((await world.call(tool, **arguments)).ledger)

    restored = world.other_agent().context.ledger
    for delta in reversed(deltas):
        restored.apply(delta)

    assert restored.snapshot() == world.context.ledger.snapshot()
    assert restored.sha256_of(str(world.directory / "e/f")) is not None


async def test_a_link_itself_moves_and_its_target_stays(world: World) -> None:
    world.file("target", b"x")
    os.symlink("target", world.directory / "link")
    os.symlink("nowhere", world.directory / "dangling")
    assert (await world.refused("movePath", source="link", destination="l")).startswith("not observed: ")

    await world.ok("readFile", path="link")
    await world.ok("movePath", source="link", destination="l")
    await world.ok("listFiles")
    await world.ok("movePath", source="dangling", destination="d")

    assert world.names() == ["d", "l", "target"]
    assert (os.readlink(world.directory / "l"), os.readlink(world.directory / "d")) == ("target", "nowhere")


@pytest.mark.parametrize("there", ["file", "directory", "dangling", "f"])
async def test_nothing_is_ever_replaced(world: World, there: str) -> None:
    world.file("f", b"mine")
    world.file("file", b"precious")
    (world.directory / "directory").mkdir()
    os.symlink("nowhere", world.directory / "dangling")
    await world.ok("readFile", path="f")

    assert (await world.refused("movePath", source="f", destination=there)).startswith("already exists: ")

    assert world.names() == ["dangling", "directory", "f", "file"]
    assert (world.content("f"), world.content("file")) == (b"mine", b"precious")


async def test_pipes_missing_sources_and_files_as_parents_are_refused_at_once(world: World) -> None:
    os.mkfifo(world.directory / "pipe")
    world.file("file", b"x")
    await world.ok("listFiles")
    await world.ok("readFile", path="file")

    with trio.fail_after(5):
        assert (await world.refused("movePath", source="pipe", destination="p")).startswith("not regular: ")
    assert (await world.refused("movePath", source="fill", destination="g")).endswith("did you mean file?")
    assert (await world.refused("movePath", source="file", destination="pipe/x/g")).startswith("not a directory: ")
    assert world.names() == ["file", "pipe"]


async def test_a_directory_cannot_move_into_itself(world: World) -> None:
    (world.directory / "d").mkdir()
    await world.ok("listFiles")

    assert (await world.refused("movePath", source="d", destination="d/new/e")).startswith("validation failed: ")
    assert os.listdir(world.directory / "d") == []


async def test_the_workspace_and_what_leads_to_it_stay_under_every_name(tmp_path: Path) -> None:
    (tmp_path / "outer/inner/ws/sub").mkdir(parents=True)
    os.symlink("outer", tmp_path / "link")
    world = World(tmp_path, workspace=tmp_path / "link/inner/ws")
    await world.ok("listFiles", recursive=True)

    for source in ("outer", "link", "link/inner", "outer/inner/ws", "link/inner/ws/sub/..", "/", ".", ".."):
        text = await world.refused("movePath", source=source, destination="moved")
        assert text.startswith("permission denied: "), source

    await world.ok("movePath", source="link/inner/ws/sub", destination="moved")
    assert world.names() == ["link", "moved", "outer"]


async def test_parents_made_in_vain_are_taken_back(world: World) -> None:
    world.file("f", b"x")
    await world.ok("readFile", path="f")

    too_long = "x" * 300
    assert (await world.refused("movePath", source="f", destination=f"a/b/{too_long}")).startswith("validation failed")

    assert world.names() == ["f"]


async def test_another_file_system_is_refused_with_the_remedy(world: World) -> None:
    world.file("f", b"x")
    await world.ok("readFile", path="f")
    if os.stat("/dev/shm").st_dev == os.stat(world.directory).st_dev:
        pytest.skip("there is only one file system")

    target = Path("/dev/shm") / f"peen-{os.getpid()}" / "f"
    text = await world.refused("movePath", source="f", destination=str(target))

    assert text.startswith("failed: ")
    assert "mv -n" in text
    assert target.parent.name not in os.listdir("/dev/shm")


async def test_a_directory_that_may_not_be_written_refuses_and_nothing_moves() -> None:
    with ordinary_directory() as directory, ordinary_user():
        world = World(directory)
        world.file("locked/f", b"x")
        (directory / "locked").chmod(0o555)
        await world.ok("readFile", path="locked/f")

        text = await world.refused("movePath", source="locked/f", destination="new/g")

        assert text.startswith("permission denied: ")
        assert world.names() == ["locked"]


async def test_of_many_that_move_to_one_name_exactly_one_succeeds(world: World) -> None:
    for number in range(8):
        world.file(str(number), str(number).encode())
        await world.ok("readFile", path=str(number))
    succeeded: list[int] = []

    async def move(number: int) -> None:
        if not (await world.call("movePath", source=str(number), destination="x/target")).is_error:
            succeeded.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(move, number)

    assert len(succeeded) == 1
    assert world.content("x/target") == str(succeeded[0]).encode()
    assert world.names() == sorted([*(str(number) for number in range(8) if number not in succeeded), "x"])


async def test_moves_in_opposite_directions_do_not_wait_for_each_other(world: World) -> None:
    world.file("a", b"x")
    await world.ok("readFile", path="a")

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(lambda: world.call("movePath", source="a", destination="b"))
                nursery.start_soon(lambda: world.call("movePath", source="b", destination="a"))

    assert world.names() in (["a"], ["b"])


class TestWithoutTheSystemCall:
    """File systems and kernels that cannot rename without replacing in one step."""

    @pytest.fixture(autouse=True)
    def no_renameat2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rename, "_renameat2", lambda *_: errno.EINVAL)

    def test_files_links_and_directories_move(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x")
        (tmp_path / "d/sub").mkdir(parents=True)
        os.symlink("nowhere", tmp_path / "l")

        for name in "fdl":
            rename_without_replacing(tmp_path / name, tmp_path / f"{name}2")

        assert sorted(os.listdir(tmp_path)) == ["d2", "f2", "l2"]
        assert ((tmp_path / "f2").read_bytes(), os.readlink(tmp_path / "l2")) == (b"x", "nowhere")
        assert (tmp_path / "d2/sub").is_dir()

    @pytest.mark.parametrize("source", ["f", "d"])
    @pytest.mark.parametrize("target", ["file", "empty", "dangling"])
    def test_nothing_is_replaced(self, tmp_path: Path, source: str, target: str) -> None:
        (tmp_path / "f").write_bytes(b"x")
        (tmp_path / "d").mkdir()
        (tmp_path / "file").write_bytes(b"precious")
        (tmp_path / "empty").mkdir()
        os.symlink("nowhere", tmp_path / "dangling")

        with pytest.raises(FileExistsError):
            rename_without_replacing(tmp_path / source, tmp_path / target)

        assert sorted(os.listdir(tmp_path)) == ["d", "dangling", "empty", "f", "file"]
