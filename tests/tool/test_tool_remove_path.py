"""removePath: only what was seen goes, nothing outside of it is touched, and a failure says what is left."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from tool_world import World, ordinary_directory, ordinary_user

from peen.tool.base import ToolError
from peen.tool.entry import look_at
from peen.tool.paths import Identity
from peen.tool.protected import Protected
from peen.tool.removal import Removal, remove_entry, remove_tree
from peen.tool.treewalk import Walker

_BIND, _DETACH = 4096, 2


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_file_that_was_read_and_is_unchanged_goes(world: World) -> None:
    path = world.file("f", b"old")
    await world.ok("listFiles")
    assert (await world.refused("removePath", path="f")).startswith("not observed: ")

    sha256 = (await world.ok("readFile", path="f"))["sha256"]
    os.utime(path, ns=(0, 0))
    assert (await world.refused("removePath", path="f", expectedSha256="0" * 64)).startswith("stale hash: ")
    assert await world.ok("removePath", path="f", expectedSha256=sha256) == {"path": str(path), "removed": 1}

    assert world.names() == []


async def test_a_changed_file_stays_whatever_its_time_stamp(world: World) -> None:
    path = world.file("f", b"old")
    status = path.stat()
    await world.ok("readFile", path="f")

    path.write_bytes(b"new")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert (await world.refused("removePath", path="f")).startswith("stale hash: ")
    assert world.content("f") == b"new"


async def test_what_was_removed_is_forgotten_and_may_be_created_again(world: World) -> None:
    world.file("d/f", b"same")
    await world.ok("listFiles", recursive=True)
    await world.ok("readFile", path="d/f")
    outcome = await world.call("removePath", path="d", recursive=True)
    assert {(seen.path, seen.gone) for seen in outcome.ledger.observations} == {
        (str(world.directory / name), True) for name in ("d", "d/f")
    }

    world.file("d/f", b"same")

    assert (await world.refused("writeFile", path="d/f", content="x")).startswith("not observed: ")
    assert (await world.refused("removePath", path="d", recursive=True)).startswith("not observed: ")


async def test_a_directory_must_have_been_listed_and_has_no_hash(world: World) -> None:
    (world.directory / "d").mkdir()
    assert (await world.refused("removePath", path="d")).startswith("not observed: ")

    await world.ok("listFiles", path="d")

    assert (await world.refused("removePath", path="d", expectedSha256="0" * 64)).startswith("validation failed: ")
    assert (await world.ok("removePath", path="d"))["removed"] == 1
    assert world.names() == []


async def test_a_directory_with_entries_needs_recursive_and_every_entry_counts(world: World) -> None:
    for name in ("d/f", "d/.hidden", "d/.git/config", "d/sub/deep/g"):
        world.file(name, b"x")
    os.mkfifo(world.directory / "d/pipe")
    (world.directory / "d/empty").mkdir()
    await world.ok("listFiles")

    text = await world.refused("removePath", path="d")
    assert text.startswith("directory not empty: ")
    assert "recursive" in text

    assert (await world.ok("removePath", path="d", recursive=True))["removed"] == 10
    assert world.names() == []


async def test_a_link_goes_and_what_it_leads_to_stays(world: World) -> None:
    world.file("d/f", b"x")
    os.symlink("d", world.directory / "link")
    os.symlink("nowhere", world.directory / "dangling")
    os.symlink("loop", world.directory / "loop")
    assert (await world.refused("removePath", path="link", recursive=True)).startswith("not observed: ")
    await world.ok("listFiles")

    assert (await world.refused("removePath", path="link", expectedSha256="0" * 64)).startswith("validation failed: ")
    for name in ("link", "dangling", "loop"):
        assert (await world.ok("removePath", path=name, recursive=True))["removed"] == 1

    assert (world.names(), world.content("d/f")) == (["d"], b"x")


async def test_links_inside_a_tree_are_not_followed(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "precious").write_bytes(b"x")
    (world.directory / "d").mkdir()
    os.symlink(outside, world.directory / "d/link")
    await world.ok("listFiles")

    assert (await world.ok("removePath", path="d", recursive=True))["removed"] == 2

    assert (outside / "precious").read_bytes() == b"x"


async def test_pipes_and_what_does_not_exist_are_refused_at_once(world: World) -> None:
    os.mkfifo(world.directory / "pipe")
    await world.ok("listFiles")

    with trio.fail_after(5):
        assert (await world.refused("removePath", path="pipe")).startswith("not regular: ")
    assert (await world.refused("removePath", path="pip")).endswith("did you mean pipe?")
    assert (await world.refused("removePath", path="")).startswith("validation failed: removePath: path: ")
    assert world.names() == ["pipe"]


async def test_what_read_file_cannot_show_is_refused_with_the_remedy(tmp_path: Path) -> None:
    world = World(tmp_path, max_write_bytes=10)
    world.file("binary", b"\0")
    world.file("large", b"x" * 11)

    for name, kind in (("binary", "not observed"), ("large", "limit exceeded")):
        text = await world.refused("removePath", path=name)
        assert text.startswith(f"{kind}: ")
        assert "runCommand" in text
    assert world.names() == ["binary", "large"]


async def test_the_workspace_and_what_leads_to_it_stay_under_every_name(tmp_path: Path) -> None:
    (tmp_path / "outer/inner/ws/sub").mkdir(parents=True)
    os.symlink("outer", tmp_path / "link")
    os.symlink("outer/inner/ws", tmp_path / "alias")
    world = World(tmp_path, workspace=tmp_path / "link/inner/ws")
    await world.ok("listFiles", recursive=True)

    for path in ("outer", "link", "link/inner", "outer/inner/ws", "alias/sub/..", "/", ".", "..", "/tmp", "~/.."):
        text = await world.refused("removePath", path=path, recursive=True)
        assert text.startswith("permission denied: "), path

    # A link that leads there from elsewhere is only a link.
    await world.ok("removePath", path="alias", recursive=True)
    assert (tmp_path / "link/inner/ws/sub").is_dir()


async def test_a_tree_over_the_limit_is_refused_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path, max_remove_entries=4)
    for name in ("d/a/f", "d/b"):
        world.file(name, b"")
    await world.ok("listFiles")

    world.file("d/a/one-too-many", b"")
    text = await world.refused("removePath", path="d", recursive=True)
    assert text.startswith("limit exceeded: ")
    assert "PEEN_TOOL_MAX_REMOVE_ENTRIES" in text
    assert sorted(os.listdir(tmp_path / "d/a")) == ["f", "one-too-many"]

    (tmp_path / "d/a/one-too-many").unlink()
    assert (await world.ok("removePath", path="d", recursive=True))["removed"] == 4


async def test_a_tree_far_deeper_than_a_path_may_be_long_goes_with_few_descriptors(world: World) -> None:
    depth = 1500
    descriptor = os.open(world.directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=descriptor)
        inner = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    await world.ok("listFiles")
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert (await world.ok("removePath", path="deep", recursive=True))["removed"] == depth
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert world.names() == []


async def test_a_part_that_may_not_be_changed_refuses_the_whole() -> None:
    with ordinary_directory() as directory, ordinary_user():
        world = World(directory)
        world.file("d/a", b"x")
        world.file("d/locked/f", b"x").parent.chmod(0o555)
        await world.ok("listFiles")

        text = await world.refused("removePath", path="d", recursive=True)

        assert text.startswith(f"permission denied: {directory}/d/locked ")
        assert sorted(os.listdir(directory / "d")) == ["a", "locked"]


class Meddler(Protected):
    """Somebody else, at work in the tree: `act` happens once, when the directory `at` has been looked through."""

    def __init__(self, at: Path, act: Callable[[], object]) -> None:
        super().__init__(Path("/"))
        status = at.stat()
        self._at, self._act = (status.st_dev, status.st_ino), act

    def __contains__(self, identity: Identity) -> bool:
        if identity == self._at:
            self._act()
        return super().__contains__(identity)


async def remove(tree: Path, meddler: Protected) -> Removal:
    entry = look_at(tree, 0)
    return await trio.to_thread.run_sync(remove_tree, entry, 100, meddler)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a", "m/one", "m/two", "z/inner/f"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"x")
    return tmp_path / "d"


def all_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


async def test_what_appears_meanwhile_stays_and_the_rest_is_named(tree: Path) -> None:
    removal = await remove(tree, Meddler(tree / "m", lambda: (tree / "m/new").write_bytes(b"theirs")))

    assert removal.removed == 3
    assert str(removal.problem) == (
        f"directory not empty: {tree}/m is not empty. 3 of 8 entries were removed; left are: m/, z/, ."
    )
    assert all_below(tree) == ["m", "m/new", "z", "z/inner", "z/inner/f"]


async def test_a_directory_exchanged_for_a_link_is_not_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "one").write_bytes(b"precious")

    def exchange() -> None:
        (tree / "m").rename(tmp_path / "taken")
        os.symlink(outside, tree / "m")

    removal = await remove(tree, Meddler(tree / "z/inner", exchange))

    assert removal.removed == 1
    assert "left are: m/, z/, ." in str(removal.problem)
    assert os.listdir(outside) == ["one"]
    assert sorted(os.listdir(tmp_path / "taken")) == ["one", "two"]


async def test_a_directory_exchanged_for_another_is_not_entered(tree: Path, tmp_path: Path) -> None:
    def exchange() -> None:
        (tree / "m").rename(tmp_path / "taken")
        (tree / "m").mkdir()
        (tree / "m/one").write_bytes(b"theirs")

    removal = await remove(tree, Meddler(tree / "z/inner", exchange))

    assert str(removal.problem).startswith(f"failed: {tree}/m: it was exchanged meanwhile. 1 of 8 entries")
    assert (tree / "m/one").read_bytes() == b"theirs"


async def test_files_that_others_remove_meanwhile_are_no_failure_and_not_counted(tree: Path) -> None:
    removal = await remove(tree, Meddler(tree / "m", (tree / "m/two").unlink))

    assert removal == Removal(7)
    assert all_below(tree.parent) == []


async def test_a_file_changed_between_look_and_removal_stays(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    entry = look_at(path, 100)
    status = path.stat()
    # A fine clock is not everywhere, so the file is exchanged as well.
    (tmp_path / "g").write_bytes(b"new")
    os.utime(tmp_path / "g", ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "g").rename(path)

    with pytest.raises(ToolError, match="stale hash"):
        remove_entry(entry)

    assert path.read_bytes() == b"new"


async def test_a_stopped_removal_stops_between_two_entries(tree: Path) -> None:
    with trio.CancelScope() as scope:
        await remove(tree, Meddler(tree / "z/inner", lambda: trio.from_thread.run_sync(scope.cancel)))

    assert scope.cancelled_caught
    assert sorted(os.listdir(tree)) == ["a", "m", "z"]


def test_a_directory_moved_elsewhere_is_not_left_for_another(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    start = os.open(tree, os.O_RDONLY)
    walker = Walker(start)
    try:
        walker.enter("z")
        walker.enter("inner")
        (tree / "z/inner").rename(tmp_path / "elsewhere/inner")

        with pytest.raises(OSError, match="moved elsewhere"):
            walker.leave()
    finally:
        walker.close()
        os.close(start)


async def test_what_went_before_a_failure_is_forgotten_and_the_rest_still_known() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make what an ordinary user cannot remove")
    with ordinary_directory() as directory:
        world = World(directory)
        for name in ("d/a", "d/m/f", "d/z"):
            world.file(name, b"x")
        for name in ("d", "d/a", "d/z"):
            os.chown(directory / name, 65534, -1)
        (directory / "d/m").chmod(0o1777)  # everybody may write, and nobody may remove what others own
        with ordinary_user():
            await world.ok("listFiles", recursive=True)
            text = await world.refused("removePath", path="d", recursive=True)

        assert text == (
            f"permission denied: {directory}/d/m/f may not be changed by this account. "
            "1 of 5 entries were removed; left are: m/f, m/, z, ."
        )
        assert world.context.ledger.at_or_below(f"{directory}/d") == [
            f"{directory}/{name}" for name in ("d", "d/m", "d/m/f", "d/z")
        ]


@contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), None, _BIND, None) != 0:
        pytest.skip("this account may not mount anything")
    try:
        yield
    finally:
        libc.umount2(os.fsencode(target), _DETACH)


@pytest.mark.parametrize("kind", ["directory", "file", "tree"])
async def test_a_mount_point_in_the_tree_refuses_the_whole(
    world: World, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("out side")
    (outside / "precious").write_bytes(b"x")
    world.file("d/a b/file", b"")
    world.file("d/a b/directory/x", b"").unlink()
    source, target = {
        "directory": (outside, world.directory / "d/a b/directory"),
        "file": (outside / "precious", world.directory / "d/a b/file"),
        "tree": (outside, world.directory / "d"),
    }[kind]
    await world.ok("listFiles")

    with mounted(source, target):
        text = await world.refused("removePath", path="d", recursive=True)

    assert text == (
        f"permission denied: {target} is a mount point, and removal never leaves a file system. Nothing was removed"
    )
    assert (outside / "precious").read_bytes() == b"x"
    assert sorted(os.listdir(world.directory / "d/a b")) == ["directory", "file"]


async def test_the_workspace_is_found_in_a_tree_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "data/project").mkdir(parents=True)
    (tmp_path / "ws").mkdir()
    with mounted(tmp_path / "data/project", tmp_path / "ws"):
        world = World(tmp_path, workspace=tmp_path / "ws")
        await world.ok("listFiles", recursive=True)

        for path in ("data", "data/project"):
            text = await world.refused("removePath", path=path, recursive=True)
            assert text.startswith(f"permission denied: {tmp_path}/data/project is or holds the workspace"), path
        assert (await world.refused("movePath", source="data/project", destination="x")).startswith("permission denied")

    assert (tmp_path / "data/project").is_dir()
