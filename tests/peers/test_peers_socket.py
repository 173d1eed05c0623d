"""The program as clients that others wrote see it: `websockets` on the socket, `httpx` on REST."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_kit import Client, command, script, scripted_daemon, sequences, short_directory

from peen.testing.daemon import Daemon

READ = {"calls": [{"name": "readFile", "arguments": {"path": "notes.txt"}}]}
SCRIPT = script(
    {
        "answers": [[{"thinking": "hm", "text": "one two three", "chunk": 4}]],
        "works": [[
            {"calls": [{"name": "readFile", "arguments": {"path": "notes.txt"}},
                       {"name": "listFiles", "arguments": {}}]},
            {"calls": [{"name": "editFile", "arguments":
                {"path": "notes.txt", "edits": [{"old": "blue", "new": "green"}]}}]},
            {"text": "edited"},
        ]],
        "fails": [[{"fault": {"kind": "status", "status": 400}}]],
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as running:
        (running.workspace_root / "notes.txt").write_text("blue\n")
        yield running


def test_a_turn_is_shown_as_blocks_and_events_and_can_be_read_back_byte_for_byte(daemon: Daemon) -> None:
    workspace = daemon.workspace_root / "a"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("blue\n")
    with Client(daemon) as client:
        session = client.open(workspace)

        frames = client.ask(session, "edit it", model="scripted/works")

        assert (workspace / "notes.txt").read_text() == "green\n"
        kinds = [frame["type"] for frame in frames]
        assert (kinds[0], kinds[1], kinds[-2:]) == (
            "userMessage.created", "turn.started", ["turn.completed", "message.completed"],
        )  # fmt: skip
        assert [frame["data"]["name"] for frame in frames if frame["type"] == "tool.use"] == [
            "readFile", "listFiles", "editFile",
        ]  # fmt: skip
        assert [frame["data"]["isError"] for frame in frames if frame["type"] == "tool.result"] == [False] * 3
        assert len({frame["metadata"]["requestId"] for frame in frames}) == 1
        assert client.replay_bytes(session) == client.seen
        assert sequences(client.replay(session)) == list(range(1, len(client.seen) + 1))
        roles = [row["role"] for row in client.get("/messages", session)["items"]]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
        turn = client.get("/session/turns", session)["turns"][0]
        assert turn["state"] == "completed"
        assert turn["requestId"] == frames[0]["metadata"]["requestId"]
        assert len(turn["contextSnapshotHash"]) == len(turn["promptSnapshotHash"]) == 64


def test_folding_the_blocks_gives_the_stored_reply(daemon: Daemon) -> None:
    with Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frames = client.ask(session, "speak", model="scripted/answers")

        blocks: dict[int, dict[str, str]] = {}
        for frame in frames:
            data = frame["data"]
            if frame["type"] == "content_block_start":
                blocks[data["index"]] = {"type": data["content_block"]["type"], "text": ""}
            elif frame["type"] == "content_block_delta":
                blocks[data["index"]]["text"] += data["delta"]["text"]
        assert list(blocks.values()) == [
            {"type": "thinking", "text": "hm"},
            {"type": "text", "text": "one two three"},
        ]
        stored = client.get("/messages", session, order="desc", limit=1)["items"][0]
        assert (stored["content"], stored["thinking"]) == ("one two three", "hm")


def test_a_filtered_socket_hears_its_session_only_and_a_global_one_hears_all(daemon: Daemon) -> None:
    for name in ("left", "right"):
        (daemon.workspace_root / name).mkdir()
    with Client(daemon) as everything:
        left = everything.open(daemon.workspace_root / "left")
        right = everything.open(daemon.workspace_root / "right")
        with Client(daemon, session_filter=left) as filtered:
            everything.ask(right, "speak", model="scripted/answers")
            own = filtered.ask(left, "speak", model="scripted/answers")
            everything.until(lambda frame: frame["triggeredBy"] == own[-1]["triggeredBy"])

            assert {frame["metadata"]["sessionId"] for frame in own} == {left}
            assert everything.replay_bytes(left) == filtered.seen
            assert set(filtered.seen) < set(everything.seen)


def test_every_name_of_a_directory_opens_the_same_session(daemon: Daemon) -> None:
    real = daemon.workspace_root / "real"
    real.mkdir()
    (daemon.workspace_root / "alias").symlink_to(real)
    with Client(daemon) as client:
        ids = {
            client.open(name)
            for name in (real, f"{real}/", f"{real}/../real", f"{real}//", daemon.workspace_root / "alias")
        }
        assert len(ids) == 1


@pytest.mark.parametrize(
    ("workspace", "status", "code"),
    [
        ("/", 403, "WORKSPACE_NOT_ALLOWED"),
        ("{root}/missing", 404, "WORKSPACE_NOT_FOUND"),
        ("{root}/notes.txt", 400, "VALIDATION_FAILED"),
        ("relative", 400, "VALIDATION_FAILED"),
        ("", 400, "VALIDATION_FAILED"),
        ("{state}", 403, "WORKSPACE_NOT_ALLOWED"),
        ("{root}/../outside", 403, "WORKSPACE_NOT_ALLOWED"),
    ],
)
def test_a_workspace_that_cannot_be_opened_is_refused_with_a_reason_and_never_names_the_root(
    daemon: Daemon, workspace: str, status: int, code: str
) -> None:
    with Client(daemon) as client:
        before = client.http.get("/sessions").json()["items"]
        named = workspace.format(root=daemon.workspace_root, state=daemon.state_dir)

        answer = client.http.post("/sessions/open", json={"workspace": named})

        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert str(daemon.workspace_root) not in answer.json()["message"]
        assert client.http.get("/sessions").json()["items"] == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "not-a-uuid"}, "id"),
        ({"type": "message.sendd"}, "type"),
        ({"data": {"message": ""}}, "data.message"),
        ({"data": {"message": 5}}, "data.message"),
        ({"data": {"message": "x", "modle": "y"}}, "modle"),
        ({"data": {"message": "x", "workspace": "/"}}, "data.workspace"),
        ({"data": {"message": "x", "systemPrompt": {"mode": "append"}}}, "content"),
        ({"data": {"message": "x" * 300_000}}, "data.message"),
        ({"metadata": {}}, "sessionId"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_malformed_frame_is_answered_to_its_socket_alone_and_names_the_field(
    daemon: Daemon, change: dict[str, object], field: str
) -> None:
    with Client(daemon) as client, Client(daemon) as other:
        session = client.open(daemon.workspace_root)
        before = client.get("/session", session)["feedSequence"]
        frame = {
            "id": str(uuid.uuid4()), "type": "message.send", "data": {"message": "x"},
            "metadata": {"sessionId": session}, "timestamp": 0, "triggeredBy": None, **change,
        }  # fmt: skip

        client.socket.send(json.dumps(frame))
        refused = client.until_type("message.failed")[-1]

        assert refused["data"]["code"] == "VALIDATION_FAILED"
        assert field in refused["data"]["message"]
        assert client.get("/session", session)["feedSequence"] == before
        with pytest.raises(TimeoutError):
            other.socket.recv(timeout=0.05)


def test_what_is_not_json_or_not_text_is_refused_and_the_socket_goes_on(daemon: Daemon) -> None:
    with Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        for garbage in ("{", "[]", "null", b"\x00\x01"):
            client.socket.send(garbage)
            assert client.until_type("message.failed")[-1]["data"]["code"] == "VALIDATION_FAILED"
        assert client.ask(session, "speak", model="scripted/answers")[-1]["type"] == "message.completed"


def test_an_unknown_session_and_an_unknown_model_store_nothing(daemon: Daemon) -> None:
    with Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        before = client.get("/session", session)

        unknown_session = client.ask(str(uuid.uuid4()), "x")[-1]
        unknown_model = client.ask(session, "x", model="scripted/nope")[-1]

        assert unknown_session["data"]["code"] == "SESSION_NOT_FOUND"
        assert unknown_model["data"]["code"] == "VALIDATION_FAILED"
        assert "scripted/nope" in unknown_model["data"]["message"]
        assert client.get("/session", session) == before


def test_a_failed_turn_has_one_terminal_frame_and_the_next_message_works(daemon: Daemon) -> None:
    with Client(daemon) as client:
        session = client.open(daemon.workspace_root)

        frames = client.ask(session, "x", model="scripted/fails")

        assert [frame["type"] for frame in frames][-2:] == ["turn.failed", "message.failed"]
        assert frames[-2]["data"]["reason"] == "agentRun"
        assert frames[-1]["data"]["reason"] == "agentRun"
        assert client.get("/session", session)["activeTurn"] is False
        assert client.ask(session, "speak", model="scripted/answers")[-1]["type"] == "message.completed"


def test_a_resend_is_answered_with_the_first_outcome_and_starts_nothing(daemon: Daemon) -> None:
    with Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "speak", model="scripted/answers")
        first = client.answered(frame)[-1]
        turns = len(client.get("/session/turns", session)["turns"])

        again = client.ask(session, "speak", frame_id=frame, model="scripted/answers")[-1]
        other = client.ask(session, "something else", frame_id=frame)[-1]

        assert (again["type"], again["data"]) == (first["type"], first["data"])
        assert (other["type"], other["data"]["code"]) == ("message.failed", "VALIDATION_FAILED")
        assert len(client.get("/session/turns", session)["turns"]) == turns


def test_the_stored_files_are_private(daemon: Daemon) -> None:
    for path in [daemon.state_dir, daemon.config_dir, daemon.state_dir / "workers"]:
        assert path.stat().st_mode & 0o077 == 0, path
    for path in daemon.state_dir.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_worker_has_neither_the_database_nor_secrets_in_its_environment() -> None:
    with short_directory() as home:
        look = "env > environment; ls -l /proc/$PPID/fd > files; tr '\\0' '\\n' < /proc/$PPID/environ > worker"
        text = script({"looks": [[command(look), {"text": "done"}]]})
        token = "t" * 40
        with scripted_daemon(home, text, {"PEEN_API_TOKEN": token, "ANTHROPIC_API_KEY": "k" * 40}) as daemon:
            with Client(daemon, headers={"Authorization": f"Bearer {token}"}) as client:
                session = client.open(daemon.workspace_root)
                assert client.ask(session, "look")[-1]["type"] == "message.completed"
            environment = (daemon.workspace_root / "environment").read_text()
            assert "PEEN_" not in environment.replace("_PEEN_", "")
            assert "k" * 40 not in environment
            assert token not in (daemon.workspace_root / "worker").read_text()
            assert "peen.db" not in (daemon.workspace_root / "files").read_text()
            assert os.listdir(daemon.workspace_root) != []
    assert not Path(home).exists()
