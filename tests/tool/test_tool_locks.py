"""Files that other programs change or lock at the same moment: nothing that was reported as done is lost."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tool_world import World
from trio.testing import MockClock

from peen.tool.apply_patch import ApplyPatch
from peen.tool.disk import Disk
from peen.tool.locks import BUSY_S, FileLocks
from peen.tool.read_file import ReadFile
from peen.tool.registry import Tools

HERE = Path(__file__).parent
LINES = 40
CHANGES = 50  # of each process

# A worker in a process of its own: reads the file and changes one of its lines, again and again.
WORKER = """
import json, sys, trio
from pathlib import Path
from tool_world import World

directory, name, tool, own, changes = sys.argv[1:]

def change(line, new):
    if tool == "editFile":
        return {"path": name, "edits": [{"old": line, "new": new}]}
    return {"patch": "\\n".join(
        ["*** Begin Patch", f"*** Update File: {name}", "@@", "-" + line, "+" + new, "*** End Patch"])}

async def main():
    world = World(Path(directory))
    done, refused = [], 0
    print("ready", flush=True)
    sys.stdin.readline()
    while len(done) < int(changes):
        content = (await world.ok("readFile", path=name))["content"]
        line = next((each for each in content.split("\\n") if each.startswith(f"{own}-")), None)
        if line is None:  # torn: an overwrite in place was under way
            continue
        new = f"{own}-{len(done) + 1}"
        outcome = await world.call(tool, **change(line, new))
        if outcome.is_error:
            assert outcome.content.startswith(("stale hash: ", "match not ", "context not ")), outcome.content
            refused += 1
        else:
            # The other may have written behind this one, but never over it.
            assert line == f"{own}-{len(done)}", (line, len(done))
            done.append(new)
    print(json.dumps([len(done), refused]), flush=True)

trio.run(main)
"""


@pytest.mark.parametrize(
    ("tools", "linked"),
    [
        (["editFile", "editFile"], False),
        (["editFile", "editFile"], True),
        (["editFile", "applyPatch"], False),
        (["applyPatch", "applyPatch"], True),
    ],
)
def test_of_the_changes_of_two_processes_none_is_lost(tmp_path: Path, tools: list[str], linked: bool) -> None:
    lines = ["0-0", *["between"] * LINES, "1-0", ""]
    names = ["f", "twin" if linked else "f"]
    (tmp_path / "f").write_text("\n".join(lines))
    if linked:
        (tmp_path / "twin").hardlink_to(tmp_path / "f")
    path = os.pathsep.join([str(HERE), str(HERE.parent / "kits")])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), name, tool, str(number), str(CHANGES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        for number, (name, tool) in enumerate(zip(names, tools, strict=True))
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        results = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

    assert [done for done, _ in results] == [CHANGES, CHANGES]
    # Each change followed the one before it, so all of them were on disk, and the last ones still are.
    lines[0], lines[-2] = f"0-{CHANGES}", f"1-{CHANGES}"
    assert (tmp_path / "f").read_text() == "\n".join(lines)
    assert sorted(os.listdir(tmp_path)) == sorted(set(names))
    assert os.stat(tmp_path / "f").st_nlink == len(set(names))


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """What another program does that locks a file. A lock belongs to the descriptor, not to the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    try:
        with locked(path):
            return False
    except BlockingIOError:
        return True


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


CHANGES_OF_F: list[tuple[str, dict[str, object]]] = [
    ("editFile", {"path": "f", "edits": [{"old": "a", "new": "b"}]}),
    ("writeFile", {"path": "f", "content": "b"}),
    ("applyPatch", {"patch": patch("*** Update File: f", "@@", "-a", "+b")}),
    ("applyPatch", {"patch": patch("*** Delete File: f")}),
    ("movePath", {"source": "f", "destination": "g"}),
    ("removePath", {"path": "f"}),
]


@pytest.mark.parametrize(("tool", "arguments"), CHANGES_OF_F, ids=[each[0] for each in CHANGES_OF_F])
async def test_a_file_that_another_program_has_locked_is_left_alone_and_the_lock_is_named(
    tmp_path: Path, autojump_clock: MockClock, tool: str, arguments: dict[str, object]
) -> None:
    world = World(tmp_path)
    path = world.file("f", b"a\n")
    await world.ok("readFile", path="f")

    with locked(path):
        text = await world.refused(tool, **arguments)

    assert text.startswith(f"conflict: another program has held a lock (flock) on {path} for 10 s. Nothing was changed")
    assert BUSY_S <= trio.current_time() < BUSY_S + 1
    assert (world.content("f"), world.names()) == (b"a\n", ["f"])


