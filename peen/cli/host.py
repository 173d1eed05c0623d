"""One turn in a controller of this process, which ends with it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import trio

from peen.cli.client import CallRefused
from peen.cli.ends import COMPLETED, INTERRUPTED, UNFINISHED
from peen.cli.hosting import StopRequest, host_controller
from peen.cli.order import Order
from peen.cli.outcome import SEARCHED_TURNS, Outcome, with_usage
from peen.cli.process import Prepared
from peen.cli.remedy import open_refused
from peen.cli.screen import Screen
from peen.cli.turnview import TurnView
from peen.control.controller import Controller
from peen.entropy import Entropy
from peen.hub.request import ApiRequest
from peen.hub.router import dispatch
from peen.settings import EMBEDDED_MODEL, Settings
from peen.wire.client import decode_client_frame, encode_client_frame
from peen.wire.rest import FeedPage, OpenedSession, OpenSession, encode
from peen.wire.websocket import payload_of

TICK_S: Final = 1.0
"""How often the progress line moves."""
HELD_BYTES: Final = 8 * 1024 * 1024
FEED_LIMIT: Final = 1000
LENT_S: Final = 3600.0
"""Seconds that a finished command waits for those who use its controller."""
LOOK_S: Final = 0.1


def host_turn(order: Order, settings: Settings, screen: Screen, entropy: Entropy, prepared: Prepared) -> HostedTurn:
    """The turn, carried out; its controller has stopped. Raises: what a start can raise; CommandEnds."""
    turn = HostedTurn(order, settings, screen, entropy)
    trio.run(partial(host_controller, settings, prepared, turn.run, turn.request, tcp=False, entropy=entropy))
    return turn


class Ear:
    """Hears the frames of one session, as a socket would.

    Up to `HELD_BYTES` wait here. Beyond that all are let go and `missed` is set: the feed has them.
    """

    def __init__(self, session_id: str) -> None:
        self.missed = False
        self._session_id = session_id
        self._frames: list[bytes] = []
        self._held_bytes = 0
        self._bell = trio.Event()

    @property
    def session_filter(self) -> str | None:
        return self._session_id

    def offer(self, frames: Sequence[bytes]) -> None:
        self._held_bytes += sum(map(len, frames))
        if self._held_bytes > HELD_BYTES:
            self.missed = True
            self._frames.clear()
            self._held_bytes = 0
        else:
            self._frames.extend(frames)
        self._bell.set()

    def reply(self, frame: bytes) -> None:
        self.offer((frame,))

    async def listen(self, within_s: float) -> list[bytes]:
        """Payloads that have come, or come within `within_s` seconds."""
        with trio.move_on_after(within_s):
            await self._bell.wait()
        return self.take()

    def take(self) -> list[bytes]:
        """Payloads that have come."""
        frames, self._frames = self._frames, []
        self._held_bytes = 0
        self._bell = trio.Event()
        return [payload_of(frame) for frame in frames]


class HostedTurn:
    """One message in the controller of this process.

    Owns: its place in the fan-out. Ends: when the message is answered and nobody else uses the controller, when the
    time of --timeout is over, or on a signal; `end`, after the controller has stopped, has the last word.
    """

    def __init__(self, order: Order, settings: Settings, screen: Screen, entropy: Entropy) -> None:
        self._order, self._settings, self._screen, self._entropy = order, settings, screen, entropy
        self._view = TurnView(order.frame_id, order.prompt, after=0)
        self.request = StopRequest()
        self._ear: Ear | None = None
        self._session_id: str | None = None
        self._code: int | None = None
        self._is_sent = self._is_late = self._is_told = False

    async def run(self, running: Controller) -> None:
        """Body of the controller: the conversation, then the time that it is lent to others."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_stopped, nursery.cancel_scope)
            with trio.move_on_after(self._left_s()) as limit:
                await self._converse(running)
            self._is_late = limit.cancelled_caught
            if not self._is_late:
                await self._lend(running)
            nursery.cancel_scope.cancel()

    def end(self) -> int:
        """Exit code. For a turn that was stopped this is where it is told how it ended."""
        number = self.request.number
        if self._is_told:  # without a code it could not be told to the end, since nobody read on
            ended = UNFINISHED if self._code is None else self._code
            return INTERRUPTED if number == signal.SIGINT else ended
        if self._ear is not None:
            self._take(self._ear.take())
        outcome = self._view.outcome()
        why = "the time of --timeout is over" if self._is_late else "stopped by a signal"
        if not self._is_sent:
            self._screen.note(f"{why}; nothing was sent")
            return INTERRUPTED if number == signal.SIGINT else UNFINISHED
        if outcome.state == "unfinished":
            outcome = replace(outcome, error=why)
        elif outcome.state == "interrupted":
            outcome = replace(outcome, error=f"{why}; {outcome.error}")
        code = self._screen.finish(outcome, self._session_id)
        if code == COMPLETED:
            return code
        return INTERRUPTED if number == signal.SIGINT else UNFINISHED

    # --- the conversation

    async def _converse(self, running: Controller) -> None:
        core = running.core
        opened = await self._open(running)
        self._session_id = opened.session.id
        self._view.last_sequence = opened.session.feed_sequence
        if self._order.model is None and core.api.default_model == EMBEDDED_MODEL:
            self._screen.note(self._settings.upstream_choice)
        budget, uncounted = opened.session.budget, core.api.terms.uncounted(self._order.model or core.api.default_model)
        if uncounted is not None and budget is not None and budget.cost_usd is not None:
            self._screen.note(uncounted)
        ear = self._ear = Ear(opened.session.id)
        core.fanout.add(ear)
        # Through the wire's own decoder, so that this message meets the same rules as any other.
        sent = encode_client_frame(self._order.message(opened.session.id), self._entropy.now_ms())
        message = decode_client_frame(sent, running.hub.client_limits)
        self._is_sent = True
        await core.sessions.submit(message, ear)
        while not self._view.is_settled:
            await self._show(await ear.listen(TICK_S))
            if ear.missed:
                ear.missed = False
                await self._catch_up(running)
                await core.sessions.submit(message, ear)  # answered again, or when its turn ends
        if self._view.needs_feed:
            await self._catch_up(running)
        outcome = await self._measured(running, self._view.outcome())
        self._is_told = True
        finish = partial(self._screen.finish, outcome, self._session_id)
        self._code = await trio.to_thread.run_sync(finish, abandon_on_cancel=True)

    async def _open(self, running: Controller) -> OpenedSession:
        body = encode(OpenSession(workspace=self._order.workspace))
        request = ApiRequest("POST", "/api/v1/sessions/open", body=body)
        answer = await dispatch(running.router, running.core.api, request, self._entropy)
        if answer.status != 200:
            refused = CallRefused.of(answer.status, answer.body)
            raise open_refused(refused, self._order.workspace, self._settings, borrowed=False)
        return msgspec.json.decode(answer.body, type=OpenedSession)

    async def _measured(self, running: Controller, outcome: Outcome) -> Outcome:
        """With what the turn used, if that is asked for."""
        if not self._screen.wants_usage or outcome.request_id is None:
            return outcome
        session = await self._read(running, "/api/v1/session", {})
        turns = await self._read(running, "/api/v1/session/turns", {"limit": [str(SEARCHED_TURNS)]})
        return with_usage(outcome, session, turns)

    async def _read(self, running: Controller, path: str, query: dict[str, list[str]]) -> bytes:
        assert self._session_id is not None
        request = ApiRequest("GET", path, query, {"x-session-id": self._session_id})
        answer = await dispatch(running.router, running.core.api, request, self._entropy)
        if answer.status != 200:
            raise CallRefused.of(answer.status, answer.body)
        return answer.body

    async def _catch_up(self, running: Controller) -> None:
        more = True
        while more:
            query = {"cursor": [str(self._view.last_sequence)], "limit": [str(FEED_LIMIT)]}
            page = msgspec.json.decode(await self._read(running, "/api/v1/session/feed", query), type=FeedPage)
            await self._show([bytes(item) for item in page.items])
            more = page.has_more

    async def _show(self, payloads: Sequence[bytes]) -> None:
        fresh = [payload for payload in payloads if self._view.fold(payload)]
        if self._screen.wants_progress or (self._screen.wants_frames and fresh):
            # In a thread, since a pipe or terminal may take its time; nobody waits for one that has stopped.
            show = partial(self._screen.show, fresh, self._view.activity())
            await trio.to_thread.run_sync(show, abandon_on_cancel=True)

    def _take(self, payloads: Sequence[bytes]) -> None:
        self._screen.frames([payload for payload in payloads if self._view.fold(payload)])

    # --- how long it lasts

    async def _until_stopped(self, conversation: trio.CancelScope) -> None:
        await self.request.asked.wait()  # no deadline: it is cancelled when the conversation ends by itself
        conversation.cancel()

    async def _lend(self, running: Controller) -> None:
        """Wait for the sockets of others, at most `LENT_S`."""
        if not running.hub.sockets:
            return
        self._screen.note("done; waiting for others who use this controller (Ctrl-C ends it, and interrupts them)")
        with trio.move_on_after(LENT_S):
            while running.hub.sockets:  # noqa: ASYNC110 - the hub tells nobody, and nothing here is in a hurry
                await trio.sleep(LOOK_S)

    def _left_s(self) -> float:
        deadline_s = self._order.deadline_s
        return float("inf") if deadline_s is None else max(0.0, deadline_s - self._entropy.monotonic_s())
