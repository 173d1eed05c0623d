"""`peen session continue` and `peen session abandon`: what becomes of work that was stopped or interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import click
import msgspec

from peen.cli.client import CallRefused, Client
from peen.cli.ends import REFUSED, CommandEnds, printable, say
from peen.cli.pausedwork import (
    UNKNOWN,
    decisions,
    decode_view,
    headline,
    kept_work,
    path_of,
    refusals,
    remedy,
    step_text,
    undecided,
)
from peen.cli.reach import check_session_id, running_controller
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.entropy import SystemEntropy
from peen.ids import parse_uuid4
from peen.wire.execution import (
    AbandonExecution,
    ContinueInput,
    ExecutionPage,
    ExecutionView,
    ResolveActivity,
    ResumeExecution,
)
from peen.wire.rest import encode

_execution = click.option("--execution", metavar="EXECUTION", help="Which one, where several are paused.")


@dataclass(frozen=True, slots=True)
class _Decision:
    step: str
    kind: Literal["accept", "retry"]
    outcome: str | None = None


@click.command("continue")
@click.argument("session_id", metavar="ID")
@_execution
@click.option(
    "--accept", multiple=True, metavar="STEP[=OUTCOME]", help="It happened; the model reads OUTCOME as its result."
)
@click.option("--retry", multiple=True, metavar="STEP", help="It may be done again.")
@click.option("--request", metavar="REQUEST", help="Let this message, which waits, open a turn of its own.")
def continue_(
    session_id: str, execution: str | None, accept: tuple[str, ...], retry: tuple[str, ...], request: str | None
) -> None:
    """Go on with paused work, as peen session show tells of it.

    A step that was cut off and may have had an effect needs a decision first: --accept or --retry. Without one nothing
    goes on.
    """
    check_session_id(session_id)
    if request is not None:
        if execution is not None or accept or retry:
            raise CommandEnds("--request goes without --execution, --accept and --retry", REFUSED)
        _continue_message(session_id, request)
        return
    given = _decisions(accept, retry)
    client = running_controller(load(), SystemEntropy())
    with refusals(session_id):
        view = _chosen(client, session_id, execution, verb="continue")
    _check_decided(session_id, view, given, is_named=execution is not None)
    after = _go_on(client, session_id, view, given)
    revision = (after.execution.state, after.execution.control_revision)
    is_resumed = revision != ("paused", view.execution.control_revision)
    echo(f"{session_id}\t{view.execution.id}\tresumed={str(is_resumed).lower()}")
    if not is_resumed:
        say("another turn runs; the paused work goes on when it has ended")


@click.command()
@click.argument("session_id", metavar="ID")
@_execution
def abandon(session_id: str, execution: str | None) -> None:
    """Give paused work up, for good. What it has done stays; messages that wait for it are not delivered."""
    check_session_id(session_id)
    client = running_controller(load(), SystemEntropy())
    with refusals(session_id):
        found = _chosen(client, session_id, execution, verb="abandon").execution
        body = encode(AbandonExecution(control_revision=found.control_revision))
        client.post(f"{path_of(found.id)}/abandon", body, session_id=session_id)
    echo(f"{session_id}\t{found.id}\tabandoned=true")


def _chosen(client: Client, session_id: str, execution_id: str | None, *, verb: str) -> ExecutionView:
    """The paused execution that is meant. Raises: CommandEnds (exit 2) if there is not exactly one; CallRefused."""
    if execution_id is not None:
        if parse_uuid4(execution_id) is None:
            problem = f"{printable(execution_id)!r} is no execution id; peen session show {session_id} lists them"
            raise CommandEnds(problem, REFUSED)
        view = decode_view(client.get(path_of(execution_id), session_id=session_id))
        if view.execution.state != "paused":
            raise CommandEnds(f"this execution is {view.execution.state}, not paused", REFUSED)
        return view
    views = [decode_view(each) for each in kept_work(client, session_id).views]
    if not views:
        raise CommandEnds("nothing is paused in this session", REFUSED)
    if len(views) > 1:
        lines = ["several executions are paused; say which one:"]
        for view in views:
            lines += [headline(view), f"  peen session {verb} {session_id} --execution {view.execution.id}"]
        raise CommandEnds("\n".join(lines), REFUSED)
    return views[0]


def _decisions(accept: Sequence[str], retry: Sequence[str]) -> list[_Decision]:
    """What the options say. Raises: CommandEnds (exit 2) if a step is named twice."""
    found = [_Decision(step, "retry") for step in retry]
    for text in accept:
        step, has_outcome, outcome = text.partition("=")
        found.append(_Decision(step, "accept", outcome if has_outcome else None))
    steps = [each.step for each in found]
    if twice := sorted({step for step in steps if steps.count(step) > 1}):
        raise CommandEnds(f"more than one decision about {printable(', '.join(twice))}", REFUSED)
    return found


def _check_decided(session_id: str, view: ExecutionView, given: Sequence[_Decision], *, is_named: bool) -> None:
    """Raises: CommandEnds (exit 2) unless exactly what is undecided is decided about. Nothing has been sent by then."""
    open_steps = undecided(view)
    named = {each.step for each in given}
    if strange := sorted(named - {each.step for each in open_steps}):
        known = ", ".join(each.step for each in open_steps) or "nothing is"
        raise CommandEnds(f"{printable(', '.join(strange))} is not undecided; undecided: {known}", REFUSED)
    if missing := [each for each in open_steps if each.step not in named]:
        lines = ["nothing was sent: the work cannot go on before somebody has decided about"]
        for step in missing:
            lines += [f"  {step_text(step)}", f"  {UNKNOWN}"]
        raise CommandEnds("\n".join([*lines, *decisions(session_id, view, is_named=is_named)]), REFUSED)


def _go_on(client: Client, session_id: str, view: ExecutionView, given: Sequence[_Decision]) -> ExecutionView:
    """Send the decisions, then resume; all for the revision that was looked at. Raises: CommandEnds (exit 2)."""
    path, revision = path_of(view.execution.id), view.execution.control_revision
    ids = {step.step: step.id for step in view.activities}
    stored: list[str] = []
    try:
        for each in given:
            body = ResolveActivity(decision=each.kind, outcome=each.outcome, control_revision=revision)
            client.post(f"{path}/activities/{ids[each.step]}/resolve", encode(body), session_id=session_id)
            stored.append(each.step)
        resume = encode(ResumeExecution(control_revision=revision))
        return decode_view(client.post(f"{path}/resume", resume, session_id=session_id))
    except CallRefused as refused:
        kept = f"; stored before that: what was decided about {', '.join(stored)}" if stored else ""
        raise CommandEnds(f"{refused}{kept}{remedy(refused, session_id)}", REFUSED) from refused


def _continue_message(session_id: str, request_id: str) -> None:
    if parse_uuid4(request_id) is None:
        problem = f"{printable(request_id)!r} is no request id; peen session show {session_id} lists them"
        raise CommandEnds(problem, REFUSED)
    client = running_controller(load(), SystemEntropy())
    with refusals(session_id):
        body = ContinueInput(request_id=request_id, stop_revision=_stop_revision(client, session_id))
        client.post("/api/v1/session/continue", encode(body), session_id=session_id)
    echo(f"{session_id}\t{request_id}\tcontinued=true")


def _stop_revision(client: Client, session_id: str) -> int:
    """That of the session. Raises: CallRefused."""
    answer = client.get("/api/v1/session/executions", session_id=session_id, query={"limit": 1})
    return msgspec.json.decode(answer, type=ExecutionPage).stop_revision
