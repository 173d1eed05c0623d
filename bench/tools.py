"""What the file tools and commands cost beside the programs and system calls that they rest on.

    python -m bench.tools [--quick] [--json]

Each figure has a floor, measured in turns with it: for searchText and listFiles on a tree of 50,000 files that is `rg`
with the same files to look at, for changes the plain read, write, fsync and rename of the same bytes, file by file.
`ratio` is that of the medians. Calls are whole ones, from the model's JSON to the result's. `search_few` finds 50
lines; `search_many` and `list` stop at their limits, which `rg` does not have. Another figure is one more entry in
`figures`.

Commands (`bench.commands`) run in the whole program. `spawn` is `true` in a shell, beside a bare loop of `posix_spawn`;
the aim is 1.5 times that and a millisecond. `print_64mb` is the output of one command until it is stored, beside
`cat > file`, and once more beside the same and an fsync: the stored output is on the disk, too. `MB/s` (`mb_per_s` in
JSON) is how fast it was stored.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio

from bench import commands
from bench.common import median, parser, report, table
from peen.tool.base import ToolContext
from peen.tool.ledger import Ledger
from peen.tool.locks import FileLocks
from peen.tool.registry import standard_tools
from peen.tool.search_text import ripgrep_path
from peen.wire.launch import WorkerSettings

FILES: Final = 50_000
FILES_PER_DIRECTORY: Final = 200
LINES_PER_FILE: Final = 10
TREE_BYTES: Final = 1024**3  # more than enough
NEEDLE: Final = "needle"
NEEDLE_EVERY: Final = 1_000
EDITED_BYTES: Final = 4_000_000  # a little less than the 4 MiB that may be written
PATCHED_FILES: Final = 10


@dataclass(frozen=True)
class Figure:
    """Something to be measured, what it is compared with, and what has to be done before each of the two."""

    name: str
    run: Callable[[], Awaitable[None]]
    floor: Callable[[], Awaitable[None]]
    repeats: int


class Agent:
    """Calls tools as a turn does."""

    def __init__(self, directory: Path) -> None:
        self._tools = standard_tools()
        self._context = ToolContext(
            directory=directory,
            home=directory,
            workspace=directory,
            settings=msgspec.convert({"upstreams": [], "defaultModel": "m"}, WorkerSettings),
            ledger=Ledger(),
            environment={},
            locks=FileLocks(),
        )

    async def call(self, tool: str, /, **arguments: object) -> bytes:
        """The result of a call that must succeed."""
        outcome = await self._tools.call(tool, msgspec.json.encode(arguments), self._context)
        assert not outcome.is_error, outcome.content
        return outcome.content.encode()

    async def know(self, name: str) -> None:
        """Read a file, so that it may be changed. A large one is refused, but noted."""
        await self._tools.call("readFile", msgspec.json.encode({"path": name}), self._context)


def make_tree(root: Path) -> None:
    text = "".join(
        f"line {number} of an ordinary source file, as long as such lines are\n" for number in range(LINES_PER_FILE)
    )
    for number in range(FILES):
        directory = root / f"d{number // FILES_PER_DIRECTORY:03}"
        if number % FILES_PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        found = NEEDLE + "\n" if number % NEEDLE_EVERY == NEEDLE_EVERY - 1 else ""
        (directory / f"f{number:05}.txt").write_text(text + found)


async def rg(*arguments: str) -> None:
    await trio.run_process([str(ripgrep_path()), "--no-config", *arguments], stdout=subprocess.DEVNULL)


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    """The least that a durable change of a file takes."""
    data = path.read_bytes().replace(old, new, 1)
    temporary = path.with_name(".floor.tmp")
    with open(temporary, "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


async def figures(directory: Path, tree: Path, *, quick: bool) -> list[Figure]:
    """All that is measured, with everything made that it needs."""
    agent = Agent(directory)
    make_tree(tree)
    matches = FILES // NEEDLE_EVERY
    large, other = directory / "large", directory / "large-floor"
    for path in (large, other):
        path.write_bytes(b"an ordinary line of a large file\n" * (EDITED_BYTES // 33) + b"value 0\n")
    for number in range(PATCHED_FILES):
        for name in (f"p{number}", f"q{number}"):
            (directory / name).write_bytes(b"an ordinary line\n" * 100 + b"value 0\n")
        await agent.know(f"p{number}")
    await agent.know("large")

    async def search() -> None:
        result = msgspec.json.decode(await agent.call("searchText", pattern=NEEDLE, path=str(tree)))
        assert len(result["matches"]) == matches

    async def search_dense() -> None:
        result = msgspec.json.decode(await agent.call("searchText", pattern="ordinary", path=str(tree)))
        assert result["truncated"]

    async def listing() -> None:
        result = msgspec.json.decode(await agent.call("listFiles", path=str(tree), recursive=True))
        assert result["truncated"]

    edited, patched = itertools.count(), itertools.count()

    async def edit() -> None:
        number = next(edited)
        edits = [{"old": f"value {number}\n", "new": f"value {number + 1}\n"}]
        await agent.call("editFile", path="large", edits=edits)

    async def edit_floor() -> None:
        rewrite(other, b"value", b"value")

    async def patch() -> None:
        number = next(patched)
        lines = ["*** Begin Patch"]
        for name in range(PATCHED_FILES):
            lines += [f"*** Update File: p{name}", "@@", f"-value {number}", f"+value {number + 1}"]
        await agent.call("applyPatch", patch="\n".join([*lines, "*** End Patch"]))

    async def patch_floor() -> None:
        for name in range(PATCHED_FILES):
            rewrite(directory / f"q{name}", b"value", b"value")

    walk = ["--no-ignore", "--hidden", str(tree)]
    few, many = (3, 10) if quick else (9, 40)
    return [
        Figure("search_few", search, lambda: rg("--fixed-strings", NEEDLE, *walk), few),
        Figure("search_many", search_dense, lambda: rg("--fixed-strings", "ordinary", *walk), few),
        Figure("list", listing, lambda: rg("--files", *walk), few),
        Figure("edit_4mb", edit, edit_floor, many),
        Figure("patch_10_files", patch, patch_floor, many),
    ]


async def measured(figure: Figure) -> dict[str, float]:
    """Milliseconds of both, measured in turns so that both see the same machine."""
    samples: dict[str, list[float]] = {"ms": [], "floor_ms": []}
    for run in (figure.run, figure.floor):
        await run()  # what is read and compiled for the first time
    for _ in range(figure.repeats):
        for name, run in (("ms", figure.run), ("floor_ms", figure.floor)):
            began = time.perf_counter()
            await run()
            samples[name].append((time.perf_counter() - began) * 1000)
    found = {name: median(times) for name, times in samples.items()}
    return {**found, "ratio": found["ms"] / found["floor_ms"]}


async def measure(*, quick: bool) -> dict[str, dict[str, float]]:
    with (
        tempfile.TemporaryDirectory(prefix="peen-bench-") as name,
        tempfile.TemporaryDirectory(prefix="peen-bench-", dir=fast_directory()) as tree,
    ):
        found = await figures(Path(name), Path(tree), quick=quick)
        return {figure.name: await measured(figure) for figure in found}


def measure_commands(*, quick: bool) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="peen-bench-") as name:
        return commands.measure(Path(name), quick=quick)


def fast_directory() -> Path | None:
    """Memory, if there is enough: on a disk it takes longer to make the tree than to measure."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > TREE_BYTES else None


def rows(found: dict[str, dict[str, float]]) -> Sequence[Sequence[object]]:
    return [
        [name, each["ms"], each["floor_ms"], each["ratio"], each.get("mb_per_s", "")] for name, each in found.items()
    ]


def main() -> int:
    arguments = parser("The file tools and commands, each beside its floor.").parse_args()
    found = trio.run(lambda: measure(quick=arguments.quick)) | measure_commands(quick=arguments.quick)
    report(arguments, found, table(["figure", "ms", "floor ms", "ratio", "MB/s"], rows(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
