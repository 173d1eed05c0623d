from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from session_kit import Socket
from trio.testing import wait_all_tasks_blocked
from world_kit import AT_MS, Home, make_home, open_store

from peen.feed import pump as pump_module
from peen.feed.fanout import Fanout
from peen.feed.project import render
from peen.feed.pump import ROWS_AT_ONCE, FeedPump
from peen.store import deletion, feed
from peen.store.database import Database, Touched
from peen.store.feed import NewEvent
from peen.wire.websocket import text_frame


class Station:
    """A pump on a store with some sessions."""

    def __init__(self, db: Database, homes: list[Home]) -> None:
        self.db, self.homes = db, homes
        self.fanout = Fanout()
        self.pump = FeedPump(db.reader, self.fanout)
        self.pump.attach(db)

    def listen(self, home: Home | None = None) -> Socket:
        socket = Socket(None if home is None else home.uuid)
        self.fanout.add(socket)
        return socket

    async def append(self, home: Home, count: int = 1) -> int:
        """Commit so many frames at once; the sequence of the last."""
        events = [NewEvent("notice.created", b"{}")] * count
        return await self.db.write(partial(feed.append, session_no=home.no, events=events, at_ms=AT_MS))

    def replay(self, home: Home, *, after: int = 0) -> list[bytes]:
        rows = feed.after(self.db.reader, home.no, after, limit=100_000)
        return [text_frame(render(row, session=home.id, session_id=home.uuid)) for row in rows]


@asynccontextmanager
async def station(*, sessions: int = 1, seed: int = 1, runs: bool = True) -> AsyncIterator[Station]:
    async with open_store(seed=seed) as db:
        own = Station(db, [await make_home(db, number) for number in range(1, sessions + 1)])
        async with trio.open_nursery() as nursery:
            if runs:
                await nursery.start(own.pump.run)
            yield own
            nursery.cancel_scope.cancel()


def sequences(socket: Socket) -> list[int]:
    return [frame["metadata"]["sequence"] for frame in socket.heard]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 99),
)
def test_live_frames_are_in_order_without_a_gap_and_the_same_bytes_as_replayed_ones(
    commits: list[tuple[int, int, bool]], seed: int
) -> None:
    async def main() -> None:
        async with station(sessions=3, seed=seed) as own:
            everything, single = own.listen(), own.listen(own.homes[0])
            async with trio.open_nursery() as nursery:
                for session, count, is_slow in commits:
                    nursery.start_soon(own.append, own.homes[session], count)
                    if is_slow:
                        await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()

            assert single.raw == own.replay(own.homes[0])
            for home in own.homes:
                heard = [
                    raw
                    for raw, frame in zip(everything.raw, everything.heard, strict=True)
                    if frame["metadata"]["sessionId"] == home.uuid
                ]
                assert heard == own.replay(home)

    trio.run(main)


async def test_more_rows_than_are_read_at_once_go_out_all_the_same() -> None:
    async with station() as own:
        socket = own.listen()
        count = 2 * ROWS_AT_ONCE + 7
        await own.append(own.homes[0], count)
        await wait_all_tasks_blocked()

        assert sequences(socket) == list(range(1, count + 1))


async def test_one_who_comes_later_hears_what_is_committed_from_then_on() -> None:
    async with station() as own:
        first = own.listen()
        await own.append(own.homes[0], 3)
        await wait_all_tasks_blocked()
        second = own.listen()
        await own.append(own.homes[0], 2)
        await wait_all_tasks_blocked()

    assert sequences(first) == [1, 2, 3, 4, 5]
    assert sequences(second) == [4, 5]


async def test_without_listeners_nothing_is_read_or_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    monkeypatch.setattr(pump_module, "render", partial(_note_render, rendered))
    async with station(sessions=2) as own:
        stranger = own.listen(own.homes[1])
        await own.append(own.homes[0], 5)
        await wait_all_tasks_blocked()
        unheard = list(rendered)
        socket = own.listen()
        await own.append(own.homes[0], 1)
        await wait_all_tasks_blocked()

    assert unheard == []
    assert rendered == sequences(socket) == [6]
    assert stranger.heard == []


def _note_render(rendered: list[int], row: feed.FeedRow, *, session: bytes, session_id: str) -> bytes:
    rendered.append(row.sequence)
    return render(row, session=session, session_id=session_id)


async def test_a_frame_is_rendered_once_however_many_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    monkeypatch.setattr(pump_module, "render", partial(_note_render, rendered))
    async with station() as own:
        sockets = [own.listen() for _ in range(5)] + [own.listen(own.homes[0]) for _ in range(5)]
        await own.append(own.homes[0], 3)
        await wait_all_tasks_blocked()

    assert rendered == [1, 2, 3]
    assert all(socket.raw == sockets[0].raw for socket in sockets)
    assert all(one is other for one, other in zip(sockets[0].raw, sockets[9].raw, strict=True))


# --- barriers


