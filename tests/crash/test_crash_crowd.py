"""Many at once: sessions that write while somebody reads and copies, and commands that all want a controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import apsw
from crash_kit import Client, command, script, scripted_daemon, sequences, short_directory, wait_for

from peen.testing.daemon import Daemon

ROUNDS = 15
SCRIPT = script(
    {
        "busy": [[{"repeat": ROUNDS, **command("echo x")}, {"text": "done"}]],
        "waits": [[command("touch started; while [ ! -e go ]; do sleep 0.02; done; rm started"), {"text": "done"}]],
    }
)


def open_database_files(pid: int) -> int:
    names = (os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
    return sum("peen.db" in name for name in names)


def test_sixteen_sessions_write_while_a_reader_holds_a_page_open_and_a_copy_is_made() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        sessions = []
        for number in range(16):
            workspace = daemon.workspace_root / f"w{number}"
            workspace.mkdir()
            sessions.append(client.open(workspace))
        client.ask(sessions[0], "go", model="scripted/busy")
        files = open_database_files(daemon.pid)
        database = daemon.state_dir / "peen.db"
        reader = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
        cursor = reader.execute("SELECT * FROM feed")
        next(cursor)  # and not read on: its snapshot stays open

        waiting = {client.send(session, "go", model="scripted/busy") for session in sessions}
        copied = threading.Thread(target=copy, args=(database, home / "copy.db"))
        copied.start()
        answers = {}
        while waiting:
            frame = client.until(lambda frame: frame["triggeredBy"] in waiting)[-1]
            answers[frame["triggeredBy"]] = frame["type"]
            waiting.discard(frame["triggeredBy"])
        copied.join()
        cursor.close()
        reader.close()

        assert set(answers.values()) == {"message.completed"}
        assert open_database_files(daemon.pid) == files
        for session in sessions:
            replayed = client.replay(session, limit=500)
            assert sequences(replayed) == list(range(1, len(replayed) + 1))
        copy_of = apsw.Connection(str(home / "copy.db"))
        assert copy_of.pragma("integrity_check") == "ok"
        copy_of.close()


def copy(database: Path, target: Path) -> None:
    source = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    destination = apsw.Connection(str(target))
    with destination.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(50)
    source.close()
    destination.close()


def test_thirty_two_execs_at_once_share_one_controller_and_each_gets_its_answer() -> None:
    with short_directory() as home:
        daemon = Daemon(home)
        runs = []
        for number in range(32):
            workspace = daemon.workspace_root / f"w{number}"
            workspace.mkdir()
            (workspace / "name.txt").write_text(f"number {number}\n")
            runs.append(
                subprocess.Popen(
                    [sys.executable, "-m", "peen", "exec", "--json", "read name.txt"],
                    cwd=workspace, env=daemon.environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        outputs = [run.communicate(timeout=90) for run in runs]

        failed = [(run.returncode, *output) for run, output in zip(runs, outputs, strict=True) if run.returncode]
        assert failed == []
        for number, (out, _) in enumerate(outputs):
            answer = json.loads(out)
            assert answer["state"] == "completed"
            assert f"number {number}" in answer["text"]
        with daemon, Client(daemon) as client:
            assert len(client.http.get("/sessions").json()["items"]) == 32


def test_a_resend_before_during_and_after_the_turn_and_after_a_restart_starts_nothing() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        frame = str(uuid.uuid4())
        with Client(daemon) as client, Client(daemon) as other:
            session = client.open(daemon.workspace_root)
            client.send(session, "go", frame_id=frame, model="scripted/waits")
            other.send(session, "go", frame_id=frame, model="scripted/waits")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            other.send(session, "go", frame_id=frame, model="scripted/waits")
            (daemon.workspace_root / "go").touch()
            assert client.answered(frame)[-1]["data"] == {"queued": False}
            assert other.answered(frame)[-1]["data"] == {"queued": False}
            assert client.ask(session, "go", frame_id=frame, model="scripted/waits")[-1]["data"] == {"queued": False}
        daemon.stop()

        with daemon.start(), Client(daemon) as client:
            assert client.ask(session, "go", frame_id=frame, model="scripted/waits")[-1]["data"] == {"queued": False}
            assert len(client.get("/session/turns", session)["turns"]) == 1
            rows = client.get("/messages", session)["items"]
            assert [row["content"] for row in rows if row["role"] == "user"] == ["go"]


def test_a_socket_that_is_killed_without_a_close_stops_nothing() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon:
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            frame = client.send(session, "go", model="scripted/waits")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            client.socket.socket.shutdown(2)
        (daemon.workspace_root / "go").touch()

        with Client(daemon) as client:
            answer = client.ask(session, "go", frame_id=frame, model="scripted/waits")[-1]
            assert answer["data"] == {"queued": False}
            replayed = client.replay(session)
            assert sequences(replayed) == list(range(1, len(replayed) + 1))
            assert replayed[-1]["type"] == "turn.completed"
