"""The history of runs in a real controller: told with the execution, and never a reason for anything to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from crash_kit import Client, script, scripted_daemon, short_directory, wait_for

SCRIPT = script({"talks": [[{"text": "word " * 40, "chunk": 5, "pieceDelayMs": 20}]], "answers": [[{"text": "short"}]]})


def lost(file: Path) -> None:
    file.unlink()


def garbage(file: Path) -> None:
    file.write_bytes(b"\0garbage" * 2048)


def no_file_at_all(file: Path) -> None:
    file.unlink()
    file.mkdir()


def newest(client: Client, session: str) -> dict[str, Any]:
    wanted = client.get("/session/executions", session)["executions"][0]["id"]
    view: dict[str, Any] = client.get(f"/session/executions/{wanted}", session)
    return view


def post(client: Client, session: str, path: str, **body: Any) -> None:
    answer = client.http.post(path, headers={"X-Session-ID": session}, json=body)
    assert answer.status_code == 202, answer.text


def rows_in(file: Path) -> int:
    """Runs that the file holds, looked at from outside."""
    if not file.is_file():
        return 0
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("SELECT count(*) FROM run").get)
    except apsw.SQLError:  # it is being made
        return 0
    finally:
        connection.close()


@pytest.mark.parametrize("spoil", [lost, garbage, no_file_at_all])
def test_the_runs_of_an_execution_are_told_whatever_becomes_of_their_file(spoil: Callable[[Path], None]) -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        file = daemon.state_dir / "workflows.db"
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            frame = client.send(session, "talk", model="scripted/talks")
            client.until_type("content_block_delta")
            post(client, session, "/session/cancel")
            client.answered(frame)
            paused = newest(client, session)["execution"]
            resume = f"/session/executions/{paused['id']}/resume"
            post(client, session, resume, controlRevision=paused["controlRevision"])
            client.until_type("turn.completed")
            view = newest(client, session)
            (worker,) = client.get("/session/workers", session)["items"]
            wait_for(lambda: rows_in(file) == 2, "the runs to be written")

            assert [(run["outcome"], run.get("reason"), run.get("caller")) for run in view["runs"]] == [
                ("paused", "stop", None),
                ("completed", None, "api"),
            ]
            assert {run["workerGenerationId"] for run in view["runs"]} == {worker["id"]}
            assert view["runs"][1]["endedAt"] == view["execution"]["endedAt"]
        daemon.kill()
        spoil(file)  # and what SQLite keeps beside it stays
        with daemon.start(), Client(daemon) as client:
            assert newest(client, session) == view
            if spoil is not no_file_at_all:
                wait_for(lambda: rows_in(file) == 2, "the runs to be written again")
            assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"
            assert [run["outcome"] for run in newest(client, session)["runs"]] == ["completed"]
            if spoil is not no_file_at_all:
                wait_for(lambda: rows_in(file) == 3, "the run of the new turn to be written")