async def test_a_file_that_was_exchanged_during_the_wait_is_locked_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path, other = tmp_path / "f", tmp_path / "other"
    path.write_bytes(b"old")
    other.write_bytes(b"new")
    entered = trio.Event()

    async def change() -> None:
        async with FileLocks().holding(path):
            assert is_locked(path)
            entered.set()

    async with trio.open_nursery() as nursery:
        with locked(other):
            with locked(path):
                nursery.start_soon(change)
                await trio.sleep(1)
                other.rename(path)
            await trio.sleep(1)
            assert not entered.is_set()
        await trio.sleep(1)

    assert entered.is_set()
    assert not is_locked(path)


@pytest.mark.parametrize("late", [False, True], ids=["before it is opened", "before it is locked"])
async def test_a_file_that_is_exchanged_in_the_middle_of_locking_is_not_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, late: bool
) -> None:
    path, other = tmp_path / "f", tmp_path / "other"
    path.write_bytes(b"old")
    other.write_bytes(b"new")
    open_, flock = os.open, fcntl.flock

    def exchange() -> None:
        if other.exists():
            other.rename(path)

    def opened(name: Any, *arguments: Any, **options: Any) -> int:
        if not late and name == path:
            exchange()
        return open_(name, *arguments, **options)

    def locked_late(descriptor: Any, operation: int) -> None:
        if late:
            exchange()
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(fcntl, "flock", locked_late)
        holding = FileLocks().holding(path)
        await holding.__aenter__()
    try:
        assert path.read_bytes() == b"new"
        assert is_locked(path)
    finally:
        await holding.__aexit__(None, None, None)
    assert not is_locked(path)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF])
async def test_a_file_system_without_locks_is_used_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    world = World(tmp_path)
    world.file("f", b"a\n")
    await world.ok("readFile", path="f")

    await world.ok("editFile", path="f", edits=[{"old": "a", "new": "b"}])
    await world.ok("applyPatch", patch=patch("*** Update File: f", "@@", "-b", "+c", "*** Add File: g", "+d"))

    assert (world.content("f"), world.content("g")) == (b"c\n", b"d\n")


async def test_a_lock_that_fails_otherwise_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.file("f", b"a\n")
    await world.ok("readFile", path="f")
    before = len(os.listdir("/proc/self/fd"))

    def fail(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", fail)
    text = await world.refused("editFile", path="f", edits=[{"old": "a", "new": "b"}])

    assert text == f"failed: {tmp_path}/f: broken"
    assert (world.content("f"), world.names()) == (b"a\n", ["f"])
    assert len(os.listdir("/proc/self/fd")) == before


class Watching(Disk):
    """Notes which files are locked when the directories are synced, the last step that can fail; it fails if told."""

    def __init__(self, *names: str, fails: bool) -> None:
        self.names, self.fails = names, fails
        self.seen: dict[str, bool] = {}

    def sync(self, directory: Path) -> None:
        if not self.seen:
            self.seen = {name: is_locked(directory / name) for name in self.names}
            if self.fails:
                raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_patch_has_put_in_place_stays_locked_until_it_cannot_be_undone_any_more(
    tmp_path: Path, fails: bool
) -> None:
    disk = Watching("f", "g", "moved", fails=fails)
    world = World(tmp_path, tools=Tools([ReadFile(), ApplyPatch(disk)]))
    for name in ("f", "m"):
        world.file(name, b"a\n")
        await world.ok("readFile", path=name)
    before = len(os.listdir("/proc/self/fd"))
    lines = ["*** Update File: f", "@@", "-a", "+b", "*** Add File: g", "+d"]
    lines += ["*** Update File: m", "*** Move to: moved", "@@", "-a", "+b"]

    outcome = await world.call("applyPatch", patch=patch(*lines))

    assert outcome.is_error is fails
    assert disk.seen == {"f": True, "g": True, "moved": True}
    assert {name: world.content(name) for name in world.names()} == (
        {"f": b"a\n", "m": b"a\n"} if fails else {"f": b"b\n", "g": b"d\n", "moved": b"b\n"}
    )
    assert not any(is_locked(tmp_path / name) for name in world.names())
    assert len(os.listdir("/proc/self/fd")) == before


class Overtaken(FileLocks):
    """Somebody makes the file just after the call found nothing that it could lock."""

    @asynccontextmanager
    async def holding(self, *real_paths: Path) -> AsyncIterator[frozenset[Path]]:
        async with super().holding(*real_paths) as absent:
            real_paths[0].write_bytes(b"a\n")
            yield absent


async def test_a_file_that_was_not_there_to_be_locked_is_not_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    path = world.file("f", b"a\n")
    await world.ok("readFile", path="f")
    path.unlink()
    world.context = dataclasses.replace(world.context, locks=Overtaken())

    assert (await world.refused("writeFile", path="f", content="b")).startswith("already exists: ")

    assert (world.content("f"), world.names()) == (b"a\n", ["f"])
