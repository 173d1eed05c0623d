"""One turn in a controller that another process runs, with nothing but a blocking socket.

A connection that breaks is made again, for `AWAY_S` seconds: the feed tells what was missed, and the same frame is
sent again, which starts nothing twice.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Final

import msgspec

from peen.cli.client import CALL_S, CallRefused, Client, ConnectionLost, Endpoint
from peen.cli.ends import INTERRUPTED, UNFINISHED
from peen.cli.framesocket import FrameSocket
from peen.cli.order import Order
from peen.cli.remedy import open_refused
from peen.cli.screen import Screen
from peen.cli.startup import endpoint
from peen.cli.turnview import TurnView
from peen.control.lock import LockInfo, read_lock
from peen.entropy import Entropy
from peen.settings import EMBEDDED_MODEL, Settings
from peen.wire.client import encode_client_frame
from peen.wire.rest import FeedPage, OpenedSession, OpenSession, Session, encode

AWAY_S: Final = 30.0
"""Seconds that a controller may be away, for instance while it is started again."""
RETRY_S: Final = 0.1
TICK_S: Final = 1.0
"""How often the progress line moves."""
FEED_LIMIT: Final = 1000
_INSTANT_S: Final = 0.01

_LATE: Final = "the time of --timeout is over"
_BORROWED_DEMO: Final = (
    f"the running controller answers with its embedded model {EMBEDDED_MODEL}, a demo that needs no key and no network"
)


class NotSent(ConnectionLost):
    """The controller went away before the message was sent: another one may be tried."""


class BorrowedTurn:
    """One message, carried out by the controller that holds the lock."""

    def __init__(self, order: Order, settings: Settings, screen: Screen, entropy: Entropy) -> None:
        self._order, self._settings, self._screen, self._entropy = order, settings, screen, entropy
        self._session: Session | None = None
        self._view = TurnView(order.frame_id, order.prompt, after=0)
        self._sent = self._heard = self._told = False

    def run(self, holder: LockInfo) -> int:
        """Exit code of the command. Raises: NotSent, CallRefused, CommandEnds."""
        try:
            self._open(holder)
            return self._converse(holder)
        except KeyboardInterrupt:
            return self._leave("interrupted", INTERRUPTED)
        except ConnectionLost as lost:
            if not self._sent:
                raise NotSent(str(lost)) from lost
            raise

    def _open(self, holder: LockInfo) -> None:
        client = self._client(endpoint(self._settings, holder))
        try:
            answer = client.post("/api/v1/sessions/open", encode(OpenSession(workspace=self._order.workspace)))
        except CallRefused as refused:
            raise open_refused(refused, self._order.workspace, self._settings, borrowed=True) from refused
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
                return self._leave(_LATE, UNFINISHED)
            if now_s - lost_at_s > AWAY_S:
                return self._give_up(f"{problem}; none came back within {AWAY_S:.0f} s")
            self._screen.progress("the connection was lost; waiting for the controller")
            time.sleep(RETRY_S)
            found = read_lock(self._settings.state_dir)
            place = None if found is None else endpoint(self._settings, found)

    def _follow(self, place: Endpoint, *, again: bool) -> int:
        """Take frames from one connection until the message is answered; the exit code."""
        assert self._session is not None
        self._heard = False
        limit_s = self._within_s(CALL_S)
        with contextlib.closing(FrameSocket(place, self._session.id, self._entropy, open_s=limit_s)) as socket:
            if again:
                self._catch_up(place)
            message = self._order.message(self._session.id)
            self._sent = True
            socket.send(encode_client_frame(message, self._entropy.now_ms()))
            while not self._view.is_settled:
                if self._is_late(self._entropy.monotonic_s()):
                    return self._leave(_LATE, UNFINISHED)
                frames = socket.receive(self._within_s(TICK_S))
                self._heard = self._heard or bool(frames)
                self._take(frames)
        if self._view.needs_feed:
            self._catch_up(place)
        return self._screen.finish(self._view.outcome(), self._session.id)

    def _catch_up(self, place: Endpoint) -> None:
        assert self._session is not None
        client = self._client(place)
        more = True
        while more:
            query = {"cursor": self._view.last_sequence, "limit": FEED_LIMIT}
            answer = client.get("/api/v1/session/feed", session_id=self._session.id, query=query)
            page = msgspec.json.decode(answer, type=FeedPage)
            self._take([bytes(item) for item in page.items])
            more = page.has_more

    def _take(self, payloads: list[bytes]) -> None:
        self._screen.show([payload for payload in payloads if self._view.fold(payload)], self._view.activity())
        if self._view.model == EMBEDDED_MODEL and self._order.model is None and not self._told:
            self._told = True
            self._screen.note(_BORROWED_DEMO)

    # --- ends without an answer

    def _leave(self, why: str, code: int) -> int:
        """Stop looking. The turn is the controller's, and goes on."""
        if not self._sent or self._session is None:
            self._screen.note(f"{why}; nothing was sent")
            return code
        outcome = self._view.outcome()
        if outcome.state != "unfinished":  # its end was seen, only not yet acknowledged
            return self._screen.finish(outcome, self._session.id)
        self._screen.finish(replace(outcome, error=f"{why}; it goes on in the running controller"), self._session.id)
        return code

    def _give_up(self, problem: str) -> int:
        assert self._session is not None
        outcome = self._view.outcome()
        if outcome.state == "unfinished":
            arrived = "" if self._view.is_stored else "; whether the message arrived is not known"
            outcome = replace(outcome, error=f"{problem}{arrived}")
        return self._screen.finish(outcome, self._session.id)

    def _is_late(self, now_s: float) -> bool:
        return self._order.deadline_s is not None and now_s >= self._order.deadline_s

    def _within_s(self, usual_s: float) -> float:
        """How long one step may take: as usual, but not past --timeout by more than an instant."""
        deadline_s = self._order.deadline_s
        if deadline_s is None:
            return usual_s
        return max(_INSTANT_S, min(usual_s, deadline_s - self._entropy.monotonic_s()))

    def _client(self, place: Endpoint) -> Client:
        return Client(place, self._entropy, call_s=self._within_s(CALL_S))
