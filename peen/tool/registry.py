"""All tools by name: from the bytes that a model sent to a result that it can read, whatever happens in between."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import structlog
import trio

from peen.duration import format_duration_ms
from peen.errors import LinkLost, StaleClaim
from peen.tool.apply_patch import ApplyPatch
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolImage, ToolOutcome, ToolResult, WithImage
from peen.tool.bounds import fit_head, json_bytes
from peen.tool.command import RunCommand
from peen.tool.continue_execution import ContinueExecution
from peen.tool.edit_file import EditFile
from peen.tool.list_files import ListFiles
from peen.tool.list_jobs import ListJobs
from peen.tool.make_directory import MakeDirectory
from peen.tool.move_path import MovePath
from peen.tool.read_execution import ReadExecution
from peen.tool.read_file import ReadFile
from peen.tool.read_job_output import ReadJobOutput
from peen.tool.remove_path import RemovePath
from peen.tool.resolve_execution import ResolveExecutionActivity
from peen.tool.schema import Schema, explain_bad_arguments, plain_schema, repeated_name
from peen.tool.search_text import SearchText
from peen.tool.signal_job import SignalJob
from peen.tool.wait_job import WaitJob
from peen.tool.write_file import WriteFile
from peen.wire.model import ToolDefinition

log = structlog.get_logger(__name__)

_NO_ARGUMENTS: Final = (b"", b'""', b"null")
_UNKNOWN_OUTCOME: Final = (
    "{name} failed inside Peen, so the outcome is unknown: it may have happened in full, in part or not at all. "
    "It will not be repeated. Look at the present state before you go on."
)


class _Entry:
    """A tool with what is derived from its arguments once."""

    def __init__(self, tool: Tool[Any]) -> None:
        self.tool = tool
        self.schema: Schema = plain_schema(tool.arguments)
        self.decode = msgspec.json.Decoder(tool.arguments).decode
        self.definition = ToolDefinition(
            name=tool.name, description=tool.description, parameters=msgspec.Raw(msgspec.json.encode(self.schema))
        )


class Tools:
    """The tools that an agent may call. One object serves all agents of a worker."""

    def __init__(self, tools: Iterable[Tool[Any]]) -> None:
        self._entries = {tool.name: _Entry(tool) for tool in tools}
        self.definitions: tuple[ToolDefinition, ...] = tuple(entry.definition for entry in self._entries.values())

    def is_repeatable(self, name: str) -> bool:
        """Whether an interrupted call may simply be made again. An unknown tool does nothing, so it may."""
        entry = self._entries.get(name)
        return entry is None or entry.tool.repeatable

    async def call(self, name: str, arguments: bytes | msgspec.Raw, context: ToolContext) -> ToolOutcome:
        """Carry out one call. A failure is a result that says so, unless there is nobody left to tell.

        Raises: LinkLost, StaleClaim, and what cancels.
        """
        context = dataclasses.replace(context, ledger=context.ledger.for_call())
        is_error = False
        image: ToolImage | None = None
        try:
            outcome = await self._run(name, bytes(arguments), context)
            result, seen = (outcome.result, outcome.image) if isinstance(outcome, WithImage) else (outcome, None)
            content, is_error, image = _encoded(result, context), result.is_error, seen
        except ToolError as exc:
            content, is_error = _shortened(str(exc), context), True
        except (LinkLost, StaleClaim):
            raise  # no result would be stored any more: the step counts as cut off, and the turn is over
        except Exception:
            # Not the model's mistake and not a reason to end the turn: it learns that the outcome is unknown.
            log.exception("a tool failed by a fault of Peen", tool=name)
            content, is_error = _shortened(_UNKNOWN_OUTCOME.format(name=name), context), True
        return ToolOutcome(content=content, is_error=is_error, ledger=context.ledger.delta(), image=image)

    async def _run(self, name: str, arguments: bytes, context: ToolContext) -> ToolResult | WithImage:
        entry = self._entries.get(name)
        if entry is None:
            raise ToolError("not found", self._unknown(name))
        decoded = _decoded(entry, arguments)
        if entry.tool.own_deadline:
            return await entry.tool.run(decoded, context)
        limit_ms = context.settings.tool_timeout_ms
        with trio.move_on_after(limit_ms / 1000):
            return await entry.tool.run(decoded, context)
        raise ToolError(
            "limit exceeded",
            f"{name} took longer than {format_duration_ms(limit_ms)} (PEEN_TOOL_TIMEOUT) and was given up",
        )

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"there is no tool {name!r}{hint} The tools are: {', '.join(self._entries)}"


def standard_tools() -> Tools:
    """The tools that every agent has."""
    changing: list[Tool[Any]] = [WriteFile(), EditFile(), ApplyPatch(), MovePath(), MakeDirectory(), RemovePath()]
    of_paused_work: list[Tool[Any]] = [ReadExecution(), ResolveExecutionActivity(), ContinueExecution()]
    of_jobs: list[Tool[Any]] = [RunCommand(), ListJobs(), ReadJobOutput(), WaitJob(), SignalJob()]
    return Tools([ListFiles(), SearchText(), ReadFile(), *changing, *of_jobs, *of_paused_work])


def _decoded(entry: _Entry, arguments: bytes) -> ToolArguments:
    if arguments.strip() in _NO_ARGUMENTS:
        arguments = b"{}"
    try:
        decoded: ToolArguments = entry.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ToolError("validation failed", explain_bad_arguments(entry.tool.name, entry.schema, exc)) from exc
    repeated = repeated_name(arguments)
    if repeated is not None:  # the decoder would have taken the last one
        raise ToolError("validation failed", f"{entry.tool.name}: {repeated}: given more than once in one object")
    return decoded


def _shortened(text: str, context: ToolContext) -> str:
    return fit_head(text or "tool failed", context.max_result_bytes)


def _encoded(result: ToolResult, context: ToolContext) -> str:
    content = msgspec.json.encode(result).decode()
    limit = context.max_result_bytes
    if len(content.encode()) <= limit:
        return content
    # Every tool bounds its own result, so this is only for limits smaller than a result can be.
    log.warning("a tool result had to be cut", tool=type(result).__name__, bytes=len(content.encode()), limit=limit)
    beginning = fit_head(content, limit - 60)
    omitted = json_bytes(content) - json_bytes(beginning)
    return msgspec.json.encode({"cut": True, "omittedBytes": omitted, "beginning": beginning}).decode()
