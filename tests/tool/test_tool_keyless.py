"""A program that waits for keys where there is no keyboard: it is ended soon, and everybody else is left alone."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tool_world import World, working

EDITOR = """
import os, select, sys
if os.read(0, 1): sys.exit("there was input")
os.close(0)
os.dup(2)
select.select([0], [], [])
"""
# They look alike: the input can be read, is closed, or is as useless, but nobody waits for it or somebody is at work.
HARMLESS = (
    "((sleep 1.2; echo one) | (read line; echo got $line)) & (sleep 1.2 <&-) & (sleep 1.2 0>&2) & "
    "(timeout 1.2 sh -c 'while :; do :; done' 0>&2) & wait"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with working(world):
        yield world


async def run(world: World, command: str) -> dict[str, Any]:
    with trio.fail_after(20):
        return await world.ok("runCommand", command=command, purpose="a test", timeout="15s")


async def test_what_takes_its_error_output_for_a_keyboard_is_ended_and_named(world: World) -> None:
    world.file("editor", EDITOR.encode())

    result = await run(world, f"{shlex.quote(sys.executable)} editor; echo went on")

    assert (result["state"], result["stdout"]) == ("exited", "went on\n")
    assert "waited for keys" in result["note"]
    assert result["durationMs"] < 10_000


@pytest.mark.parametrize("command", ["vi f", "env -u GIT_EDITOR git -c core.editor=vi commit --allow-empty"])
async def test_a_real_editor_ends_by_itself(world: World, command: str) -> None:
    if shutil.which("vi") is None:
        pytest.skip("there is no vi")
    world.file("f", b"text\n")
    who = "-c user.name=a -c user.email=a@b -c commit.gpgsign=false"
    command = command.replace("git ", f"git {who} ")

    result = await run(world, f"git init -q && {command}")

    assert result["state"] == "exited"
    assert result["exitCode"] != 0
    assert "waited for keys" in result["note"]
    assert world.content("f") == b"text\n"


async def test_keys_from_a_pipe_still_work(world: World) -> None:
    if shutil.which("vi") is None:
        pytest.skip("there is no vi")
    world.file("f", b"old\n")

    result = await run(world, "printf ':%%s/old/new/\\r:wq\\r' | vi -u NONE f")

    assert (result["exitCode"], result.get("note")) == (0, None)
    assert world.content("f") == b"new\n"


async def test_others_that_wait_are_left_alone(world: World) -> None:
    result = await run(world, HARMLESS)

    assert (result["exitCode"], result["stdout"], result.get("note")) == (0, "got one\n", None)
