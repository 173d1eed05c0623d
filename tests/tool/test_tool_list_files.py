"""listFiles: what is there, in order of path, within limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def paths(world: World, **arguments: object) -> list[str]:
    return [entry["path"] for entry in (await world.ok("listFiles", **arguments))["entries"]]


async def test_every_kind_of_entry_is_described(world: World) -> None:
    world.file("file", b"12345").chmod(0o600)
    world.file(".hidden", b"").chmod(0o644)
    (world.directory / "sub").mkdir(mode=0o755)
    os.symlink("sub", world.directory / "link")
    os.mkfifo(world.directory / "pipe", 0o600)

    result = await world.ok("listFiles")

    assert result["directory"] == str(world.directory)
    assert result["truncated"] is False
    assert [(entry["path"], entry["type"]) for entry in result["entries"]] == [
        (".hidden", "file"),
        ("file", "file"),
        ("link", "symlink"),
        ("pipe", "other"),
        ("sub", "directory"),
    ]
    assert result["entries"][1] == {"path": "file", "type": "file", "size": 5, "mode": "0600"}


async def test_a_tree_is_sorted_by_path_links_are_not_followed_and_git_is_not_entered(world: World) -> None:
    for name in ("a/deep/x", "a.txt", "a/b", "b", ".git/config", "sub/.git/HEAD", "sub/.gitignore"):
        world.file(name, b"")
    os.symlink("a", world.directory / "z")

    found = await paths(world, recursive=True)

    assert found == sorted(found)
    assert found == [
        ".git", "a", "a.txt", "a/b", "a/deep", "a/deep/x", "b", "sub", "sub/.git", "sub/.gitignore", "z",
    ]  # fmt: skip
    assert await paths(world, path=".git") == ["config"]


@pytest.mark.parametrize(
    ("arguments", "deepest"),
    [
        ({}, 1),
        ({"maxDepth": 3}, 1),
        ({"recursive": True, "maxDepth": 1}, 1),
        ({"recursive": True, "maxDepth": 3}, 3),
        ({"recursive": True}, 16),
        ({"recursive": True, "maxDepth": 0}, 16),
        ({"recursive": True, "maxDepth": 99}, 16),
    ],
)
async def test_the_depth_is_limited(world: World, arguments: dict[str, object], deepest: int) -> None:
    world.file("/".join(["d"] * 20) + "/f", b"")

    found = await paths(world, **arguments)

    assert len(found) == deepest


async def test_the_first_entries_are_kept_and_truncated_says_that_there_are_more(tmp_path: Path) -> None:
    world = World(tmp_path, max_list_entries=10)
    for number in range(11):
        world.file(f"d/{number:03}", b"")

    whole = await world.ok("listFiles", path="d")
    (tmp_path / "d/010").unlink()
    exact = await world.ok("listFiles", path="d")

    assert [entry["path"] for entry in whole["entries"]] == [f"{number:03}" for number in range(10)]
    assert (whole["truncated"], exact["truncated"]) == (True, False)
    assert exact["entries"] == whole["entries"]


async def test_a_result_that_would_be_too_large_is_truncated(world: World) -> None:
    for number in range(900):
        world.file(f"{number:04}{'x' * 100}", b"")

    result = await world.ok("listFiles")

    assert result["truncated"] is True
    assert 100 < len(result["entries"]) < 900


async def test_listing_records_paths_but_proves_no_content(world: World) -> None:
    world.file("sub/f", b"x")
    os.symlink("sub", world.directory / "link")

    outcome = await world.call("listFiles", path="link")

    real = world.directory.resolve() / "sub"
    assert [(seen.path, seen.sha256) for seen in outcome.ledger.observations] == [
        (str(real), None),
        (str(real / "f"), None),
    ]


async def test_a_file_or_nothing_cannot_be_listed(world: World) -> None:
    world.file("f", b"")

    assert (await world.refused("listFiles", path="f")).startswith("not a directory: ")
    assert (await world.refused("listFiles", path="g")).startswith("not found: ")


async def test_names_that_are_not_utf8_are_shown_escaped(world: World) -> None:
    world.file(os.fsdecode(b"caf\xe9/x"), b"")

    assert await paths(world, recursive=True) == ["caf\\xe9", "caf\\xe9/x"]
