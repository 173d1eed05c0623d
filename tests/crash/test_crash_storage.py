"""A disk that is full, a page that is damaged, a file from the future: a clear word, and nothing lost."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from crash_kit import (
    ENDS,
    Client,
    alive,
    command,
    descendants,
    script,
    scripted_daemon,
    sequences,
    short_directory,
    wait_for,
)
from disk_kit import tiny_disk

from peen.testing.daemon import Daemon, DaemonFailed

BIG = "x" * 200_000
SCRIPT = script({"talks": [[{"text": BIG}]], "answers": [[{"text": "short"}]]})


@contextmanager
def pinned_log(database: Path) -> Iterator[None]:
    """A reader that keeps the log from being copied back and written over: every commit needs new space."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM turn").fetchall()
        yield
    finally:
        connection.close()


def fill(directory: Path) -> Path:
    """Use up all space; the file that does."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    return filler


def test_a_full_disk_refuses_new_work_and_ends_what_runs_and_all_is_well_when_space_returns() -> None:
    with short_directory() as home, tiny_disk(home / "state", kib=24 * 1024):
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_LOG_DIRECTORY": str(home / "logs")}).start()
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            assert client.ask(session, "hello", model="scripted/answers")[-1]["type"] == "message.completed"
            filler = fill(daemon.state_dir)

            refused = [client.ask(session, BIG, model="scripted/talks")[-1] for _ in range(3)]
            assert {frame["type"] for frame in refused} == {"message.failed"}
            assert client.http.get("/sessions").status_code == 200  # reading goes on
            assert client.get("/session", session)["activeTurn"] is False
            filler.unlink()

            assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"
            replayed = client.replay(session)
            assert sequences(replayed) == list(range(1, len(replayed) + 1))
            started = [item for item in replayed if item["type"] == "userMessage.created"]
            ended = [item for item in replayed if item["type"] in ENDS]
            assert len(started) == len(ended)
        assert daemon.start().stop() == 0  # it passes the integrity check


def test_a_stop_on_a_disk_without_a_free_byte_ends_in_time_and_the_next_start_records_what_it_could_not() -> None:
    waits = [[command("touch started; while :; do sleep 0.05; done"), {"text": "never"}]]
    text = script({"waits": waits, "answers": [[{"text": "short"}]]})
    own = {"PEEN_SHUTDOWN_TIMEOUT": "3s"}
    with short_directory() as home, tiny_disk(home / "state", kib=24 * 1024):
        daemon = scripted_daemon(home, text, {"PEEN_LOG_DIRECTORY": str(home / "logs"), **own}).start()
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "work", model="scripted/waits")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            turn = client.get("/session/turns", session)["turns"][0]["id"]
        below = descendants(daemon.pid)
        (daemon.state_dir / "peen.db.reserve").unlink()
        with pinned_log(daemon.state_dir / "peen.db"):
            filler = fill(daemon.state_dir)

            began = time.monotonic()
            code = daemon.stop()
            took_s = time.monotonic() - began

        assert code == 1
        assert below
        assert not any(map(alive, below))
        assert 3 <= took_s < 3 + 5  # `peen stop` waits that long
        logged = daemon.output().splitlines()
        (told,) = [line for line in logged if "the ends of turns are not stored" in line]
        assert turn in told
        assert not any("took too long" in line for line in logged)
        filler.unlink()

        with daemon.start(), Client(daemon) as client:
            (found,) = client.get("/session/turns", session)["turns"]
            assert (found["id"], found["state"]) == (turn, "interrupted")
            ended = [item["data"]["reason"] for item in client.replay(session) if item["type"] in ENDS]
            assert ended == ["interrupted"]
            (execution,) = client.get("/session/executions", session)["executions"]
            assert (execution["state"], execution["pauseReason"]) == ("paused", "interrupted")
            assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"


def test_a_damaged_page_stops_the_start_with_the_name_of_the_file_and_changes_nothing() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.ask(session, "hello", model="scripted/talks")
        database = daemon.state_dir / "peen.db"
        content = bytearray(database.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 4096] = b"\xa5" * 4096
        database.write_bytes(content)
        before = hashlib.sha256(database.read_bytes()).hexdigest()

        with pytest.raises(DaemonFailed, match=r"(?s)exit code 1\n.*peen\.db.*integrity check"):
            daemon.launch_and_fail()

        assert hashlib.sha256(database.read_bytes()).hexdigest() == before


def test_a_newer_schema_stops_the_start_with_the_name_of_the_file_and_changes_nothing() -> None:
    with short_directory() as home:
        daemon = Daemon(home).start()
        daemon.stop()
        database = daemon.state_dir / "peen.db"
        connection = apsw.Connection(str(database))
        connection.execute("PRAGMA user_version = 9999")
        connection.close()
        before = hashlib.sha256(database.read_bytes()).hexdigest()

        with pytest.raises(DaemonFailed, match=r"(?s)exit code 1\n.*peen\.db.*9999"):
            daemon.launch_and_fail()

        assert hashlib.sha256(database.read_bytes()).hexdigest() == before


def test_no_message_text_tool_content_or_credential_reaches_a_log() -> None:
    secret = "correct-horse-battery"
    text = script({"talks": [[command(f"echo {secret}-in-a-command"), {"text": f"{secret}-in-an-answer"}]]})
    with short_directory() as home:
        daemon = scripted_daemon(home, text, {"PEEN_API_TOKEN": f"{secret}-token", "LOG_LEVEL": "debug"})
        with daemon:
            headers = {"Authorization": f"Bearer {secret}-token"}
            with Client(daemon, headers=headers) as client:
                session = client.open(daemon.workspace_root)
                assert client.ask(session, f"{secret}-in-a-message")[-1]["type"] == "message.completed"

        logs = [daemon.log, *(daemon.state_dir / "logs").iterdir()]
        assert len(logs) >= 2
        assert [str(path) for path in logs if secret in path.read_text()] == []
        audit = [json.loads(line) for line in logs[1].read_text().splitlines()]
        assert {"control-core ready", "control-api ready"} <= {entry["event"] for entry in audit}
