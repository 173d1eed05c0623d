from __future__ import annotations

from functools import partial

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from world_kit import AT_MS, PLENTY, check_sequences, make_home, open_store, open_turn

from peen.ids import SessionNo
from peen.store import feed
from peen.store.database import Database, Touched
from peen.store.feed import NewEvent

SIZES = st.lists(st.integers(2, 60), min_size=1, max_size=12)


def text_event(size: int) -> NewEvent:
    """A frame whose data has this many bytes."""
    return NewEvent("content_block_delta", b'"' + b"x" * (size - 2) + b'"')


def block(event_type: str, index: int) -> NewEvent:
    return NewEvent(event_type, b'{"type":"%s","index":%d}' % (event_type.encode(), index))


@settings(deadline=None, max_examples=60)
@given(SIZES, st.integers(1, 5), st.integers(1, 200))
def test_reading_on_from_the_last_row_gives_every_row_once(sizes: list[int], limit: int, max_bytes: int) -> None:
    async def main() -> None:
        async with open_store() as db:
            home = await make_home(db)
            await db.write(
                partial(feed.append, session_no=home.no, events=[text_event(size) for size in sizes], at_ms=AT_MS)
            )
            read: list[int] = []
            while rows := feed.after(db.reader, home.no, len(read), limit=limit, max_bytes=max_bytes):
                assert len(rows) <= limit
                assert len(rows) == 1 or sum(len(row.data) for row in rows) <= max_bytes
                read += [row.sequence for row in rows]

            assert read == list(range(1, len(sizes) + 1))
            check_sequences(db.reader)

    trio.run(main)


async def test_a_reading_stops_at_its_upper_end() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await db.write(partial(feed.append, session_no=home.no, events=[text_event(9)] * 5, at_ms=AT_MS))

        rows = feed.after(db.reader, home.no, 1, limit=PLENTY, up_to=4)

    assert [row.sequence for row in rows] == [2, 3, 4]


async def test_sessions_count_for_themselves_and_do_not_see_each_other() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        for home, count in ((one, 2), (two, 1), (one, 1)):
            await db.write(partial(feed.append, session_no=home.no, events=[text_event(9)] * count, at_ms=AT_MS))

        assert [row.sequence for row in feed.after(db.reader, one.no, 0, limit=PLENTY)] == [1, 2, 3]
        assert [row.sequence for row in feed.after(db.reader, two.no, 0, limit=PLENTY)] == [1]


async def test_a_commit_names_the_sequences_that_it_wrote() -> None:
    heard: list[Touched] = []
    async with open_store() as db:
        home = await make_home(db)
        db.on_commit = heard.append
        last = [await append(db, home.no, count) for count in (3, 0, 2)]

    assert last == [3, 0, 5]
    assert heard == [{home.no: (1, 3)}, {home.no: (4, 5)}]


async def test_a_frame_of_a_turn_carries_its_request_and_a_user_message_its_own() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home, frame=1)
        await db.write(
            partial(feed.append, session_no=home.no, events=[text_event(9)], at_ms=AT_MS, turn_no=opened.turn)
        )
        await db.write(partial(feed.append, session_no=home.no, events=[NewEvent("notice.created", b"{}")], at_ms=1))

        rows = feed.after(db.reader, home.no, 0, limit=PLENTY)

    requests = [(row.type, row.request_id) for row in rows]
    (_, request_id), *_ = requests
    assert request_id is not None
    assert requests == [
        ("userMessage.created", request_id),
        ("turn.started", request_id),
        ("content_block_delta", request_id),
        ("notice.created", None),
    ]


async def test_the_log_names_what_the_second_system_reads_and_a_failure_also_idles_the_session() -> None:
    types = ["userMessage.created", "turn.started", "tool.use", "content_block_start", "tool.result", "turn.failed"]
    async with open_store() as db:
        home = await make_home(db)
        events = [NewEvent(frame_type, b'{"index":0}') for frame_type in types]
        await db.write(partial(feed.append, session_no=home.no, events=events, at_ms=AT_MS))

        logged = db.reader.rows("SELECT type, ref FROM session_log ORDER BY key")

    assert logged == [
        ("user.message", 1),
        ("session.status_running", 2),
        ("agent.tool_use", 3),
        ("agent.tool_result", 5),
        ("session.error", 6),
        ("session.status_idle", 6),
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=14))
def test_blocks_are_open_from_their_start_to_their_stop(touched: list[int]) -> None:
    """Every second mention of an index stops what the first one started."""

    async def main() -> None:
        async with open_store() as db:
            home = await make_home(db)
            opened = await open_turn(db, home)
            expected: set[int] = set()
            for index in touched:
                event_type = "content_block_stop" if index in expected else "content_block_start"
                change = partial(
                    feed.append, session_no=home.no, events=[block(event_type, index)], at_ms=AT_MS, turn_no=opened.turn
                )
                await db.write(change)
                expected ^= {index}

            assert feed.open_blocks(db.reader, opened.turn) == sorted(expected)

    trio.run(main)


async def append(db: Database, no: SessionNo, count: int) -> int:
    return await db.write(partial(feed.append, session_no=no, events=[text_event(9)] * count, at_ms=AT_MS))
