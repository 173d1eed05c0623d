"""`peen session attach`: watch one session, a line a frame. It only reads."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import click
import msgspec
from msgspec import Raw, Struct

from peen.cli.client import CallRefused, Client, ConnectionLost, Endpoint
from peen.cli.ends import COMPLETED, FAILED, NO_CONTROLLER, REFUSED, CommandEnds, printable, say
from peen.cli.feedpages import feed_after
from peen.cli.frames import Metadata
from peen.cli.framesocket import FrameSocket
from peen.cli.reach import check_session_id, endpoint, running_controller
from peen.cli.startup import load
from peen.cli.streams import OutputFailed, Write, stdout_writer
from peen.control.lock import read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.settings import Settings
from peen.wire.rest import Session

AWAY_S: Final = 30.0
"""Seconds that a controller may be away, for instance while it is started again."""
RETRY_S: Final = 0.1
TICK_S: Final = 30.0
"""How long one wait for frames takes at most; then the next begins."""

Find = Callable[[], Endpoint | None]
"""Where a controller is reached now; None if there is none."""


class _Frame(Struct, frozen=True):
    type: str
    data: Raw = Raw(b"{}")
    metadata: Metadata = Metadata()


_decode: Final = msgspec.json.Decoder(_Frame).decode


@click.command()
@click.argument("session_id", metavar="ID")
def attach(session_id: str) -> int:
    """Show what happens in a session from now on, until SIGINT.

    Each frame is one line: its type, a tab, its data as JSON. A lost connection is made again, and what was missed is
    shown. Exit codes: 0 for SIGINT, 1 if standard output fails, 2 for an unknown session, 5 without a controller.
    """
    check_session_id(session_id)
    out = stdout_writer()
    if out is None:
        raise CommandEnds("standard output is closed", FAILED)
    settings, entropy = load(), SystemEntropy()
    client = running_controller(settings, entropy)
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    try:
        answer = client.get("/api/v1/session", session_id=session_id)
        after = msgspec.json.decode(answer, type=Session).feed_sequence
        Watch(session_id, after, entropy, finder(settings), out, plain=is_terminal).run()
    except CallRefused as refused:
        raise CommandEnds(str(refused), REFUSED) from refused
    except KeyboardInterrupt:
        return COMPLETED
    except OSError as failure:
        raise OutputFailed(failure) from failure


def finder(settings: Settings) -> Find:
    """Looks at the lock each time, since a controller that comes back may be reached elsewhere."""

    def find() -> Endpoint | None:
        holder = read_lock(settings.state_dir)
        return None if holder is None else endpoint(settings, holder)

    return find


class Watch:
    """Frames of one session behind sequence `after`, written as they come. Ends with an exception only."""

    def __init__(
        self, session_id: str, after: int, entropy: Entropy, find: Find, out: Write, *, plain: bool = False
    ) -> None:
        """`plain`: `out` is a terminal, which must not be given control characters."""
        self._session_id, self._after = session_id, after
        self._entropy, self._find, self._out, self._plain = entropy, find, out, plain
        self._heard = False

    def run(self) -> NoReturn:
        """Raises: CommandEnds when no controller comes back; CallRefused; OSError from `out`."""
        lost_at_s: float | None = None
        problem = "it has ended"
        while True:
            place = self._find()
            if place is not None:
                try:
                    self._follow(place)
                except ConnectionLost as lost:
                    problem = str(lost)
                    if self._heard or lost_at_s is None:
                        say(f"{problem}; waiting for the controller")
                        lost_at_s = None  # it was back; this is another loss
            now_s = self._entropy.monotonic_s()
            lost_at_s = now_s if lost_at_s is None else lost_at_s
            if now_s - lost_at_s > AWAY_S:
                raise CommandEnds(f"{problem}; none came back within {AWAY_S:.0f} s", NO_CONTROLLER)
            time.sleep(RETRY_S)

    def _follow(self, place: Endpoint) -> NoReturn:
        self._heard = False
        with contextlib.closing(FrameSocket(place, self._session_id, self._entropy)) as socket:
            # The socket is open before the feed is read, so that no frame falls between the two.
            for page in feed_after(Client(place, self._entropy), self._session_id, self._after):
                self._show(page)
            self._heard = True
            while True:
                self._show(socket.receive(TICK_S))

    def _show(self, payloads: Sequence[bytes]) -> None:
        lines = b"".join(self._line(payload) for payload in payloads)
        if lines:
            self._out(lines)

    def _line(self, payload: bytes) -> bytes:
        """One frame; nothing if it was shown before, or makes no sense to this version."""
        try:
            frame = _decode(payload)
        except (msgspec.MsgspecError, UnicodeError):
            return b""
        sequence = frame.metadata.sequence
        if sequence is not None:
            if sequence <= self._after:
                return b""
            self._after = sequence
        data = msgspec.json.format(frame.data, indent=-1)  # stored JSON may hold line breaks between its members
        if self._plain:
            data = printable(data.decode()).encode()
        return b"%s\t%s\n" % (printable(frame.type).encode(), data)
