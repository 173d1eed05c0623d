"""`peen control`: the controller itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

from peen.cli.client import CallRefused, Client, ConnectionLost
from peen.cli.reach import endpoint
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.control.lock import read_lock
from peen.entropy import SystemEntropy
from peen.wire.rest import SessionPage

_PAGE: Final = 200


@click.group()
def control() -> None:
    """The controller itself."""


@control.command()
def status() -> None:
    """Say whether a controller runs, where, and with how many sessions. Starts nothing."""
    settings = load()
    holder = read_lock(settings.state_dir)
    if holder is None:
        echo("controller: not running")
        return
    echo("controller: running")
    echo(f"address: {holder.address or _socket_only(settings.control_socket)}")
    echo(f"sessions: {_count_sessions(Client(endpoint(settings, holder), SystemEntropy()))}")


def _socket_only(path: Path) -> str:
    return f"none (socket {path})"


def _count_sessions(client: Client) -> str:
    """Their number, or why it is unknown: a controller that starts or hangs is running all the same."""
    count = 0
    try:
        while True:
            answer = client.get("/api/v1/sessions", query={"limit": _PAGE, "offset": count})
            page = msgspec.json.decode(answer, type=SessionPage)
            count += len(page.items)
            if not page.has_more or not page.items:
                return str(count)
    except (ConnectionLost, CallRefused) as problem:
        return f"unknown ({problem})"
