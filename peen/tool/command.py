"""runCommand: a shell command in the foreground, with everything that it starts under control."""

from __future__ import annotations

import errno
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import trio
from msgspec import Meta

from peen.duration import format_duration_ms, parse_duration_ms
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.ending import end_family
from peen.tool.family import FAMILIES, Family
from peen.tool.keyless import KeylessPrograms
from peen.tool.output import Shown, show
from peen.tool.paths import resolve_path, status_of
from peen.tool.process import OutputReader, Process, keep_reading, spawn
from peen.tool.tree import ProcessRow

DRAIN_S: Final = 0.1  # how long to wait for the end of output that a descendant still holds open
_NAMED_PROCESSES: Final = 10
# No pager, editor or prompt may wait for somebody who is not there.
_UNATTENDED: Final = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",  # git asks its own configuration before the two above
}


class RunCommandArguments(ToolArguments, frozen=True, kw_only=True):
    command: Annotated[str, Meta(min_length=1, description="Command line for /bin/sh.")]
    purpose: Annotated[str, Meta(description="In a few words, what it is for; shown to people.")]
    directory: Annotated[str | None, Meta(description="Directory to run it in. Default: the current directory.")] = None
    timeout: Annotated[
        str | None, Meta(description='Time limit, such as "90s", "5m" or "1h30m". Default 2m unless configured.')
    ] = None


class RunCommandResult(ToolResult, frozen=True, kw_only=True, omit_defaults=True):
    state: Literal["exited", "signalled", "timedOut"]
    exit_code: int
    signal: str = ""
    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    duration_ms: int
    directory: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Ending:
    """`status` as the system reports it, negative for a signal, None if the shell could not even be killed."""

    status: int | None
    timed_out: bool
    left: list[ProcessRow]
    keyless: dict[int, str]


class RunCommand(Tool[RunCommandArguments]):
    name = "runCommand"
    description = (
        "Run a shell command and wait for it. It has no terminal and no input. The call returns when the shell exits; "
        "a process that it left running is named in the result. Long output keeps its beginning and end: write it to a "
        "file to see all. At the time limit the command and everything it started are ended, so give long work a "
        "longer timeout."
    )
    arguments = RunCommandArguments
    repeatable = False
    own_deadline = True

    async def run(self, arguments: RunCommandArguments, context: ToolContext) -> RunCommandResult:
        directory = resolve_path(arguments.directory, context)
        if not stat.S_ISDIR(status_of(directory).st_mode):
            raise ToolError("not a directory", f"{path_text(str(directory))} is a file; name a directory to run in")
        timeout_ms = _timeout_ms(arguments.timeout, context)
        began_s = context.entropy.monotonic_s()
        family = FAMILIES.start(lambda: _start(arguments.command, directory, context))
        limit = context.settings.max_command_output_bytes
        stdout, stderr = OutputReader(family.process.stdout, limit), OutputReader(family.process.stderr, limit)
        ending = await _follow(family, stdout, stderr, timeout_ms)
        duration_ms = round((context.entropy.monotonic_s() - began_s) * 1000)
        return _result(ending, stdout, stderr, context, directory, timeout_ms, duration_ms)


async def _follow(family: Family, stdout: OutputReader, stderr: OutputReader, timeout_ms: int) -> _Ending:
    """Wait for the shell. However this ends, either the shell has exited by itself or its tree is gone."""
    process = family.process
    finished = False
    keyless = KeylessPrograms(family)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stdout.run)
            nursery.start_soon(stderr.run)
            nursery.start_soon(keyless.run)
            status: int | None = None
            with trio.move_on_after(timeout_ms / 1000) as timer:
                status = await process.wait()
            if timer.cancelled_caught:
                await end_family(family)
                status = process.poll()
            with trio.move_on_after(DRAIN_S):
                await stdout.ended.wait()
                await stderr.ended.wait()
            nursery.cancel_scope.cancel()
        left = await _look_back(family, stdout, stderr)
        finished = True
    finally:
        if not finished:
            await end_family(family)
        process.close()
        family.close()
    return _Ending(status, timer.cancelled_caught, left, keyless.ended)


