"""Stop stops: the provider request, tools, whole process trees, also when the worker hangs; and then work goes on."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from crash_kit import (
    ENDS,
    Client,
    Frame,
    alive,
    command,
    descendants,
    script,
    scripted_daemon,
    short_directory,
    wait_for,
)

from peen.testing.daemon import Daemon

STUBBORN = (
    "echo $PPID > worker; trap '' TERM INT; "
    "setsid sh -c 'trap \"\" TERM; echo $$ > left; while :; do sleep 0.05; done' & "
    "echo $$ > shell; touch started; while :; do sleep 0.05; done"
)
SCRIPT = script(
    {
        "stubborn": [[command(STUBBORN), {"text": "never"}]],
        "silent": [[{"text": "a", "chunk": 1, "fault": {"kind": "silence", "afterPieces": 1}}]],
        "slow": [[{"delayMs": 60_000, "text": "never"}]],
        "waits": [[command("touch started; while [ ! -e go ]; do sleep 0.02; done"), {"text": "done"}]],
        "streams": [[{"text": "x" * 20_000, "chunk": 5, "pieceDelayMs": 2}]],
        "answers": [[{"text": "hello again"}]],
    }
)
STOP_S = 5.0


def wait_until_stubborn(daemon: Daemon) -> None:
    left = daemon.workspace_root / "left"
    wait_for(lambda: left.exists() and left.read_text() != "", "the command to start")


def wait_until_read(client: Client) -> None:
    """Return once the server has read what was sent before: it answers the frames of one socket in their order."""
    client.socket.send("not a frame")
    client.until_type("message.failed")


def stop(client: Client, session: str) -> bool:
    answer = client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
    assert answer.status_code == 202, answer.text
    told: bool = answer.json()["cancelRequested"]
    return told


def ended_by_stop(client: Client, session: str, frame: str) -> list[Frame]:
    """Stop the session; the frames up to the acknowledgement of `frame`, all within the promised time."""
    began = time.monotonic()
    assert stop(client, session)
    frames = client.answered(frame)
    assert time.monotonic() - began < STOP_S + 1
    assert [item["type"] for item in frames if item["type"] in ENDS] == ["turn.cancelled"]
    assert (frames[-1]["type"], frames[-1]["data"]["code"]) == ("message.failed", "TURN_CANCELLED")
    return frames


def assert_goes_on(client: Client, session: str) -> None:
    """The session is free, and the next message works."""
    shown = client.get("/session", session)
    assert (shown["activeTurn"], shown["status"]) == (False, "paused")
    assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"


def test_stop_ends_a_tree_that_ignores_sigterm_and_has_left_its_session() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "go", model="scripted/stubborn")
        wait_until_stubborn(daemon)
        pids = [int((daemon.workspace_root / name).read_text()) for name in ("shell", "left")]
        assert all(map(alive, pids))

        ended_by_stop(client, session, frame)

        assert not any(map(alive, pids))
        assert_goes_on(client, session)
        told = [row["content"] for row in client.get("/messages", session)["items"] if row["role"] == "system"]
        assert len(told) == 1
        assert "stopped" in told[0]
        assert "runCommand" in told[0]
        turn = client.get("/session/turns", session)["turns"][-1]
        assert (turn["state"], turn["cancelRequested"]) == ("cancelled", True)


def test_stop_ends_the_turn_of_a_worker_that_hangs_by_killing_it() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "go", model="scripted/stubborn")
        wait_until_stubborn(daemon)
        worker = int((daemon.workspace_root / "worker").read_text())
        below = descendants(worker)
        os.kill(worker, signal.SIGSTOP)

        ended_by_stop(client, session, frame)

        assert not alive(worker)
        assert not any(map(alive, below))
        assert_goes_on(client, session)


def test_stop_interrupts_a_provider_that_says_nothing() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        for model in ("silent", "slow"):
            frame = client.send(session, "go", model=f"scripted/{model}")
            client.until_type("turn.started" if model == "slow" else "content_block_delta")
            began = time.monotonic()

            frames = ended_by_stop(client, session, frame)

            assert time.monotonic() - began < 2
            opened = Counter(
                item["type"] for item in client.replay(session) if item["type"].startswith("content_block")
            )
            assert opened["content_block_start"] == opened["content_block_stop"]
            assert frames[-2]["type"] == "turn.cancelled"
        assert_goes_on(client, session)


def test_stop_ends_a_turn_whose_worker_has_not_started_yet() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        below = descendants(daemon.pid)
        for pid in below:
            os.kill(pid, signal.SIGSTOP)
        frame = client.send(session, "go", model="scripted/answers")
        client.until_type("userMessage.created")

        ended_by_stop(client, session, frame)

        for pid in below:
            os.kill(pid, signal.SIGCONT)
        assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"
        assert [turn["state"] for turn in client.get("/session/turns", session)["turns"]] == ["completed", "cancelled"]


@pytest.mark.parametrize("model", ["stubborn", "slow"])
def test_a_stop_that_was_stored_counts_after_a_crash(model: str) -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            frame = client.send(session, "go", model=f"scripted/{model}")
            client.until_type("tool.use" if model == "stubborn" else "turn.started")
            assert stop(client, session)
            daemon.kill()
        with daemon.start(), Client(daemon) as client:
            assert [item["type"] for item in client.replay(session) if item["type"] in ENDS] == ["turn.cancelled"]
            again = client.ask(session, "go", frame_id=frame, model=f"scripted/{model}")
            assert again[-1]["data"]["code"] == "TURN_CANCELLED"
            assert_goes_on(client, session)


def test_stop_of_an_idle_session_changes_nothing_that_anybody_sees() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        before = client.get("/session", session)

        assert stop(client, session) is False

        assert client.get("/session", session) == before
        assert client.ask(session, "hello", model="scripted/answers")[-1]["type"] == "message.completed"


def test_a_message_that_comes_during_a_stop_waits_for_its_end() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        client.send(session, "go", model="scripted/stubborn")
        wait_until_stubborn(daemon)

        assert stop(client, session)
        later = client.send(session, "later", model="scripted/answers")
        frames = client.answered(later)

        kinds = [item["type"] for item in frames if item["metadata"]["sessionId"] == session]
        accepted = [at for at, kind in enumerate(kinds) if kind == "userMessage.created"]
        assert accepted[-1] > kinds.index("turn.cancelled")
        assert frames[-1]["type"] == "message.completed"


def test_a_second_stop_cancels_the_messages_that_wait_for_the_first() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        first = client.send(session, "go", model="scripted/stubborn")
        wait_until_stubborn(daemon)

        assert stop(client, session)
        waiting = client.send(session, "waiting", model="scripted/answers")
        wait_until_read(client)
        assert stop(client, session)
        frames = client.answered(waiting)

        assert (frames[-1]["type"], frames[-1]["data"]["code"]) == ("message.failed", "TURN_CANCELLED")
        assert [item["type"] for item in client.replay(session) if item["type"] in ENDS] == ["turn.cancelled"]
        rows = client.get("/messages", session)["items"]
        assert [row["content"] for row in rows if row["role"] == "user"] == ["go"]
        assert first != waiting
        assert_goes_on(client, session)


def test_a_stop_in_the_middle_of_a_stream_is_nothing_to_the_next_message() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        for _ in range(5):
            frame = client.send(session, "go", model="scripted/streams")
            for _ in range(4):
                client.until_type("content_block_delta")
            ended_by_stop(client, session, frame)
            for _ in range(2):
                assert_goes_on(client, session)


def test_messages_that_were_queued_stay_stored_after_a_stop_and_are_named_to_the_next_turn() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "go", model="scripted/waits")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")
        assert client.ask(session, "and another thing")[-1]["data"] == {"queued": True}

        ended_by_stop(client, session, frame)

        contents = [(row["role"], row["content"]) for row in client.get("/messages", session)["items"]]
        assert [content for role, content in contents if role == "user"] == ["go"]
        assert "and another thing" in contents[-1][1]
        assert_goes_on(client, session)
        assert not Path(daemon.workspace_root / "go").exists()
