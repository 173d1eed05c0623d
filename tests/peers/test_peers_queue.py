"""Messages that arrive while a turn runs: first in, first out, at the end of the round, each exactly once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_kit import Client, command, script, scripted_daemon, sequences, short_directory, wait_for

from peen.testing.daemon import Daemon

HOLD = command("touch started; while [ ! -e go ]; do sleep 0.01; done; rm go started")
SCRIPT = script(
    {
        "answers": [[{"text": "short"}]],
        "holds": [[HOLD, {"text": "first answer"}], [{"text": "second answer"}], [{"text": "third answer"}]],
        "streams": [[{"text": "x" * 40, "chunk": 1, "pieceDelayMs": 50}], [{"text": "to the second"}]],
    }
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with short_directory() as home, scripted_daemon(home, SCRIPT, {"PEEN_MAX_QUEUED_USER_MESSAGES": "3"}) as running:
        yield running


@pytest.fixture
def workspace(daemon: Daemon, request: pytest.FixtureRequest) -> Path:
    made = daemon.workspace_root / f"w{abs(hash(request.node.name)) % 10**8}"
    made.mkdir()
    return made


def test_queued_messages_reach_the_model_in_order_after_the_tools_of_the_round(daemon: Daemon, workspace: Path) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        first = client.send(session, "one", model="scripted/holds")
        wait_for((workspace / "started").exists, "the command to start")
        queued = [client.ask(session, text) for text in ("two", "three")]
        (workspace / "go").touch()

        client.answered(first)

        for frames, text in zip(queued, ("two", "three"), strict=True):
            assert [frame["type"] for frame in frames[-3:]] == [
                "userMessage.created", "userMessage.queued", "message.completed",
            ]  # fmt: skip
            assert frames[-1]["data"] == {"queued": True}
            assert len({frame["metadata"]["requestId"] for frame in frames[-3:]}) == 1
            assert frames[-3]["data"] == {"message": text}
        replayed = client.replay(session)
        assert sequences(replayed) == list(range(1, len(replayed) + 1))
        delivered = [frame for frame in replayed if frame["type"] == "userMessage.delivered"]
        assert [frame["data"]["message"] for frame in delivered] == ["two", "three"]
        assert [frame["metadata"]["requestId"] for frame in delivered] == [
            frames[-1]["metadata"]["requestId"] for frames in queued
        ]
        kinds = [frame["type"] for frame in replayed]
        assert kinds.index("tool.result") < kinds.index("userMessage.delivered")
        rows = [(row["role"], row["content"]) for row in client.get("/messages", session)["items"]]
        assert [role for role, _ in rows] == ["user", "assistant", "tool", "user", "user", "assistant"]
        assert [content for role, content in rows if role == "user"] == ["one", "two", "three"]
        assert len(client.get("/session/turns", session)["turns"]) == 1


def test_a_message_that_comes_during_the_last_answer_makes_the_turn_go_on(daemon: Daemon, workspace: Path) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        first = client.send(session, "one", model="scripted/streams")
        client.until_type("content_block_delta")
        second = client.ask(session, "two")[-1]

        client.answered(first)

        assert second["data"] == {"queued": True}
        rows = [(row["role"], row["content"]) for row in client.get("/messages", session)["items"]]
        assert rows == [("user", "one"), ("assistant", "x" * 40), ("user", "two"), ("assistant", "to the second")]
        assert len(client.get("/session/turns", session)["turns"]) == 1


def test_the_queue_is_bounded_and_what_does_not_fit_stores_nothing(daemon: Daemon, workspace: Path) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        first = client.send(session, "one", model="scripted/holds")
        wait_for((workspace / "started").exists, "the command to start")
        answers = [client.ask(session, f"more {number}")[-1] for number in range(3)]
        before = client.get("/session", session)
        refused = client.ask(session, "one too many")[-1]
        after = client.get("/session", session)
        (workspace / "go").touch()

        assert [answer["type"] for answer in answers] == ["message.completed"] * 3
        assert (refused["type"], refused["data"]["code"]) == ("message.failed", "USER_MESSAGE_QUEUE_FULL")
        assert "PEEN_MAX_QUEUED_USER_MESSAGES" in refused["data"]["message"]
        assert after == before
        client.answered(first)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"model": "scripted/answers"}, "data.model"),
        ({"reasoningEffort": "high"}, "data.reasoningEffort"),
        ({"systemPrompt": {"mode": "append", "content": "x"}}, "data.systemPrompt"),
    ],
)
def test_a_queued_message_may_repeat_settings_and_not_change_them(
    daemon: Daemon, workspace: Path, settings: dict[str, object], field: str
) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        first = client.send(session, "one", model="scripted/holds")
        wait_for((workspace / "started").exists, "the command to start")

        changed = client.ask(session, "two", **settings)[-1]
        repeated = client.ask(session, "three", model="scripted/holds")[-1]
        (workspace / "go").touch()

        assert changed["data"]["code"] == "VALIDATION_FAILED"
        assert field in changed["data"]["message"]
        assert repeated["data"] == {"queued": True}
        client.answered(first)
        rows = client.get("/messages", session)["items"]
        assert [row["content"] for row in rows if row["role"] == "user"] == ["one", "three"]


def test_a_queued_message_sent_again_is_queued_once(daemon: Daemon, workspace: Path) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        first = client.send(session, "one", model="scripted/holds")
        wait_for((workspace / "started").exists, "the command to start")
        frame = client.send(session, "two")
        before = client.answered(frame)[-1]
        during = client.ask(session, "two", frame_id=frame)[-1]
        (workspace / "go").touch()
        client.answered(first)
        after = client.ask(session, "two", frame_id=frame)[-1]

        assert before["data"] == during["data"] == after["data"] == {"queued": True}
        rows = client.get("/messages", session)["items"]
        assert [row["content"] for row in rows if row["role"] == "user"] == ["one", "two"]


def test_two_clients_that_send_at_once_are_served_in_one_order_and_nothing_is_lost(
    daemon: Daemon, workspace: Path
) -> None:
    with Client(daemon) as left, Client(daemon) as right:
        session = left.open(workspace)
        answers: dict[str, list[str]] = {}

        def work(client: Client, name: str) -> None:
            answers[name] = [client.ask(session, f"{name} {number}")[-1]["type"] for number in range(20)]

        threads = [threading.Thread(target=work, args=pair) for pair in ((left, "left"), (right, "right"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        def is_idle() -> bool:
            return not left.get("/session", session)["activeTurn"]

        wait_for(is_idle, "the session to become idle")
        replayed = left.replay(session, limit=500)
        accepted = [frame["data"]["message"] for frame in replayed if frame["type"] == "userMessage.created"]
        rows = left.get("/messages", session, limit=200)["items"]
        reached = [row["content"] for row in rows if row["role"] == "user"]
        assert reached == accepted  # each once, in the order of acceptance
        for name in ("left", "right"):
            own = [text for text in accepted if text.startswith(name)]
            assert own == sorted(own, key=lambda text: int(text.split()[1]))
            assert answers[name].count("message.completed") == len(own)
