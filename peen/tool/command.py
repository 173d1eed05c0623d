"""runCommand: a shell command, with everything that it starts under control. What takes long goes on as a job."""

from __future__ import annotations

import errno
import signal
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import trio
from msgspec import Meta

from peen.duration import format_duration_ms
from peen.errors import StaleClaim, StorageError
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.jobs import Command, CommandOrder, jobs_of
from peen.tool.output import Shown, show
from peen.tool.paths import resolve_path, status_of
from peen.tool.tree import ProcessRow
from peen.tool.waiting import wait_ms

SETTLE_S: Final = 2.0
"""A shell that has exited when the call is about to return: so long it may take to learn what it left running."""
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
        str | None,
        Meta(description='How long to wait for it, such as "90s", "5m" or "1h30m". Default 2m unless configured.'),
    ] = None
    background: Annotated[bool, Meta(description="Do not wait: return its jobId at once.")] = False


class RunCommandResult(ToolResult, frozen=True, kw_only=True, omit_defaults=True):
    """`running` says that something of it goes on as job `job_id`: what comes is read behind the two cursors.

    `state` is the shell's. Where the call returned the handle of a command that has ended meanwhile, nothing runs, and
    the note says that its notice comes all the same.
    """

    job_id: str
    pid: int = 0
    state: Literal["running", "exited", "signalled", "failed"]
    running: bool = False
    background: bool = False
    exit_code: int
    signal: str = ""
    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    next_stdout_cursor: int | None = None
    next_stderr_cursor: int | None = None
    duration_ms: int
    directory: str
    note: str = ""


class RunCommand(Tool[RunCommandArguments]):
    name = "runCommand"
    description = (
        "Run a shell command and wait for it. It has no terminal and no input. The call returns when the shell exits. "
        "A command that is still running at the timeout is not ended: it goes on as a job of this session, and so does "
        "one with background, and what a shell left running. Use waitJob, readJobOutput and signalJob with its jobId; "
        "you are told when it ends. Long output keeps its beginning and end; readJobOutput shows all of it."
    )
    arguments = RunCommandArguments
    repeatable = False
    own_deadline = True

    async def run(self, arguments: RunCommandArguments, context: ToolContext) -> RunCommandResult:
        directory = resolve_path(arguments.directory, context)
        if not stat.S_ISDIR(status_of(directory).st_mode):
            raise ToolError("not a directory", f"{path_text(str(directory))} is a file; name a directory to run in")
        timeout_ms = wait_ms(arguments.timeout, context)
        began_s = context.entropy.monotonic_s()
        command = await _start(arguments, directory, context)
        returned = False
        try:
            if not arguments.background:
                with trio.move_on_after(timeout_ms / 1000):
                    await command.settled.wait()
                await _settle(command)
            is_detached = (not command.settled.is_set() or bool(command.left)) and await command.detach()
            if is_detached:
                await _settle(command)  # it may have ended while that was stored
            returned = True
        finally:
            if not returned:  # a Stop: the command and all that it started end with the call
                await command.stop()
        duration_ms = round((context.entropy.monotonic_s() - began_s) * 1000)
        return _result(command, arguments, context, directory, timeout_ms, duration_ms, is_detached=is_detached)


async def _settle(command: Command) -> None:
    """Where the shell has exited, learn what that means before anybody is told."""
    if command.status is not None:
        with trio.move_on_after(SETTLE_S):
            await command.settled.wait()


async def _start(arguments: RunCommandArguments, directory: Path, context: ToolContext) -> Command:
    if "\0" in arguments.command:
        raise ToolError("validation failed", "command: it cannot hold a NUL character")
    order = CommandOrder(
        command=arguments.command,
        purpose=arguments.purpose,
        directory=directory,
        environment=_environment(context.environment, directory),
        capture_bytes=context.settings.max_command_output_bytes,
    )
    try:
        return await jobs_of(context).start(order)
    except StaleClaim as refused:
        raise ToolError("failed", "nothing was started: the turn was stopped or taken away before") from refused
    except StorageError as refused:
        raise ToolError("failed", f"nothing was started: {refused}") from refused
    except OSError as exc:
        reason = f"{exc.strerror or exc} ({path_text(str(exc.filename or '/bin/sh'))})"
        if exc.errno == errno.E2BIG:
            reason = "the command is too long (128 KiB at most); write a script with writeFile and run that"
        raise ToolError("command start failed", reason) from exc


