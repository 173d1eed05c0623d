"""Processes die at the worst moment; the conversation goes on."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from crash_kit import (
    ENDS,
    Client,
    alive,
    children,
    command,
    descendants,
    script,
    scripted_daemon,
    sequences,
    short_directory,
    wait_for,
)

from peen.testing.daemon import Daemon, DaemonFailed

WAITING = (
    "echo $PPID > worker; echo begun >> ledger; touch started; "
    "while [ ! -e go ]; do sleep 0.02; done; echo ended >> ledger"
)
SCRIPT = script(
    {
        "waits": [[{"text": "First a command.", **command(WAITING)}, {"text": "done"}]],
        "answers": [[{"text": "hello again"}]],
    }
)


def test_a_second_controller_fails_before_it_touches_anything() -> None:
    with short_directory() as home, Daemon(home) as first:
        second = Daemon(home)
        before = {path.name: path.stat().st_mtime_ns for path in first.state_dir.iterdir()}

        with pytest.raises(DaemonFailed, match=r"(?s)exit code 1\n.*controller\.lock.*one controller at a time"):
            second.launch_and_fail()

        after = {path.name: path.stat().st_mtime_ns for path in first.state_dir.iterdir()}
        assert {name: after[name] for name in before if not name.endswith("-wal")} == {
            name: before[name] for name in before if not name.endswith("-wal")
        }


def test_a_worker_killed_in_mid_turn_ends_the_turn_and_the_next_message_works() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "wait", model="scripted/waits")
        client.until_type("tool.use")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")
        before = descendants(daemon.pid)

        os.kill(int((daemon.workspace_root / "worker").read_text()), signal.SIGKILL)
        ended = client.answered(frame)

        assert [item["type"] for item in ended if item["type"] in ENDS] == ["turn.failed"]
        assert ended[-2]["data"]["reason"] == "interrupted"
        assert ended[-1]["type"] == "message.failed"
        assert client.get("/session", session)["activeTurn"] is False
        shells = [pid for pid in before & descendants(daemon.pid) if Path(f"/proc/{pid}/comm").read_text() == "sh\n"]
        assert shells == []
        assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"
        assert (daemon.workspace_root / "ledger").read_text() == "begun\n"
        assert sequences(client.replay(session)) == list(range(1, len(client.replay(session)) + 1))


def test_a_controller_killed_in_mid_turn_comes_back_with_everything_and_nothing_runs_on() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "wait", model="scripted/waits")
            seen = client.until_type("tool.use")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
        left = descendants(daemon.pid)
        assert len(left) >= 3  # fork server, worker, shell

        daemon.kill()
        daemon.start()
        with daemon, Client(daemon) as client:
            wait_for(lambda: not any(map(alive, left)), "every process of the dead controller to end", within_s=5)
            assert [item["id"] for item in client.http.get("/sessions").json()["items"]] == [session]
            replayed = client.replay(session)
            assert sequences(replayed) == list(range(1, len(replayed) + 1))
            assert replayed[: len(seen)] == seen
            assert Counter(item["type"] for item in replayed if item["type"] in ENDS) == {"turn.failed": 1}
            assert replayed[-1]["data"]["reason"] == "interrupted"
            turn = client.get("/session/turns", session)["turns"][0]
            assert (turn["state"], turn["failureClassification"]) == ("interrupted", "interrupted")
            status = client.get("/session", session)
            assert (status["status"], status["pauseReason"], status["activeTurn"]) == ("paused", "interrupted", False)
            assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"
            assert (daemon.workspace_root / "ledger").read_text() == "begun\n"
            told = [row for row in client.get("/messages", session)["items"] if row["role"] == "system"]
            assert len(told) == 1
            assert "runCommand" in told[0]["content"]


def test_an_accepted_message_whose_turn_never_opened_is_not_lost_by_a_crash() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            for pid in descendants(daemon.pid):
                os.kill(pid, signal.SIGSTOP)  # no worker can get ready
            frame = client.send(session, "hello", model="scripted/answers")
            client.until_type("userMessage.created")

        daemon.kill()
        daemon.start()
        with daemon, Client(daemon) as client:
            told = [item["type"] for item in client.replay(session)]
            assert told == ["userMessage.created", "notice.created", "turn.failed"]
            contents = [(row["role"], row["content"]) for row in client.get("/messages", session)["items"]]
            assert contents[0] == ("user", "hello")
            again = client.ask(session, "hello", frame_id=frame, model="scripted/answers")
            assert again[-1]["type"] == "message.failed"  # the first outcome, not a second turn
            assert len(client.get("/session/turns", session)["turns"]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_orderly_stop_ends_the_running_turn_and_leaves_no_process(number: signal.Signals) -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "wait", model="scripted/waits")
            client.until_type("tool.use")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            left = descendants(daemon.pid)

            os.kill(daemon.pid, number)
            ended = client.until_type(*ENDS)

        assert daemon.wait() == 0
        assert (ended[-1]["type"], ended[-1]["data"]["reason"]) == ("turn.failed", "shutdown")
        wait_for(lambda: not any(map(alive, left)), "every process to end", within_s=5)
        with daemon, Client(daemon) as client:
            workers = client.get("/session/turns", session)["turns"]
            assert [turn["state"] for turn in workers] == ["interrupted"]
            assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"


def test_a_fork_server_that_somebody_stopped_does_not_hold_up_the_end() -> None:
    # More than this test waits: an end that only comes because the time for it is over fails here.
    with short_directory() as home, scripted_daemon(home, SCRIPT, {"PEEN_SHUTDOWN_TIMEOUT": "5m"}) as daemon:
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.ask(session, "again", model="scripted/answers")
        (nanny,) = children(daemon.pid)
        os.kill(nanny, signal.SIGSTOP)

        assert daemon.stop() == 0
        assert not alive(nanny)


def test_a_lock_left_by_a_dead_controller_does_not_block_the_next() -> None:
    with short_directory() as home:
        daemon = Daemon(home).start()
        daemon.kill()
        assert (daemon.state_dir / "controller.lock").read_text() != ""

        with daemon:
            assert daemon.address.startswith("http://127.0.0.1:")


def test_a_controller_at_the_path_of_another_ones_directory_leaves_its_processes_alone() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as first, Client(first) as client:
        session = client.open(first.workspace_root)
        frame = client.send(session, "wait", model="scripted/waits")
        client.until_type("tool.use")
        wait_for((first.workspace_root / "started").exists, "the command to start")
        worker = int((first.workspace_root / "worker").read_text())
        first.state_dir.rename(home / "moved")

        with scripted_daemon(home, SCRIPT):
            assert alive(worker)
            (first.workspace_root / "go").touch()
            ended = client.answered(frame)

        assert ended[-1]["type"] == "message.completed"
        assert (first.workspace_root / "ledger").read_text() == "begun\nended\n"


def test_a_state_directory_that_was_moved_after_a_crash_is_rid_of_what_the_crash_left() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "wait", model="scripted/waits")
            client.until_type("tool.use")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
        (nanny,) = children(daemon.pid)
        worker = int((daemon.workspace_root / "worker").read_text())
        (shell,) = children(worker)
        for pid in (nanny, worker, daemon.pid):  # so that nobody is there to end the shell
            os.kill(pid, signal.SIGSTOP)
        for pid in (worker, nanny):
            os.kill(pid, signal.SIGKILL)
        daemon.kill()
        assert alive(shell)

        daemon.state_dir = daemon.state_dir.rename(home / "moved")
        with daemon:
            wait_for(lambda: not alive(shell), "what the dead controller has left to end", within_s=5)
