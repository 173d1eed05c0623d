"""A directory with an agent in it, for tests of tools."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import trio
from job_kit import Desk, desk

from peen.entropy import SystemEntropy
from peen.job.room import Jobs
from peen.tool.base import ToolContext, ToolOutcome
from peen.tool.ledger import Ledger
from peen.tool.locks import FileLocks
from peen.tool.registry import Tools, standard_tools
from peen.tool.tree import read_row
from peen.wire.launch import WorkerSettings


class World:
    """One agent with the standard tools. `settings` are limits to be changed."""

    def __init__(
        self,
        directory: Path,
        *,
        tools: Tools | None = None,
        workspace: Path | None = None,
        prompt_budget_tokens: int | None = None,
        **settings: int,
    ) -> None:
        self.desk: Desk
        self.jobs: Jobs
        self.directory = directory
        self.tools = tools or standard_tools()
        self.context = ToolContext(
            directory=directory,
            home=directory / "home",
            workspace=workspace or directory,
            settings=msgspec.convert(
                {"upstreams": [], "defaultModel": "m", **{_camel(name): value for name, value in settings.items()}},
                WorkerSettings,
            ),
            ledger=Ledger(),
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            locks=FileLocks(),
            prompt_budget_tokens=prompt_budget_tokens,
        )

    def other_agent(self) -> World:
        """Another agent of the same worker: it shares tools and locks, and has read nothing."""
        other = World(self.directory, tools=self.tools)
        other.context = dataclasses.replace(self.context, ledger=Ledger())
        return other

    def file(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def content(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def names(self) -> list[str]:
        """Everything in the directory: a write leaves no temporary file behind."""
        return sorted(os.listdir(self.directory))

    async def call(self, tool: str, /, **arguments: object) -> ToolOutcome:
        return await self.tools.call(tool, msgspec.json.encode(arguments), self.context)

    async def ok(self, tool: str, /, **arguments: object) -> dict[str, Any]:
        """The result of a call that must succeed and keep within the limit."""
        outcome = await self.call(tool, **arguments)
        assert not outcome.is_error, outcome.content
        assert len(outcome.content.encode()) <= self.context.max_result_bytes
        result: dict[str, Any] = msgspec.json.decode(outcome.content)
        return result

    async def refused(self, tool: str, /, **arguments: object) -> str:
        """The text of a call that must fail."""
        outcome = await self.call(tool, **arguments)
        assert outcome.is_error, outcome.content
        return outcome.content


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


NOBODY = 65534


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Without the powers of root for a while, where the tests run as root: for it nothing is protected.

    The saved user id stays, so that there is a way back. Only what is imported already can be used.
    """
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@contextlib.contextmanager
def ordinary_directory() -> Iterator[Path]:
    """A directory that an `ordinary_user` owns and can reach, other than those of pytest."""
    with tempfile.TemporaryDirectory(prefix="peen-test-", dir="/tmp") as name:
        if os.geteuid() == 0:
            os.chown(name, NOBODY, -1)
        yield Path(name)


def alive(pid: int) -> bool:
    row = read_row(pid)
    return row is not None and not row.dead


@contextlib.asynccontextmanager
async def working(world: World) -> AsyncIterator[Desk]:
    """Let the world run commands: the jobs of a worker, on a store in memory. What still runs at the end is ended."""
    async with desk() as own, trio.open_nursery() as nursery:
        jobs = Jobs(own.link, nursery, SystemEntropy())
        world.context = dataclasses.replace(world.context, jobs=jobs.of(own.caller))
        world.desk, world.jobs = own, jobs
        try:
            yield own
        finally:
            with trio.CancelScope(shield=True):  # bounded
                await jobs.end_all()
            nursery.cancel_scope.cancel()


class Mailbox:
    """A named pipe through which a command under test reports, line by line."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # Open for writing too, so that it never looks closed when one writer is done.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    async def line(self) -> str:
        with trio.fail_after(10):
            while b"\n" not in self._unread:
                await trio.lowlevel.wait_readable(self._descriptor)
                with contextlib.suppress(BlockingIOError):
                    self._unread += os.read(self._descriptor, 4096)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    async def pid(self) -> int:
        return int(await self.line())


async def gone(pid: int) -> None:
    """Wait for the end of a process that was told to end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(10):
            await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def run(world: World, command: str, **arguments: object) -> dict[str, Any]:
    """The result of a command."""
    with trio.fail_after(20):
        return await world.ok("runCommand", command=command, purpose="a test", **arguments)


async def cancelled(world: World, mailbox: Mailbox, command: str, *, pids: int) -> tuple[list[int], float]:
    """Start a command, cancel the call once it has reported so many pids; these, and how long the end took."""
    reported: list[int] = []
    outcomes: list[ToolOutcome] = []

    async def call() -> None:
        outcomes.append(await world.call("runCommand", command=command, purpose=""))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            reported = [await mailbox.pid() for _ in range(pids)]
            began = trio.current_time()
            nursery.cancel_scope.cancel()
    assert outcomes == []
    return reported, trio.current_time() - began


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again at something that only the kernel knows."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - nobody here could set an event
            await trio.sleep(0.005)
