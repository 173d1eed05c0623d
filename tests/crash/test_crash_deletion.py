"""A session is deleted in a running controller, and by one that was killed before it was done."""

from __future__ import annotations

import uuid
from pathlib import Path

import apsw
from crash_kit import Client, alive, command, script, scripted_daemon, short_directory, wait_for

from peen.testing.daemon import Daemon

SCRIPT = script(
    {
        "tells": [[command("echo $PPID > worker"), {"text": "told"}]],
        "waits": [[command("touch started; while [ ! -e go ]; do sleep 0.02; done"), {"text": "done"}]],
    }
)
JSON = {"Content-Type": "application/json"}


def rows(daemon: Daemon) -> dict[str, int]:
    """Tables that hold anything of a session, read by a connection that Peen knows nothing about."""
    connection = apsw.Connection(str(daemon.state_dir / "peen.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        tables = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        counts = {name: int(connection.execute(f'SELECT count(*) FROM "{name}"').get) for name in tables}
    finally:
        connection.close()
    of_the_file = ("sqlite_sequence", "blob_dictionary")
    return {name: count for name, count in counts.items() if count and name not in of_the_file}


def worker_of(workspace: Path) -> int:
    return int((workspace / "worker").read_text())


def test_a_session_goes_with_its_idle_worker_and_its_directory_begins_anew() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        client.ask(session, "tell", model="scripted/tells")
        worker = worker_of(daemon.workspace_root)
        assert alive(worker)

        answer = client.http.delete(f"/sessions/{session}", headers=JSON)

        assert (answer.status_code, answer.json()) == (200, {"deleted": True})
        assert not alive(worker)
        assert rows(daemon) == {}
        assert client.http.get("/session", headers={"X-Session-ID": session}).status_code == 404
        (refused,) = client.ask(session, "anybody there?")
        assert refused["data"]["code"] == "SESSION_NOT_FOUND"
        again = client.open(daemon.workspace_root)
        frames = client.ask(again, "tell", model="scripted/tells")
        assert again != session
        assert frames[0]["metadata"] == {
            "sessionId": again,
            "requestId": frames[0]["metadata"]["requestId"],
            "sequence": 1,
        }
        assert frames[-1]["type"] == "message.completed"


def test_a_running_turn_keeps_its_session() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "wait", model="scripted/waits")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")

        refused = client.http.delete(f"/sessions/{session}", headers=JSON)
        assert (refused.status_code, refused.json()["code"]) == (409, "SESSION_BUSY")

        (daemon.workspace_root / "go").touch()
        assert client.answered(frame)[-1]["type"] == "message.completed"
        assert client.http.delete(f"/sessions/{session}", headers=JSON).status_code == 200


def test_a_deletion_that_a_crash_cut_off_is_finished_by_the_next_controller() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT)
        other = home / "work" / "other"
        other.mkdir()
        with daemon, Client(daemon) as client:
            session, kept = client.open(daemon.workspace_root), client.open(other)
            for each in (session, kept):
                client.ask(each, "tell", model="scripted/tells")
            daemon.kill()
        half_delete(daemon, session)

        with daemon, Client(daemon) as client:
            wait_for(lambda: rows(daemon)["session"] == 1, "the rest to be removed")
            listed = client.http.get("/sessions").json()["items"]
            assert [item["id"] for item in listed] == [kept]
            assert client.get("/messages", kept)["items"] != []
            assert client.ask(kept, "tell", model="scripted/tells")[-1]["type"] == "message.completed"
        assert daemon.start().stop() == 0  # the database is sound


def half_delete(daemon: Daemon, session: str) -> None:
    """What a controller leaves that dies when it has marked a session and removed its feed."""
    connection = apsw.Connection(str(daemon.state_dir / "peen.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        key = uuid.UUID(session).bytes
        (no,) = connection.execute("SELECT no FROM session WHERE id = ?", (key,)).fetchall()[0]
        connection.execute("UPDATE session SET deleting_at_ms = 1, workspace = 'deleted:x' WHERE no = ?", (no,))
        connection.execute("DELETE FROM session_log WHERE key >> 32 = ?", (no,))
        connection.execute("DELETE FROM feed WHERE key >> 32 = ?", (no,))
    finally:
        connection.close()
