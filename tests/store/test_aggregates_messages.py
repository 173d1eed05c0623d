from __future__ import annotations

from functools import partial

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from world_kit import AT_MS, PLENTY, Home, call, check_sequences, make_home, open_store, open_turn, transcript

from peen.store import messages
from peen.store.database import Database
from peen.wire.records import NOTHING, MessageRecord, ToolCallRecord
from peen.wire.turncalls import HistoryMessage

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
CALLS = st.lists(
    st.builds(
        call, st.text("abc", min_size=1, max_size=3), st.just("look"), st.sampled_from([b"{}", b'{"a": 1}', b'"x"'])
    ),
    min_size=1,
    max_size=2,
)
RECORDS = st.one_of(
    st.builds(MessageRecord, role=st.just("user"), content=TEXTS, injected=st.booleans()),
    st.builds(MessageRecord, role=st.just("system"), content=TEXTS),
    st.builds(
        MessageRecord,
        role=st.just("assistant"),
        content=TEXTS,
        model=st.sampled_from([None, "scripted/script"]),
        thinking=st.none() | TEXTS.filter(bool),
        tool_calls=st.none() | CALLS,
        provider_reasoning=st.sampled_from([NOTHING, Raw(b'{"upstream":"a","items":[ {"x":"\\/ \\u00e9"} ]}')]),
    ),
    st.builds(
        MessageRecord, role=st.just("tool"), content=TEXTS, tool_call_id=st.text("abc", max_size=3),
        is_error=st.booleans(),
    ),
)  # fmt: skip


async def store(db: Database, home: Home, turn: int, *records: MessageRecord) -> int:
    change = partial(messages.append, session_no=home.no, messages=list(records), turn_no=turn, at_ms=AT_MS)
    return await db.write(change)


@settings(deadline=None, max_examples=80)
@given(st.lists(RECORDS, max_size=10), st.integers(1, 4000))
def test_paging_through_the_history_gives_every_message_once_as_it_was_stored(
    records: list[MessageRecord], max_bytes: int
) -> None:
    async def main() -> None:
        async with open_store() as db:
            home = await make_home(db)
            opened = await open_turn(db, home)
            last = await store(db, home, opened.turn, *records)
            up_to = opened.message_sequence + len(records)
            await store(db, home, opened.turn, MessageRecord(role="user", content="came later"))

            read: list[HistoryMessage] = []
            has_more = True
            while has_more:
                after = read[-1].sequence if read else opened.message_sequence
                page, has_more = messages.history(db.reader, home.no, after=after, up_to=up_to, max_bytes=max_bytes)
                assert page or not has_more
                read += page

            assert last == (up_to if records else 0)
            assert [row.message for row in read] == records
            assert {row.turn for row in read} <= {opened.turn}
            check_sequences(db.reader)

    trio.run(main)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(1, 4), st.integers(1, 120), st.booleans())
def test_a_page_is_cut_by_number_and_by_bytes_but_never_empty_and_says_if_more_follows(
    sizes: list[int], limit: int, max_bytes: int, newest_first: bool
) -> None:
    async def main() -> None:
        async with open_store() as db:
            home = await make_home(db)
            opened = await open_turn(db, home, "")
            await store(db, home, opened.turn, *(MessageRecord(role="user", content="x" * size) for size in sizes))
            read: list[int] = []
            has_more = True
            while has_more:
                page, has_more = messages.page(
                    db.reader, home.no, limit=limit, offset=len(read), newest_first=newest_first, max_bytes=max_bytes
                )
                assert 1 <= len(page) <= limit
                assert len(page) == 1 or sum(len(row.content) for row in page) <= max_bytes
                read += [row.sequence for row in page]

            everything = list(range(1, len(sizes) + 2))
            assert read == (everything[::-1] if newest_first else everything)

    trio.run(main)


async def test_a_page_behind_the_last_message_is_empty() -> None:
    async with open_store() as db:
        home = await make_home(db)

        assert messages.page(db.reader, home.no, limit=5, offset=0, newest_first=True, max_bytes=PLENTY) == ([], False)


async def test_only_replies_and_results_of_the_turn_are_marked_incomplete() -> None:
    async with open_store() as db:
        home = await make_home(db)
        first, second = await open_turn(db, home, frame=1), await open_turn(db, home, frame=2)
        for turn in (first.turn, second.turn):
            await store(
                db, home, turn,
                MessageRecord(role="assistant", content="", tool_calls=[call("a")]),
                MessageRecord(role="tool", content="seen", tool_call_id="a"),
                MessageRecord(role="system", content="note"),
            )  # fmt: skip
        await db.write(partial(messages.mark_incomplete, turn_no=second.turn))
        page, _ = messages.page(db.reader, home.no, limit=50, offset=0, newest_first=False, max_bytes=PLENTY)

    assert [(row.sequence, row.role) for row in page if row.incomplete] == [(6, "assistant"), (7, "tool")]


async def test_calls_of_a_turn_come_in_order_with_what_became_of_them() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        await store(
            db, home, opened.turn,
            MessageRecord(role="assistant", content="", tool_calls=[call("a"), call("b", "write", b'{"p": 1}')]),
            MessageRecord(role="tool", content="no", tool_call_id="b", is_error=True),
            MessageRecord(role="tool", content="yes", tool_call_id="a"),
            MessageRecord(role="assistant", content="", tool_calls=[call("c")]),
        )  # fmt: skip

        found: list[tuple[ToolCallRecord, str]] = messages.calls_of(db.reader, opened.turn)

    assert found == [(call("a"), "succeeded"), (call("b", "write", b'{"p": 1}'), "failed"), (call("c"), "noResult")]


async def test_the_log_refers_to_replies_and_to_no_other_message() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        reply = MessageRecord(role="assistant", content="done")
        await store(db, home, opened.turn, MessageRecord(role="system", content="note"), reply)

        logged = db.reader.rows("SELECT ref FROM session_log WHERE type = 'agent.message'")

        assert logged == [(3,)]
        assert transcript(db, home)[2].message == reply


async def test_messages_are_counted_and_dated_with_their_session() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        await store(db, home, opened.turn, MessageRecord(role="user", content="one"))

        counted = db.reader.row("SELECT message_count, message_sequence, last_message_at_ms FROM session")

    assert counted == (2, 2, AT_MS)