def _environment(given: Mapping[str, str], directory: Path) -> dict[str, str]:
    return _UNATTENDED | dict(given) | {"PWD": str(directory)}


def _result(
    command: Command,
    arguments: RunCommandArguments,
    context: ToolContext,
    directory: Path,
    timeout_ms: int,
    duration_ms: int,
    *,
    is_detached: bool,
) -> RunCommandResult:
    status = command.status
    goes_on = is_detached and (status is None or not command.settled.is_set() or bool(command.left))
    cursor = command.cut() if goes_on else None
    result = RunCommandResult(
        job_id=command.job_id,
        pid=command.pid if goes_on else 0,
        state=_state(status, goes_on=goes_on),
        running=goes_on,
        background=arguments.background,
        exit_code=status if status is not None and status >= 0 else -1,
        signal=_signal_name(-status) if status is not None and status < 0 else "",
        stdout="",
        stderr="",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        next_stdout_cursor=cursor,
        next_stderr_cursor=cursor,
        duration_ms=duration_ms,
        directory=path_text(str(directory)),
        note=_note(command, arguments, timeout_ms, is_detached=is_detached),
    )
    room = context.max_result_bytes - len(msgspec.json.encode(result)) - 40  # the two counts may grow
    out, err = _share(show(command.stdout), show(command.stderr), room)
    return msgspec.structs.replace(
        result,
        stdout=out.text,
        stderr=err.text,
        stdout_omitted_bytes=out.omitted,
        stderr_omitted_bytes=err.omitted,
    )


def _state(status: int | None, *, goes_on: bool) -> Literal["running", "exited", "signalled", "failed"]:
    """Of the shell."""
    if status is None:
        return "running" if goes_on else "failed"
    return "exited" if status >= 0 else "signalled"


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


def _note(command: Command, arguments: RunCommandArguments, timeout_ms: int, *, is_detached: bool) -> str:
    notes = []
    if is_detached and command.status is None:
        if arguments.background:
            notes.append("It runs as a job of this session; you are told when it ends.")
        else:
            notes.append(
                f"Still running after {format_duration_ms(timeout_ms)}. It was not ended: it goes on as a job, and the "
                "output is what came until now. Keep waiting with waitJob and a longer timeout, or end it with "
                "signalJob; you are told when it ends."
            )
    if command.keyless:
        names = ", ".join(f"{pid} ({name})" for pid, name in list(command.keyless.items())[:_NAMED_PROCESSES])
        notes.append(
            f"Ended because it waited for keys, and there is no terminal: {names}. Use a command that needs none."
        )
    if is_detached and command.status is not None:
        notes.append(_afterwards(command))
    if command.doubtful:
        notes.append(
            f"It, or another command that ran at the time, may have left running: {_names(command.doubtful)}. Nothing "
            "tells which, so that no job stands for them; end them with kill when they are no longer needed."
        )
    if command.unended:
        notes.append(f"It was to be ended, but not all of it could be; this still runs: {command.unended}.")
    if command.trouble:
        notes.append(f"Not all of it can be read again: {command.trouble}.")
    return " ".join(notes)


def _afterwards(command: Command) -> str:
    """How a command goes on whose shell has exited, but whose end is told by a notice."""
    if command.left:
        return (
            f"The shell has exited, but it left running: {_names(command.left)}. They go on as this job, and what they "
            "print is kept; end them with signalJob when they are no longer needed."
        )
    if command.settled.is_set():
        return (
            "It has ended, and nothing of it runs any more. The notice that it has ended follows; it tells nothing new."
        )
    return "The shell has exited, and the last of its output is still being read; you are told when that is done."


def _names(rows: Sequence[ProcessRow]) -> str:
    more = f" and {len(rows) - _NAMED_PROCESSES} more" if len(rows) > _NAMED_PROCESSES else ""
    return ", ".join(f"{row.pid} ({row.name})" for row in rows[:_NAMED_PROCESSES]) + more
