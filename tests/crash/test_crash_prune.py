"""`peen prune` on a running controller: old sessions go with their workers while another session works."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import apsw
from crash_kit import Client, alive, command, script, scripted_daemon, short_directory, wait_for

from peen.testing.daemon import Daemon

SCRIPT = script(
    {
        "tells": [[command("echo $PPID > worker"), {"text": "told"}]],
        "waits": [[command("echo $PPID > worker; touch started; while [ ! -e go ]; do sleep 0.02; done"),
                   {"text": "done"}]],
    }
)  # fmt: skip


def directory(daemon: Daemon, name: str) -> Path:
    made = daemon.workspace_root / name
    made.mkdir()
    return made


def make_old(daemon: Daemon, *sessions: str) -> None:
    """As if nobody had used them since the beginning of time, written by a connection that Peen knows nothing about."""
    connection = apsw.Connection(str(daemon.state_dir / "peen.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(5_000)
    try:
        for session in sessions:
            key = uuid.UUID(session).bytes
            connection.execute("UPDATE session SET updated_at_ms = 1, last_message_at_ms = 1 WHERE id = ?", (key,))
    finally:
        connection.close()


def test_old_sessions_go_with_their_workers_and_running_paused_and_recent_ones_stay() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        places = {name: directory(daemon, name) for name in ("old", "recent", "runs", "paused")}
        ids = {name: client.open(place) for name, place in places.items()}
        for name in ("old", "recent"):
            client.ask(ids[name], "tell", model="scripted/tells")
        stopped = client.send(ids["paused"], "wait", model="scripted/waits")
        wait_for((places["paused"] / "started").exists, "the command to start")
        client.http.post("/session/cancel", headers={"X-Session-ID": ids["paused"]}, json={})
        client.answered(stopped)
        running = client.send(ids["runs"], "wait", model="scripted/waits")
        wait_for((places["runs"] / "started").exists, "the command to start")
        worker = int((places["old"] / "worker").read_text())
        make_old(daemon, ids["old"], ids["runs"], ids["paused"])

        done = subprocess.run(
            [sys.executable, "-m", "peen", "prune", "--older-than", "24h", "--yes"],
            env=daemon.environment, cwd=daemon.workspace_root, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("deleted=1\tkeptPaused=1\tfreedBytes=")
        listed = {item["id"] for item in client.http.get("/sessions").json()["items"]}
        assert listed == {ids["recent"], ids["runs"], ids["paused"]}
        assert not alive(worker)
        (places["runs"] / "go").touch()
        assert client.answered(running)[-1]["type"] == "message.completed"
        assert client.open(places["old"]) != ids["old"]
