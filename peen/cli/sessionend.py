"""`peen session stop` and `peen session delete`."""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec

from peen.cli.client import CallRefused, Client
from peen.cli.ends import FAILED, REFUSED, CommandEnds, printable
from peen.cli.job import running_jobs, send_signal
from peen.cli.reach import check_session_id, running_controller
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.entropy import SystemEntropy
from peen.wire.rest import CancelAccepted, Session

DELETE_S: Final = 600.0
"""A long session is removed in many small steps."""


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--jobs", is_flag=True, help="End its background commands too.")
def stop(session_id: str, jobs: bool) -> None:
    """Stop what runs in a session. It stays stored, and the next message goes on.

    Commands whose job was handed out go on, unless --jobs is given.
    """
    check_session_id(session_id)
    client = running_controller(load(), SystemEntropy())
    try:
        answer = client.post("/api/v1/session/cancel", b"", session_id=session_id)
        ending = _stop_jobs(client, session_id) if jobs else []
    except CallRefused as refused:
        raise CommandEnds(str(refused), REFUSED) from refused
    told = msgspec.json.decode(answer, type=CancelAccepted)
    echo(f"{session_id}\tcancelRequested={str(told.cancel_requested).lower()}")
    for job_id in ending:
        echo(f"{job_id}\tsignalled=true")


def _stop_jobs(client: Client, session_id: str) -> list[str]:
    """Begin to end every background command of the session; their ids, oldest first. Raises: CallRefused."""
    found = [each.job_id for each in running_jobs(client, session_id) if each.detached]
    return [job_id for job_id in found[::-1] if send_signal(client, session_id, job_id, "stop").signalled]


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(session_id: str, yes: bool) -> None:
    """Remove a session and all that is stored of it, for good. Its directory is left alone.

    Asks first; where there is no terminal to ask on, it needs --yes.
    """
    check_session_id(session_id)
    client = running_controller(load(), SystemEntropy(), call_s=DELETE_S)
    try:
        if not yes:
            _confirm(client, session_id)
        client.delete(f"/api/v1/sessions/{session_id}")
    except CallRefused as refused:
        remedy = f"; stop it with: peen session stop {session_id}" if refused.error_code == "SESSION_BUSY" else ""
        raise CommandEnds(f"{refused}{remedy}", REFUSED) from refused
    echo(f"{session_id}\tdeleted=true")


def _confirm(client: Client, session_id: str) -> None:
    """Ask on the terminal. Raises: CommandEnds unless the answer is yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandEnds("there is no terminal to ask on; to delete without being asked, add --yes", REFUSED)
    found = msgspec.json.decode(client.get("/api/v1/session", session_id=session_id), type=Session)
    what = f"the session of {printable(found.workspace)} with {found.message_count} messages"
    # Not click.confirm: it writes a space to standard output.
    print(f"Delete {what}, for good? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandEnds("nothing was deleted", FAILED)
