from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_kit import PlayedUpstream, says
from rest_kit import Office, engine_in, office
from world_kit import AT_MS, Home, accept_message, dump, make_home, open_turn, uuid

from peen.errors import ModelError
from peen.store import deletion, sessions
from peen.store.sessions import SessionRow


async def delete(own: Office, home: Home) -> tuple[int, Any]:
    return await own.ask("DELETE", f"/sessions/{home.uuid}")


def rows_left(own: Office) -> dict[str, int]:
    kept = ("sqlite_sequence", "blob_dictionary")  # these belong to the file
    left = {table: len(rows) for table, rows in dump(own.database).items() if table not in kept}
    return {table: count for table, count in left.items() if count}


async def test_a_deleted_session_is_gone_and_its_workspace_is_opened_as_a_new_one(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        (tmp_path / "project").mkdir()
        body = f'{{"workspace": "{tmp_path}/project"}}'.encode()
        _, opened = await own.ask("POST", "/sessions/open", body=body)
        session_id = opened["session"]["id"]

        assert await own.ask("DELETE", f"/sessions/{session_id}") == (200, {"deleted": True})

        assert rows_left(own) == {}
        assert (await own.get("/sessions"))["items"] == []
        assert await own.refusal("GET", "/session", session_id) == (404, "SESSION_NOT_FOUND")
        assert await own.refusal("DELETE", f"/sessions/{session_id}") == (404, "SESSION_NOT_FOUND")
        _, again = await own.ask("POST", "/sessions/open", body=body)
        assert again["created"]
        assert again["session"]["id"] != session_id


async def test_everything_that_a_turn_left_goes_with_it(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(
            own, PlayedUpstream(says("x"), [ModelError("no", kind="invalid_request", retryable=False)])
        )
        await worker.run_turn()
        await worker.run_turn()
        assert set(rows_left(own)) > {"feed", "message", "turn", "activity", "model_call", "snapshot", "generation"}

        await delete(own, worker.home)

        assert rows_left(own) == {}


async def test_what_lives_for_a_session_is_ended_after_it_is_hidden_and_before_anything_is_removed(
    tmp_path: Path,
) -> None:
    seen: list[tuple[str, bool, int]] = []

    def release(session: SessionRow) -> None:
        is_hidden = sessions.by_id(own.database.reader, session.id) is None
        seen.append((session.uuid, is_hidden, len(dump(own.database)["turn"])))

    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("x")))
        await worker.run_turn()
        own.while_releasing = release

        await delete(own, worker.home)

    assert seen == [(worker.home.uuid, True, 1)]


@pytest.mark.parametrize("begin", [open_turn, accept_message], ids=["a turn runs", "a turn is about to open"])
async def test_a_session_at_work_is_busy_and_nothing_of_it_is_touched(tmp_path: Path, begin: Any) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)
        await begin(own.database, home)
        before = dump(own.database)

        status, refused = await delete(own, home)

        assert (status, refused["code"]) == (409, "SESSION_BUSY")
        assert dump(own.database) == before
        assert own.released == []


async def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)
        path = f"/sessions/{home.uuid}"

        assert await own.refusal("DELETE", "/sessions/x") == (400, "VALIDATION_FAILED")
        assert await own.refusal("DELETE", path, force=1) == (400, "VALIDATION_FAILED")
        assert (await own.ask("DELETE", path, body=b'{"force": true}'))[0] == 400
        assert await own.refusal("DELETE", f"/sessions/{uuid(99)}") == (404, "SESSION_NOT_FOUND")
        assert (await own.get("/session", home))["id"] == home.uuid


async def test_a_session_that_is_being_deleted_is_in_no_list_and_answers_nothing(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("x")))
        await worker.run_turn()
        other = await make_home(own.database, 2)
        await own.database.write(partial(deletion.mark, session_id=worker.home.id, at_ms=AT_MS))

        assert [item["id"] for item in (await own.get("/sessions"))["items"]] == [other.uuid]
        for path in ("/session", "/messages", "/session/feed", "/session/events", "/session/model-runs"):
            assert await own.refusal("GET", path, worker.home) == (404, "SESSION_NOT_FOUND")
