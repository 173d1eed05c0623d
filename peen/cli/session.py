"""`peen session`: look at sessions, and open one. The commands that act on one have modules of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
import msgspec
from msgspec import Raw

from peen.cli.client import CallRefused
from peen.cli.ends import REFUSED, CommandEnds, printable
from peen.cli.job import job_line
from peen.cli.lazy import LazyGroup
from peen.cli.order import absolute
from peen.cli.pausedwork import decode_view, kept_work, paused_lines, refusals, waiting_lines
from peen.cli.reach import check_session_id, running_controller
from peen.cli.remedy import open_refused
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.entropy import SystemEntropy
from peen.wire.execution import ExecutionView, WaitingMessage
from peen.wire.job import Job
from peen.wire.rest import (
    Message,
    MessagePage,
    OpenedSession,
    OpenSession,
    Session,
    SessionLimits,
    SessionPage,
    Turn,
    TurnPage,
    UsedSoFar,
    encode,
)

SHOWN_TURNS: Final = 10
SHOWN_MESSAGES: Final = 20
SHOWN_JOBS: Final = 5
"""Of those that have ended; every one that runs is shown."""
_LOOKED_AT_JOBS: Final = 50
_SHOWN_LINES: Final = 12  # of one message
_SHOWN_CHARACTERS: Final = 200  # of a call's arguments
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")


class _RawTurns(msgspec.Struct):
    turns: list[Raw]


class _RawJobs(msgspec.Struct):
    jobs: list[Raw]


class _RawMessages(msgspec.Struct):
    items: list[Raw]


_COMMANDS: Final = {
    "attach": "peen.cli.attach:attach",
    "continue": "peen.cli.sessionwork:continue_",
    "abandon": "peen.cli.sessionwork:abandon",
    "stop": "peen.cli.sessionend:stop",
    "delete": "peen.cli.sessionend:delete",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def session() -> None:
    """Sessions: one for each workspace. These commands need a running controller."""


@session.command("open")
@click.argument("directory")
def open_(directory: str) -> None:
    """Open the session of DIRECTORY, made if there is none."""
    settings = load()
    workspace = absolute(directory)
    client = running_controller(settings, SystemEntropy())
    try:
        answer = client.post("/api/v1/sessions/open", encode(OpenSession(workspace=workspace)))
    except CallRefused as refused:
        raise open_refused(refused, workspace, settings, borrowed=True) from refused
    opened = msgspec.json.decode(answer, type=OpenedSession)
    found = opened.session
    echo(f"{found.id}\t{printable(found.workspace)}\tcreated={str(opened.created).lower()}")


@session.command("list")
@_as_json
def list_(as_json: bool) -> None:
    """List sessions, the last used first."""
    answer = _get("/api/v1/sessions")
    if as_json:
        echo(answer)
        return
    for found in msgspec.json.decode(answer, type=SessionPage).items:
        echo(f"{found.id}\t{printable(found.workspace)}\t{found.model}")


@session.command()
@click.argument("session_id", metavar="ID")
@_as_json
def show(session_id: str, as_json: bool) -> None:
    """Show a session: what it is, its last turns, its last messages, its paused work and how to go on with that."""
    check_session_id(session_id)
    found = _get("/api/v1/session", session_id=session_id)
    turns = _get("/api/v1/session/turns", session_id=session_id, limit=SHOWN_TURNS)
    messages = _get("/api/v1/messages", session_id=session_id, limit=SHOWN_MESSAGES, order="desc")
    jobs = _jobs(session_id)
    with refusals(session_id):
        kept = kept_work(running_controller(load(), SystemEntropy()), session_id)
    if as_json:
        document = {
            "session": Raw(found),
            "turns": msgspec.json.decode(turns, type=_RawTurns).turns[::-1],
            "messages": msgspec.json.decode(messages, type=_RawMessages).items[::-1],
            "jobs": jobs,
            "paused": [Raw(view) for view in kept.views],
            "waiting": kept.waiting,
        }
        echo(msgspec.json.encode(document))
        return
    echo(
        readable(
            msgspec.json.decode(found, type=Session),
            msgspec.json.decode(turns, type=TurnPage).turns,
            msgspec.json.decode(messages, type=MessagePage).items,
            [decode_view(view) for view in kept.views],
            kept.waiting,
            [msgspec.json.decode(each, type=Job) for each in jobs],
        )
    )


def readable(
    found: Session,
    turns: Sequence[Turn],
    messages: Sequence[Message],
    kept: Sequence[ExecutionView] = (),
    waiting: Sequence[WaitingMessage] = (),
    jobs: Sequence[Job] = (),
) -> str:
    """The text of `show`. `turns` and `messages` are newest first, as the API gives them; here the newest is last.

    `kept` is the paused work, `waiting` what waits for a decision, `jobs` background commands, all oldest first.
    """
    status = found.status + (f" ({found.pause_reason})" if found.pause_reason is not None else "")
    lines = [
        f"session    {found.id}",
        f"workspace  {printable(found.workspace)}",
        f"model      {found.model}",
        f"space      {found.agent_space}",
        f"status     {status}",
        f"created    {found.created_at}",
        f"last used  {found.last_message_at or 'never'}",
        f"messages   {found.message_count} in {found.completed_turn_count} completed turns",
        f"used       {_usage(found.usage)}",
    ]
    if found.budget is not None:
        lines.append(f"limit      {_limits(found.budget)}")
    if turns:
        lines += ["", f"last turns ({len(turns)})"]
        lines += [_turn_line(turn) for turn in reversed(turns)]
    if messages:
        lines += ["", f"last messages ({len(messages)})"]
        for message in reversed(messages):
            lines += _message_lines(message)
    if jobs:
        lines += ["", f"jobs ({len(jobs)})", *(f"  {job_line(each)}" for each in jobs)]
    return "\n".join([*lines, *paused_lines(found.id, kept), *waiting_lines(found.id, kept, waiting)])


def _jobs(session_id: str) -> list[Raw]:
    """Background commands: all that run, and the last that ended; oldest first."""
    running = _get("/api/v1/session/jobs", session_id=session_id, limit=200, state="running")
    recent = _get("/api/v1/session/jobs", session_id=session_id, limit=_LOOKED_AT_JOBS)
    shown = msgspec.json.decode(running, type=_RawJobs).jobs
    ended = [
        each
        for each in msgspec.json.decode(recent, type=_RawJobs).jobs
        if (job := msgspec.json.decode(each, type=Job)).detached and job.state != "running"
    ]
    return ended[:SHOWN_JOBS][::-1] + shown[::-1]


def _turn_line(turn: Turn) -> str:
    failure = f"  {turn.failure_classification}" if turn.failure_classification else ""
    return f"  {turn.started_at}  {turn.state:<11}  {turn.id}  {_usage(turn.usage)}{failure}"


def _usage(used: UsedSoFar) -> str:
    """Tokens and money on one line; what is not known is said so."""
    counts = [count for count in (used.prompt, used.completion) if count is not None]
    tokens = f"{sum(counts):,} tokens" if counts else "no tokens reported"
    at_least = "" if used.cost_known else "at least "
    if not used.cost_known and used.billed_cost_amount == "0":
        return f"{tokens}, cost unknown"
    return f"{tokens}, {at_least}${used.billed_cost_amount}"


def _limits(limits: SessionLimits) -> str:
    tokens = [] if limits.tokens is None else [f"{limits.tokens:,} tokens"]
    return ", ".join([*tokens, *([] if limits.cost_usd is None else [f"${limits.cost_usd}"])])


def _message_lines(message: Message) -> list[str]:
    marks = (", error" if message.is_error else "") + (", incomplete" if message.incomplete else "")
    lines = [f"  {message.created_at}  {message.role}{marks}"]
    text = message.content.splitlines()
    lines += [f"    {printable(line)}" for line in text[:_SHOWN_LINES]]
    if len(text) > _SHOWN_LINES:
        lines.append(f"    … {len(text) - _SHOWN_LINES} more lines")
    for image in message.images or ():
        refused = "" if image.refused is None else f", refused: {printable(image.refused)}"
        lines.append(f"    [image {image.media_type}, {image.size_bytes} bytes, {image.sha256[:12]}{refused}]")
    for call in message.tool_calls or ():
        arguments = bytes(call.arguments).decode("utf-8", "replace")
        lines.append(f"    > {printable(call.name)} {printable(arguments)[:_SHOWN_CHARACTERS]}")
    return lines


def _get(path: str, *, session_id: str | None = None, **query: int | str) -> bytes:
    client = running_controller(load(), SystemEntropy())
    try:
        return client.get(path, session_id=session_id, query=query)
    except CallRefused as refused:
        raise CommandEnds(str(refused), REFUSED) from refused