async def _look_back(family: Family, stdout: OutputReader, stderr: OutputReader) -> list[ProcessRow]:
    """What still runs of the command, and provision for what it will yet print."""
    held = [reader for reader in (stdout, stderr) if not reader.ended.is_set()]
    left = await family.left_running(output_held=bool(held))
    readers = [keep_reading(reader.stream) for reader in held]
    family.admit(row for row in readers if row is not None)
    return sorted(left, key=lambda row: row.pid)


def _timeout_ms(text: str | None, context: ToolContext) -> int:
    if not text:
        return context.settings.default_command_timeout_ms
    try:
        timeout_ms = parse_duration_ms(text)
    except ValueError as exc:
        raise ToolError("validation failed", f"timeout: {exc}") from exc
    if timeout_ms <= 0:
        raise ToolError("validation failed", f'timeout: {text} is not a positive time; leave it out or give e.g. "5m"')
    return timeout_ms


def _start(command: str, directory: Path, context: ToolContext) -> Process:
    mark = context.entropy.token(16).hex()
    try:
        return spawn(
            ["/bin/sh", "-c", command],
            directory=directory,
            environment=_environment(context.environment, directory),
            mark=mark,
        )
    except OSError as exc:
        reason = f"{exc.strerror or exc} ({path_text(str(exc.filename or '/bin/sh'))})"
        if exc.errno == errno.E2BIG:
            reason = "the command is too long (128 KiB at most); write a script with writeFile and run that"
        raise ToolError("command start failed", reason) from exc
    except ValueError as exc:
        raise ToolError("validation failed", "command: it cannot hold a NUL character") from exc


def _environment(given: Mapping[str, str], directory: Path) -> dict[str, str]:
    return _UNATTENDED | dict(given) | {"PWD": str(directory)}


def _result(
    ending: _Ending,
    stdout: OutputReader,
    stderr: OutputReader,
    context: ToolContext,
    directory: Path,
    timeout_ms: int,
    duration_ms: int,
) -> RunCommandResult:
    status = ending.status
    exited = status is not None and status >= 0 and not ending.timed_out
    result = RunCommandResult(
        state="timedOut" if ending.timed_out else "exited" if exited else "signalled",
        exit_code=status if exited and status is not None else -1,
        signal=_signal_name(-status) if status is not None and status < 0 and not ending.timed_out else "",
        stdout="",
        stderr="",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        duration_ms=duration_ms,
        directory=path_text(str(directory)),
        note=_note(ending, timeout_ms),
    )
    room = context.max_result_bytes - len(msgspec.json.encode(result)) - 40  # the two counts may grow
    out, err = _share(show(stdout.capture), show(stderr.capture), room)
    return msgspec.structs.replace(
        result,
        stdout=out.text,
        stderr=err.text,
        stdout_omitted_bytes=out.omitted,
        stderr_omitted_bytes=err.omitted,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


def _share(stdout: Shown, stderr: Shown, room: int) -> tuple[Shown, Shown]:
    """Both within `room`; what the shorter one does not need goes to the longer one."""
    if stdout.size <= stderr.size:
        stdout = stdout.fitted(room // 2)
        return stdout, stderr.fitted(room - stdout.size)
    stderr = stderr.fitted(room // 2)
    return stdout.fitted(room - stderr.size), stderr


def _note(ending: _Ending, timeout_ms: int) -> str:
    notes = []
    if ending.timed_out:
        notes.append(
            f"The time limit of {format_duration_ms(timeout_ms)} was reached: the command and everything it started "
            "were ended, unfinished. The output is what came until then. Give a longer timeout if it needs more."
        )
    if ending.keyless:
        names = ", ".join(f"{pid} ({name})" for pid, name in list(ending.keyless.items())[:_NAMED_PROCESSES])
        notes.append(
            f"Ended because it waited for keys, and there is no terminal: {names}. Use a command that needs none."
        )
    if ending.left:
        names = ", ".join(f"{row.pid} ({row.name})" for row in ending.left[:_NAMED_PROCESSES])
        more = f" and {len(ending.left) - _NAMED_PROCESSES} more" if len(ending.left) > _NAMED_PROCESSES else ""
        notes.append(
            f"The shell has exited, but it left running: {names}{more}. "
            "What they print from now on is not kept; end them with kill when they are no longer needed."
        )
    return " ".join(notes)
