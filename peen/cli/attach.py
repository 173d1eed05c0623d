"""`peen session attach`: watch one session, a line a frame. It only reads."""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec import Raw, Struct

from peen.cli.client import CALL_S, CallRefused, Client, ConnectionLost, Endpoint
from peen.cli.ends import FAILED, NO_CONTROLLER, REFUSED, CommandEnds, printable, say
from peen.cli.feedpages import feed_after
from peen.cli.frames import Metadata
from peen.cli.framesocket import FrameSocket
from peen.cli.startup import check_session_id, endpoint, load, running_controller
from peen.cli.streams import Write, stdout_writer
from peen.control.lock import read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.wire.rest import Session

AWAY_S: Final = 30.0
"""Seconds that a controller may be away, for instance while it is started again."""
RETRY_S: Final = 0.1
TICK_S: Final = 30.0
"""Only how often the wait for a frame begins anew."""

Find = Callable[[], Endpoint | None]


class _Shown(Struct, frozen=True):
    type: str
    data: Raw = Raw(b"{}")
    metadata: Metadata = Metadata()


_decode: Final = msgspec.json.Decoder(_Shown).decode


@click.command()
@click.argument("session_id", metavar="ID")
def attach(session_id: str) -> int:
    """Show what happens in a session, until SIGINT: a line a frame, its type, a tab, and its data as JSON.

    A lost connection is made again, and what was missed meanwhile is shown.
    """
    check_session_id(session_id)
    settings, entropy = load(), SystemEntropy()
    client = running_controller(settings, entropy)

    def find() -> Endpoint | None:
        return _place(settings.state_dir, lambda holder: endpoint(settings, holder))

    out = stdout_writer()
    if out is None:
        raise CommandEnds("standard output is closed", FAILED)
    try:
        answer = client.get("/api/v1/session", session_id=session_id)
        after = msgspec.json.decode(answer, type=Session).feed_sequence
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        Watch(session_id, entropy, find, out, plain=is_terminal, after=after).run()
    except CallRefused as refused:
        raise CommandEnds(str(refused), REFUSED) from refused
    except KeyboardInterrupt:
        return 0
    except OSError as failure:
        if failure.errno == errno.EPIPE:  # who reads has seen enough
            return 0
        raise CommandEnds(f"standard output: {failure.strerror}", FAILED) from failure
    raise AssertionError("a watch ends by an exception")