async def test_an_action_waits_until_its_frame_has_been_handed_to_every_socket() -> None:
    async with station(runs=False) as own:
        (home,) = own.homes
        socket = own.listen()
        heard: list[list[int]] = []
        sequence = await own.append(home, 3)
        own.pump.when_published(home.no, sequence, lambda: heard.append(sequences(socket)))
        at_once = list(heard)
        own.pump.flush()

    assert at_once == []
    assert heard == [[1, 2, 3]]


async def test_actions_run_by_sequence_and_then_in_the_order_of_their_registration() -> None:
    async with station(runs=False) as own:
        (home,) = own.homes
        own.listen()
        ran: list[str] = []
        await own.append(home, 5)
        for sequence, name in ((5, "e"), (2, "b1"), (5, "f"), (2, "b2"), (1, "a")):
            own.pump.when_published(home.no, sequence, partial(ran.append, name))
        own.pump.flush()

    assert ran == ["a", "b1", "b2", "e", "f"]


async def test_an_action_for_what_went_out_already_runs_at_once() -> None:
    async with station(sessions=2) as own:
        ran: list[str] = []
        sequence = await own.append(own.homes[0])
        await wait_all_tasks_blocked()
        own.pump.when_published(own.homes[0].no, sequence, partial(ran.append, "published"))
        own.pump.when_published(own.homes[1].no, 0, partial(ran.append, "nothing ever was"))

    assert ran == ["published", "nothing ever was"]


async def test_an_action_runs_although_nobody_listens() -> None:
    async with station() as own:
        ran: list[str] = []
        sequence = await own.append(own.homes[0], 2)
        own.pump.when_published(own.homes[0].no, sequence, partial(ran.append, "done"))
        await wait_all_tasks_blocked()

    assert ran == ["done"]


async def test_an_action_for_a_later_frame_waits_for_that_frame() -> None:
    async with station() as own:
        ran: list[str] = []
        sequence = await own.append(own.homes[0])
        own.pump.when_published(own.homes[0].no, sequence + 1, partial(ran.append, "second"))
        await wait_all_tasks_blocked()
        before = list(ran)
        await own.append(own.homes[0])
        await wait_all_tasks_blocked()

    assert (before, ran) == ([], ["second"])


async def test_an_unsequenced_frame_goes_to_all_who_hear_its_session() -> None:
    async with station(sessions=2) as own:
        everything, same, other = own.listen(), own.listen(own.homes[0]), own.listen(own.homes[1])
        own.pump.announce(own.homes[0].uuid, b'{"type":"message.completed"}')

    assert everything.raw == same.raw == [text_frame(b'{"type":"message.completed"}')]
    assert other.raw == []


# --- fairness and the orderly stop


async def test_one_busy_session_does_not_starve_another() -> None:
    async with station(sessions=2, runs=False) as own:
        busy, quiet = own.homes
        order: list[str] = []
        await own.append(busy, 5 * ROWS_AT_ONCE)
        await own.append(quiet)
        own.fanout.add(Named("busy", busy.uuid, order))
        own.fanout.add(Named("quiet", quiet.uuid, order))
        async with trio.open_nursery() as nursery:
            await nursery.start(own.pump.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    assert order == ["busy", "quiet", "busy", "busy", "busy", "busy"]


class Named(Socket):
    """Notes each time it is offered something."""

    def __init__(self, name: str, session_filter: str, order: list[str]) -> None:
        super().__init__(session_filter)
        self._note: Callable[[], None] = partial(order.append, name)

    def offer(self, ready: Sequence[bytes]) -> None:
        self._note()


async def test_a_flush_publishes_everything_that_is_committed_and_runs_what_waited_for_it() -> None:
    async with station(sessions=2, runs=False) as own:
        socket = own.listen()
        ran: list[str] = []
        for home in own.homes:
            last = await own.append(home, ROWS_AT_ONCE + 1)
            own.pump.when_published(home.no, last, partial(ran.append, home.uuid))
        own.pump.flush()
        heard = len(socket.heard)
        own.pump.flush()

    assert heard == len(socket.heard) == 2 * (ROWS_AT_ONCE + 1)
    assert ran == [home.uuid for home in own.homes]


async def test_a_session_that_was_used_before_the_pump_started_goes_on_where_it_stands() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await Station(db, [home]).append(home, 3)
        own = Station(db, [home])
        socket = own.listen()
        await own.append(home, 2)
        own.pump.flush()

    assert sequences(socket) == [4, 5]


async def test_a_commit_to_a_session_that_was_deleted_since_keeps_no_other_from_being_published() -> None:
    async with station(sessions=2, runs=False) as own:
        gone, kept = own.homes
        heard: list[Touched] = []
        own.db.on_commit = heard.append  # the writer is ahead: what it committed is heard of later
        await own.append(gone)
        await own.append(kept)
        await own.db.write(partial(deletion.mark, session_id=gone.id, at_ms=AT_MS))
        await deletion.remove(own.db, gone.no)
        socket = own.listen()

        for touched in heard:
            own.pump.committed(touched)
        own.pump.flush()

        assert [no for touched in heard for no in touched] == [gone.no, kept.no]
        assert [frame["metadata"]["sessionId"] for frame in socket.heard] == [kept.uuid]
