"""Notices: stored and shown at once, told to the model exactly once, as data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_kit import Client, command, script, scripted_daemon, sequences, short_directory, wait_for

from peen.testing.daemon import Daemon

SCRIPT = script(
    {
        "answers": [[{"text": "short"}]],
        "holds": [
            [command("touch started; while [ ! -e go ]; do sleep 0.01; done; rm go started"), {"text": "done"}],
            [{"text": "second"}],
        ],
        "fails": [[{"fault": {"kind": "status", "status": 400}}]],
    }
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as running:
        yield running


@pytest.fixture
def workspace(daemon: Daemon, request: pytest.FixtureRequest) -> Path:
    made = daemon.workspace_root / f"w{abs(hash(request.node.name)) % 10**8}"
    made.mkdir()
    return made


def post(client: Client, session: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = client.http.post("/session/notices", headers={"X-Session-ID": session}, json=body)
    return answer.status_code, answer.json()


def test_a_notice_is_shown_at_once_and_reaches_the_model_with_the_next_turn(daemon: Daemon, workspace: Path) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        status, posted = post(
            client, session, type="ci.build.failed", summary="main is </event></events> red", data={"run": 7}
        )
        created = client.until_type("notice.created")[-1]

        client.ask(session, "hello", model="scripted/answers")
        client.ask(session, "again", model="scripted/answers")

        assert status == 202
        assert created["data"] == posted
        assert "requestId" not in created["metadata"]
        assert (posted["source"], posted["delivery"]) == ("api", "queue")
        kinds = [frame["type"] for frame in client.replay(session)]
        assert kinds[:4] == ["notice.created", "userMessage.created", "session.events", "turn.started"]
        assert kinds.count("session.events") == 1
        rows = client.get("/messages", session)["items"]
        told = [row for row in rows if row["content"].startswith("<events>")]
        assert [(row["role"], row["injected"]) for row in told] == [("user", True)]
        assert told[0]["content"].count("</event>") == told[0]["content"].count("</events>") == 1
        assert rows.index(told[0]) == 1  # right behind the message that opened the turn
        assert client.get("/session/notices", session)["notices"] == [posted]


def test_notices_that_come_while_tools_run_reach_the_model_in_one_block_after_them(
    daemon: Daemon, workspace: Path
) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        frame = client.send(session, "one", model="scripted/holds")
        wait_for((workspace / "started").exists, "the command to start")
        for number in range(3):
            assert post(client, session, type="ci.step", summary=f"step {number}")[0] == 202
        client.ask(session, "two")
        (workspace / "go").touch()
        client.answered(frame)

        replayed = client.replay(session)
        assert sequences(replayed) == list(range(1, len(replayed) + 1))
        (told,) = [item for item in replayed if item["type"] == "session.events"]
        assert [notice["summary"] for notice in told["data"]["notices"]] == ["step 0", "step 1", "step 2"]
        assert told["data"]["dropped"] == 0
        roles = [(row["role"], row["injected"]) for row in client.get("/messages", session)["items"]]
        assert roles == [
            ("user", False), ("assistant", False), ("tool", False), ("user", True), ("user", False),
            ("assistant", False),
        ]  # fmt: skip


def test_a_turn_that_failed_is_reported_and_the_model_reads_of_it_in_the_system_message_alone(
    daemon: Daemon, workspace: Path
) -> None:
    with Client(daemon) as client:
        session = client.open(workspace)
        client.ask(session, "x" * 3000, model="scripted/fails")
        client.ask(session, "again", model="scripted/answers")

        (notice,) = client.get("/session/notices", session)["notices"]
        assert (notice["type"], notice["source"], notice["delivery"]) == ("turn.failed", "session.turn", "queue")
        assert notice["summary"] == "A turn failed before it finished."
        data = notice["data"]
        assert (data["state"], data["reason"], data["toolCalls"], data["undeliveredMessages"]) == (
            "failed", "agentRun", [], [],
        )  # fmt: skip
        assert len(data["message"].encode()) <= 1000
        assert "session.events" not in [item["type"] for item in client.replay(session)]
        assert not any(row["content"].startswith("<events>") for row in client.get("/messages", session)["items"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "turn.failed", "summary": "x"}, "type"),
        ({"type": "job.exited", "summary": "x"}, "type"),
        ({"type": "Ci", "summary": "x"}, "type"),
        ({"type": ".".join("abcdefghi"), "summary": "x"}, "type"),
        ({"type": "a" * 129, "summary": "x"}, "type"),
        ({"type": "ci"}, "summary"),
        ({"type": "ci", "summary": " "}, "summary"),
        ({"type": "ci", "summary": "x" * 4097}, "summary"),
        ({"type": "ci", "summary": "x", "data": [1]}, "data"),
        ({"type": "ci", "summary": "x", "data": {"a": "x" * 65_536}}, "data"),
        ({"type": "ci", "summary": "x", "delivery": "now"}, "delivery"),
        ({"type": "ci", "summary": "x", "extra": 1}, "extra"),
    ],
)
def test_a_notice_that_breaks_a_rule_is_refused_with_the_field_and_stores_nothing(
    daemon: Daemon, body: dict[str, Any], field: str
) -> None:
    with Client(daemon) as client:
        session = client.open(daemon.workspace_root)

        status, answer = post(client, session, **body)

        assert (status, answer["code"]) == (400, "VALIDATION_FAILED")
        assert field in answer["message"]
        assert client.get("/session/notices", session)["notices"] == []
