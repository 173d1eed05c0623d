from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_kit import PlayedUpstream, says
from rest_kit import Office, engine_in, office
from world_kit import AT_MS, Home, accept_message, dump, make_home, open_turn, uuid

from peen.session.acceptance import end_accepted
from peen.session.ending import interrupted
from peen.store import pruning
from peen.store.database import Tx

DAY_MS = 86_400_000


async def prune(own: Office, older_than: object) -> tuple[int, Any]:
    body = f'{{"olderThan": {older_than if isinstance(older_than, int) else chr(34) + str(older_than) + chr(34)}}}'
    return await own.ask("POST", "/maintenance/prune", body=body.encode())


async def age(own: Office, home: Home, days: int) -> None:
    """As if the session had been used last so many days before the office's clock."""

    def change(tx: Tx) -> None:
        last = own.api.entropy.now_ms() - days * DAY_MS
        tx.execute("UPDATE session SET updated_at_ms = ?, last_message_at_ms = NULL WHERE no = ?", (last, home.no))

    await own.database.write(change)


async def ids(own: Office) -> list[str]:
    return sorted(item["id"] for item in (await own.get("/sessions"))["items"])


async def pause(own: Office, home: Home) -> None:
    await open_turn(own.database, home)
    change = partial(
        end_accepted, session_no=home.no, turn_id=uuid(3001).bytes, ending=interrupted("interrupted", "x"), at_ms=AT_MS
    )
    await own.database.write(change)


async def test_old_sessions_go_and_recent_ones_stay(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("x" * 300_000)))
        await worker.run_turn()
        recent = await make_home(own.database, 2)
        await age(own, worker.home, 31)
        await age(own, recent, 29)

        status, told = await prune(own, "720h")

        assert (status, told["deleted"], told["keptPaused"]) == (200, 1, 0)
        assert told["freedBytes"] > 0
        assert await ids(own) == [recent.uuid]
        assert [row[0] for row in dump(own.database)["session"]] == [recent.no]
        assert dump(own.database)["feed"] == []
        assert [session.uuid for session in own.released] == [worker.home.uuid]
        assert await prune(own, "720h") == (200, {"deleted": 0, "keptPaused": 0, "freedBytes": 0})


async def test_a_message_keeps_a_session_whatever_else_is_old(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)
        await age(own, home, 40)
        now = own.api.entropy.now_ms()
        await own.database.write(lambda tx: tx.execute("UPDATE session SET last_message_at_ms = ?", (now,)))

        _, told = await prune(own, "720h")

        assert told["deleted"] == 0


async def test_paused_work_keeps_its_session_and_is_counted(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)
        await pause(own, home)
        await age(own, home, 400)

        assert await prune(own, "720h") == (200, {"deleted": 0, "keptPaused": 1, "freedBytes": 0})

        assert await ids(own) == [home.uuid]


@pytest.mark.parametrize("begin", [open_turn, accept_message], ids=["a turn runs", "a turn is about to open"])
async def test_a_session_at_work_stays_and_nothing_of_it_is_touched(tmp_path: Path, begin: Any) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)
        await begin(own.database, home)
        await age(own, home, 400)
        before = dump(own.database)

        assert await prune(own, "720h") == (200, {"deleted": 0, "keptPaused": 0, "freedBytes": 0})

        assert dump(own.database) == before


async def test_one_that_is_used_while_others_are_removed_stays(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        first, second = await make_home(own.database), await make_home(own.database, 2)
        for home in (first, second):
            await age(own, home, 31)
        before_ms = own.api.entropy.now_ms() - 30 * DAY_MS
        old = pruning.old_sessions(own.database.reader, before_ms=before_ms)
        assert [found.no for found in old] == [first.no, second.no]
        await accept_message(own.database, second)
        await age(own, second, 0)

        marks = [
            await own.database.write(partial(pruning.mark_old, no=found.no, before_ms=before_ms, at_ms=AT_MS))
            for found in old
        ]

        assert [None if row is None else row.no for row in marks] == [first.no, None]
        again = await own.database.write(partial(pruning.mark_old, no=first.no, before_ms=before_ms, at_ms=AT_MS))
        assert again is None  # it is being deleted already


@pytest.mark.parametrize("age_text", ["", "30", "30d", "0", "-5h", 30])
async def test_what_is_no_length_of_time_is_refused(tmp_path: Path, age_text: object) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)
        await age(own, home, 400)

        status, refused = await prune(own, age_text)

        assert (status, refused["code"]) == (400, "VALIDATION_FAILED")
        assert "olderThan" in refused["message"]
        assert await ids(own) == [home.uuid]
