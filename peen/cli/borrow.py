"""One turn in a controller that another process runs, with nothing but a blocking socket.

A connection that breaks is made again, for `AWAY_S` seconds: the feed tells what was missed, and the same frame is
sent again, which starts nothing twice. Whoever leaves before the answer stops the turn first, if it is his own.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from peen.cli.client import CALL_S, CallRefused, Client, ConnectionLost, Endpoint
from peen.cli.elsewhere import waiting_helps
from peen.cli.ends import INTERRUPTED, UNFINISHED, NotSent, ServesOthers
from peen.cli.feedpages import feed_after
from peen.cli.framesocket import FrameSocket
from peen.cli.interrupts import Interrupts
from peen.cli.order import Order
from peen.cli.outcome import SEARCHED_TURNS, Outcome, with_usage
from peen.cli.reach import endpoint
from peen.cli.remedy import NOT_ALLOWED, open_refused
from peen.cli.screen import Screen
from peen.cli.turnview import TurnView
from peen.control.lock import LockInfo, read_lock
from peen.entropy import Entropy
from peen.errors import SessionBusy
from peen.settings import EMBEDDED_MODEL, Settings
from peen.wire.client import encode_client_frame
from peen.wire.rest import OpenedSession, OpenSession, Session, encode

AWAY_S: Final = 30.0
"""Seconds that a controller may be away, for instance while it is started again."""
RETRY_S: Final = 0.1
TICK_S: Final = 1.0
"""How often the progress line moves."""
STOP_S: Final = 6.0
"""How long the end of a turn that was stopped is waited for; a controller promises it within 5 s."""
_INSTANT_S: Final = 0.01

_LATE: Final = "the time of --timeout is over"
_BORROWED_DEMO: Final = (
    f"the running controller answers with its embedded model {EMBEDDED_MODEL}, a demo that needs no key and no network"
)


class _TimeIsUp(Exception):
    """The time of --timeout is over."""


class BorrowedTurn:
    """One message, carried out by the controller that holds the lock.

    SIGINT and the end of --timeout stop the turn that the message opened. A turn that it only joined is left alone.
    """

    def __init__(self, order: Order, settings: Settings, screen: Screen, entropy: Entropy) -> None:
        self._order, self._settings, self._screen, self._entropy = order, settings, screen, entropy
        self._interrupts = Interrupts()
        self._until_s = order.deadline_s
        self._session: Session | None = None
        self._view = TurnView(order.frame_id, order.prompt, after=0)
        self._sent = self._heard = self._told = False

    def run(self, holder: LockInfo) -> int:
        """Exit code of the command. Raises: NotSent, CallRefused, CommandEnds."""
        with self._interrupts:
            try:
                self._open(holder)
                return self._converse(holder)
            except KeyboardInterrupt:
                return self._leave("interrupted", INTERRUPTED)
            except _TimeIsUp:
                return self._leave(_LATE, UNFINISHED)
            except ConnectionLost as lost:
                if not self._sent:
                    raise NotSent(str(lost)) from lost
                raise

    def _open(self, holder: LockInfo) -> None:
        client = self._client(endpoint(self._settings, holder))
        body = encode(OpenSession(workspace=self._order.workspace))
        try:
            answer = self._interrupts.during(partial(client.post, "/api/v1/sessions/open", body))
        except CallRefused as refused:
            workspace = self._order.workspace
            if refused.error_code == NOT_ALLOWED and waiting_helps(holder, workspace, self._settings):
                raise ServesOthers(str(refused)) from refused
            raise open_refused(refused, workspace, self._settings, borrowed=True) from refused
        self._session = msgspec.json.decode(answer, type=OpenedSession).session
        self._view.last_sequence = self._session.feed_sequence

    def _converse(self, holder: LockInfo) -> int:
        """Send and follow, over as many connections as it takes."""
        place: Endpoint | None = endpoint(self._settings, holder)
        lost_at_s: float | None = None
        problem = ""
        while True:
            try:
                if place is not None:
                    return self._follow(place, again=lost_at_s is not None)
            except ConnectionLost as lost:
                if not self._sent:
                    raise
                problem = str(lost)
                if self._heard:
                    lost_at_s = None  # it was back; this is another loss
            except CallRefused as refused:  # it is back, but not as it was: waiting would not help
                if not self._sent:
                    raise
                return self._give_up(f"the connection was lost, and the controller now answers {refused}")
            now_s = self._entropy.monotonic_s()
            lost_at_s = now_s if lost_at_s is None else lost_at_s
            if self._is_late(now_s):
                raise _TimeIsUp
            if now_s - lost_at_s > AWAY_S:
                return self._give_up(f"{problem}; none came back within {AWAY_S:.0f} s")
            self._screen.progress("the connection was lost; waiting for the controller")
            self._interrupts.during(partial(time.sleep, RETRY_S))
            found = read_lock(self._settings.state_dir)
            place = None if found is None else endpoint(self._settings, found)

    def _follow(self, place: Endpoint, *, again: bool) -> int:
        """Take frames from one connection until the message is answered; the exit code."""
        assert self._session is not None
        self._heard = False
        with contextlib.closing(self._connect(place)) as socket:
            if again:
                self._catch_up(place)
            message = self._order.message(self._session.id)
            self._sent = True
            socket.send(encode_client_frame(message, self._entropy.now_ms()))
            while not self._view.is_settled:
                if self._is_late(self._entropy.monotonic_s()):
                    raise _TimeIsUp
                self._listen(socket)
            if self._view.needs_feed:
                self._catch_up(place)
            outcome = self._view.outcome()
            if outcome.state == "refused" and outcome.code == SessionBusy.code:
                # It is about to end, and has stored nothing: another one can take the message, or one of our own.
                raise NotSent(outcome.error or "the controller is stopping")
            # While the socket is open, since a controller that only lends itself ends when nobody listens any more.
            outcome = self._measured(outcome, place)
        return self._screen.finish(outcome, self._session.id)

    def _measured(self, outcome: Outcome, place: Endpoint) -> Outcome:
        """With what the turn used, if that is asked for; without, if the controller does not say."""
        assert self._session is not None
        if not self._screen.wants_usage or outcome.request_id is None:
            return outcome
        read = partial(self._client(place).get, session_id=self._session.id)
        try:
            session = self._interrupts.during(partial(read, "/api/v1/session"))
            turns = self._interrupts.during(partial(read, "/api/v1/session/turns", query={"limit": SEARCHED_TURNS}))
        except (ConnectionLost, CallRefused):
            return outcome
        return with_usage(outcome, session, turns)

    def _connect(self, place: Endpoint) -> FrameSocket:
        assert self._session is not None
        limit_s = self._within_s(CALL_S)
        return self._interrupts.during(partial(FrameSocket, place, self._session.id, self._entropy, open_s=limit_s))

    def _listen(self, socket: FrameSocket) -> None:
        frames = self._interrupts.during(partial(socket.receive, self._within_s(TICK_S)))
        self._heard = self._heard or bool(frames)
        self._take(frames)

    def _catch_up(self, place: Endpoint) -> None:
        assert self._session is not None
        pages = feed_after(self._client(place), self._session.id, self._view.last_sequence)
        while (page := self._interrupts.during(partial(next, pages, None))) is not None:
            self._take(page)

    def _take(self, payloads: list[bytes]) -> None:
        self._screen.show([payload for payload in payloads if self._view.fold(payload)], self._view.activity())
        if self._view.model == EMBEDDED_MODEL and self._order.model is None and not self._told:
            self._told = True
            self._screen.note(_BORROWED_DEMO)

    # --- ends without an answer

    def _leave(self, why: str, code: int) -> int:
        """End before the answer came, for the reason `why`; the exit code, which is `code` unless it came after all."""
        if not self._sent or self._session is None:
            self._screen.note(f"{why}; nothing was sent")
            return code
        outcome = self._view.outcome()
        if outcome.state != "unfinished":  # its end was seen, only not yet acknowledged
            return self._screen.finish(outcome, self._session.id)
        try:
            left = self._stop()
        except KeyboardInterrupt:
            left = "its end was not waited for"
        except (ConnectionLost, CallRefused) as problem:
            left = f"it could not be stopped: {problem}"
        outcome = self._view.outcome()
        if outcome.state == "completed":
            return self._screen.finish(outcome, self._session.id)
        if outcome.state != "unfinished":
            left = outcome.error or outcome.reason or "no reason was given"
        self._screen.finish(replace(outcome, error=f"{why}; {left}"), self._session.id)
        return code

    def _stop(self) -> str:
        """Stop the turn that our message opened, and wait for its end; why the turn goes on, if it does."""
        assert self._session is not None
        self._until_s = self._entropy.monotonic_s() + STOP_S
        self._screen.progress("stopping the turn")
        holder = read_lock(self._settings.state_dir)
        if holder is None:
            raise ConnectionLost("the controller has ended")
        place = endpoint(self._settings, holder)
        # Another connection, since the old one may be in the middle of a frame. The message is not sent again: if it
        # never arrived, that would start what is to be stopped.
        with contextlib.closing(self._connect(place)) as socket:
            self._catch_up(place)
            while not self._view.is_stored:
                self._listen(socket)
                if self._is_late(self._entropy.monotonic_s()):
                    return "whether the message arrived is not known"
                self._catch_up(place)  # what was stored together is read together: also whether it was queued
            if self._view.is_guest:
                return "it goes on in the running controller, since the message only joined it"
            if self._view.outcome().state == "unfinished":
                cancel = partial(self._client(place).post, "/api/v1/session/cancel", b"", session_id=self._session.id)
                self._interrupts.during(cancel)
            while self._view.outcome().state == "unfinished" and not self._is_late(self._entropy.monotonic_s()):
                self._listen(socket)
        return "it was told to stop, which takes longer than usual"

    def _give_up(self, problem: str) -> int:
        assert self._session is not None
        outcome = self._view.outcome()
        if outcome.state == "unfinished":
            arrived = "" if self._view.is_stored else "; whether the message arrived is not known"
            outcome = replace(outcome, error=f"{problem}{arrived}")
        return self._screen.finish(outcome, self._session.id)

    def _is_late(self, now_s: float) -> bool:
        return self._until_s is not None and now_s >= self._until_s

    def _within_s(self, usual_s: float) -> float:
        """How long one step may take: as usual, but not past --timeout by more than an instant."""
        if self._until_s is None:
            return usual_s
        return max(_INSTANT_S, min(usual_s, self._until_s - self._entropy.monotonic_s()))

    def _client(self, place: Endpoint) -> Client:
        return Client(place, self._entropy, call_s=self._within_s(CALL_S))
