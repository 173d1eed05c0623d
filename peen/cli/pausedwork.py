"""Paused work as people see it: what is kept, what nobody knows about it, and the commands that go on from there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from peen.cli.client import CallRefused, Client
from peen.cli.ends import REFUSED, CommandEnds, printable
from peen.wire.execution import Activity, ExecutionPage, ExecutionView, WaitingMessage

UNKNOWN: Final = "it was cut off: it may have happened in full, in part or not at all"
_PAGE: Final = 200
_SHOWN_CHARACTERS: Final = 200  # of a call's arguments, and of a message that waits
_LOOK_AGAIN: Final = frozenset({"CONFLICT", "NOT_FOUND"})


class _Call(msgspec.Struct):
    """The input of a step that carries out a tool call."""

    name: str
    arguments: msgspec.Raw


class Kept(NamedTuple):
    """What of a session's work waits for somebody. `views` are as the API gives them, oldest first."""

    views: list[bytes]
    waiting: list[WaitingMessage]


def kept_work(client: Client, session_id: str) -> Kept:
    """Every paused execution of a session, and every message that waits. Raises: CallRefused."""
    found: list[str] = []
    waiting: list[WaitingMessage] = []
    offset, has_more = 0, True
    while has_more:
        query = {"limit": _PAGE, "offset": offset}
        answer = client.get("/api/v1/session/executions", session_id=session_id, query=query)
        page = msgspec.json.decode(answer, type=ExecutionPage)
        waiting = page.waiting
        found += [each.id for each in page.executions if each.state == "paused"]
        offset += len(page.executions)
        has_more = page.has_more and bool(page.executions)
    views = [client.get(path_of(each), session_id=session_id) for each in reversed(found)]
    # One may have gone on meanwhile.
    return Kept([view for view in views if decode_view(view).execution.state == "paused"], waiting)


def path_of(execution_id: str) -> str:
    return f"/api/v1/session/executions/{execution_id}"


decode_view: Final = msgspec.json.Decoder(ExecutionView).decode


def undecided(view: ExecutionView) -> list[Activity]:
    """The steps of which nobody has said whether they happened."""
    return [step for step in view.activities if step.state == "uncertain"]


def paused_lines(session_id: str, views: Sequence[ExecutionView]) -> list[str]:
    """What `peen session show` tells of paused work. Empty without any."""
    if not views:
        return []
    lines = ["", f"paused work ({len(views)})"]
    for view in views:
        lines.append(f"  {headline(view)}")
        lines.append(f"    turn       {view.execution.turn_id}")
        if (asked := view.execution.admission) is not None:
            lines.append(f"    asked for  by {printable(asked.caller)}: it goes on when the turn that runs has ended")
        for step in undecided(view):
            lines += [f"    undecided  {step_text(step)}", f"               {UNKNOWN}"]
        lines += [f"    waiting    {_waiting_text(view, message)}" for message in view.inbox]
        lines += [f"    {way}" for way in ways(session_id, view, is_named=len(views) > 1)]
    return lines


def waiting_lines(session_id: str, views: Sequence[ExecutionView], waiting: Sequence[WaitingMessage]) -> list[str]:
    """What `peen session show` tells of messages that wait and belong to no paused work. Empty without any."""
    told = {message.request_id for view in views for message in view.inbox}
    left = [message for message in waiting if message.request_id not in told]
    if not left:
        return []
    lines = ["", f"messages that wait ({len(left)})"]
    for message in left:
        lines.append(f"  {message.request_id}  {_cut(message.message.encode())}")
        lines.append(f"    {_way_of(session_id, message)}")
    return lines


def headline(view: ExecutionView) -> str:
    """An execution on one line."""
    found = view.execution
    reason = f" ({printable(found.pause_reason)})" if found.pause_reason is not None else ""
    return f"{found.id}  {printable(found.state)}{reason}  controlRevision {found.control_revision}"


def step_text(step: Activity) -> str:
    """A step on one line: its name, then its tool call, the arguments cut."""
    try:
        call = msgspec.json.decode(step.input, type=_Call)
    except msgspec.MsgspecError:
        return f"{printable(step.step)}  {_cut(bytes(step.input))}"
    return f"{printable(step.step)}  {printable(call.name)} {_cut(bytes(call.arguments))}"


def ways(session_id: str, view: ExecutionView, *, is_named: bool) -> list[str]:
    """What can be done about paused work, each with its command. `is_named`: the commands say which execution."""
    which = f"{session_id} --execution {view.execution.id}" if is_named else session_id
    found = decisions(session_id, view, is_named=is_named) or [f"to go on: peen session continue {which}"]
    found += [_way_of(session_id, each) for each in view.inbox]
    return [*found, f"to give it up: peen session abandon {which}"]


def _way_of(session_id: str, message: WaitingMessage) -> str:
    return f"to give this message a turn of its own: peen session continue {session_id} --request {message.request_id}"


def decisions(session_id: str, view: ExecutionView, *, is_named: bool) -> list[str]:
    """The decisions that are to be taken before the work can go on, each with its command; empty if there are none.

    Several steps may be decided about differently, which one command line says as well.
    """
    steps = [shlex.quote(each.step) for each in undecided(view)]
    if not steps:
        return []
    which = f"{session_id} --execution {view.execution.id}" if is_named else session_id
    accept, retry = (" ".join(f"{option} {step}" for step in steps) for option in ("--accept", "--retry"))
    it = "it" if len(steps) == 1 else "each of them"
    return [
        f"if {it} happened: peen session continue {which} {accept}",
        f"if {it} may be done again: peen session continue {which} {retry}",
    ]


@contextmanager
def refusals(session_id: str) -> Iterator[None]:
    """What the controller refuses ends the command (exit 2), with what to do about it."""
    try:
        yield
    except CallRefused as refused:
        raise CommandEnds(f"{refused}{remedy(refused, session_id)}", REFUSED) from refused


def remedy(refused: CallRefused, session_id: str) -> str:
    """What to do about a refusal, to be put behind it."""
    return f"; look again with: peen session show {session_id}" if refused.error_code in _LOOK_AGAIN else ""


def _waiting_text(view: ExecutionView, message: WaitingMessage) -> str:
    images = "".join(f" [image {image.media_type}, {image.size_bytes} bytes]" for image in message.images or ())
    return f"{message.request_id}  stopRevision {view.stop_revision}  {_cut(message.message.encode())}{images}"


def _cut(content: bytes) -> str:
    text = printable(content.decode("utf-8", "replace"))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
