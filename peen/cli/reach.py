"""How a command reaches the controller that runs."""

from __future__ import annotations

from pathlib import Path

from peen.cli.client import CALL_S, Client, Endpoint
from peen.cli.ends import NO_CONTROLLER, REFUSED, CommandEnds, printable
from peen.control.lock import LockInfo, read_lock
from peen.entropy import Entropy
from peen.ids import parse_uuid4
from peen.settings import Settings


def endpoint(settings: Settings, holder: LockInfo) -> Endpoint:
    """Where the controller that holds the lock is reached: its socket, else its address."""
    socket = Path(holder.control_socket) if holder.control_socket else settings.control_socket
    return Endpoint(socket, holder.address, settings.api_token)


def running_controller(settings: Settings, entropy: Entropy, *, call_s: float = CALL_S) -> Client:
    """A client of the running controller, each call within `call_s`. Raises: CommandEnds (exit 5) if there is none."""
    holder = read_lock(settings.state_dir)
    if holder is None:
        raise CommandEnds(f"no controller uses {settings.state_dir}; start one with: peen run", NO_CONTROLLER)
    return Client(endpoint(settings, holder), entropy, call_s=call_s)


def check_session_id(text: str) -> None:
    """Raises: CommandEnds (exit 2) for what cannot be the id of a session."""
    if parse_uuid4(text) is None:
        raise CommandEnds(f"{printable(text)!r} is no session id; peen session list shows them", REFUSED)
