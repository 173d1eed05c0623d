"""searchText: lines that match, found by ripgrep."""

from __future__ import annotations

import functools
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import trio
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text, readable
from peen.tool.content import foreign
from peen.tool.filesystem import read_to_judge, too_large
from peen.tool.matches import MatchCollector, TextMatch
from peen.tool.paths import require_regular, resolve_path, status_of
from peen.tool.process import CHUNK_BYTES, OutputReader, Process, spawn

_MAX_COMPLAINT_BYTES: Final = 4096
_REAP_S: Final = 2.0
_BAD_GLOB: Final = re.compile(r"error parsing glob '(.*?)':", re.DOTALL)


class SearchTextArguments(ToolArguments, frozen=True, kw_only=True):
    pattern: Annotated[
        str, Meta(min_length=1, description="Text to find within one line, or with regex a regular expression.")
    ]
    path: Annotated[str | None, Meta(description="File or directory to search. Default: the current directory.")] = None
    regex: Annotated[
        bool | None, Meta(description="Take pattern as a regular expression, without look-around. Default false.")
    ] = None
    include: Annotated[
        list[str] | None, Meta(description='Only files whose base name matches one of these globs, such as "*.py".')
    ] = None
    max_matches: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Matches to return. Default and at most 200.")
    ] = None


class SearchTextResult(ToolResult, frozen=True, kw_only=True):
    matches: list[TextMatch]
    truncated: bool


class SearchText(Tool[SearchTextArguments]):
    name = "searchText"
    description = (
        "Find lines that contain a text or match a regular expression, in one file or in all files below a directory, "
        "sorted by path and line. Case matters; (?i) in a regex lifts that. Hidden and ignored files are searched too; "
        "binary files, files over 2 MiB, symbolic links and the inside of .git are not. "
        "Long lines are shortened around the match."
    )
    arguments = SearchTextArguments
    repeatable = True

    async def run(self, arguments: SearchTextArguments, context: ToolContext) -> SearchTextResult:
        if "\n" in arguments.pattern:
            raise ToolError("validation failed", "pattern: lines are searched one by one, so it cannot hold a line end")
        path = resolve_path(arguments.path, context)
        _require_searchable(path, context)
        globs = None if arguments.include is None else _usable_globs(arguments.include)
        most = min(arguments.max_matches or context.settings.max_search_matches, context.settings.max_search_matches)
        while globs is None or globs:
            complaint, collector = await _search(path, _options(arguments, globs, most, context), most, context)
            bad = _BAD_GLOB.match(complaint)
            if bad is not None and globs is not None:
                # A malformed glob matches nothing; the others still count.
                globs = [glob for glob in globs if glob != bad[1]] if bad[1] in globs else []
                continue
            if complaint:
                raise ToolError("validation failed", f"pattern: {complaint}")
            return SearchTextResult(matches=collector.sorted_matches(), truncated=collector.truncated)
        return SearchTextResult(matches=[], truncated=False)


def _require_searchable(path: Path, context: ToolContext) -> None:
    """Raises: ToolError for what is neither a directory nor a text file that may be searched."""
    status = status_of(path)
    if stat.S_ISDIR(status.st_mode):
        return
    require_regular(status, path)
    if status.st_size > context.settings.max_search_file_bytes:
        raise too_large(path, status.st_size, context.settings.max_search_file_bytes)
    _require_text(path, read_to_judge(path, context.settings.max_search_file_bytes))


def _require_text(path: Path, data: bytes) -> None:
    found = foreign(data)
    if found is not None:
        shown = path_text(str(path))
        raise ToolError("binary", f"{shown} {found.what}; search it with runCommand ({found.shown_by}, grep -a)")


def _usable_globs(include: Sequence[str]) -> list[str]:
    """Globs as ripgrep takes them, whose syntax gives `!` and `#` at the beginning a meaning of their own."""
    for index, glob in enumerate(include):
        if "/" in glob:
            raise ToolError(
                "validation failed",
                f'include[{index}]: a glob is compared with base names and cannot hold "/"; name the directory in path',
            )
    return ["\\" + glob if glob.startswith(("!", "#")) else glob for glob in include if glob and "\0" not in glob]


def _options(arguments: SearchTextArguments, globs: Sequence[str] | None, most: int, context: ToolContext) -> list[str]:
    # What is text is decided as for the other tools, by the collector; ripgrep would go by NUL anywhere.
    options = ["--json", "--no-config", "--no-messages", "--no-ignore", "--hidden", "--binary"]
    options += [f"--max-filesize={context.settings.max_search_file_bytes}", f"--max-count={most + 1}"]
    options += ["--crlf"] if arguments.regex else ["--fixed-strings"]
    options += [f"--glob={glob}" for glob in globs or ()]
    return [*options, "--glob=!.git", f"--regexp={arguments.pattern}"]


async def _search(path: Path, options: Sequence[str], most: int, context: ToolContext) -> tuple[str, MatchCollector]:
    """What ripgrep complains of and what it found: everything, or where that is too much, the first of it by path."""
    for order in ([], ["--sort=path"]):
        collector = MatchCollector(most, context.max_result_bytes - 100, context.settings.max_search_file_bytes)
        complaint = await _run_ripgrep([*order, *options], path, collector, context)
        # Ordered, ripgrep uses one processor only. Where there is too much, it is found soon, by both.
        if complaint or not collector.truncated:
            break
    return complaint, collector


async def _run_ripgrep(options: Sequence[str], path: Path, collector: MatchCollector, context: ToolContext) -> str:
    """Feed the collector until it has enough or all was searched. Returns what ripgrep complains of, mostly nothing."""
    try:
        process = spawn(
            [str(ripgrep_path()), *options, "--", str(path)],
            directory=Path("/"),
            environment={},
            mark=context.entropy.token(16).hex(),
        )
    except ValueError as exc:
        raise ToolError("validation failed", "pattern: it cannot hold a NUL character") from exc
    except OSError as exc:
        raise ToolError("command start failed", f"ripgrep: {exc.strerror or exc}") from exc
    complaints = OutputReader(process.stderr, _MAX_COMPLAINT_BYTES)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(complaints.run)
            while chunk := await process.stdout.receive_some(CHUNK_BYTES):
                if not collector.feed(chunk):
                    process.popen.kill()
                    break
            status = await process.wait()
    finally:
        await _reap(process)
    # Status 2 without a message is a file that could not be read: skipped, as promised.
    if status != 2 or collector.began:
        return ""
    return readable(b"".join(complaints.capture.parts())).strip().removeprefix("rg: ")


async def _reap(process: Process) -> None:
    if process.popen.poll() is None:
        process.popen.kill()
        with trio.move_on_after(_REAP_S, shield=True):
            await process.wait()
    process.close()


@functools.cache
def ripgrep_path() -> Path:
    """The `rg` program: the one installed beside this Python, else the first on the PATH. Raises: ToolError."""
    beside = [Path(sys.executable).parent / "rg", Path(sysconfig.get_path("scripts")) / "rg"]
    found = next((path for path in beside if path.is_file()), None) or shutil.which("rg")
    if found is None:
        raise ToolError(
            "command start failed",
            "ripgrep (rg) is not installed, so searchText cannot work; use runCommand with grep -rn. "
            "To mend it: pip install ripgrep==14.1.0",
        )
    return Path(found)
