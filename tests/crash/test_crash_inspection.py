"""An agent looks at paused work with its tools, decides about what is uncertain, and has the work go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from crash_kit import ENDS, Client, command, script, scripted_daemon, sequences, short_directory, wait_for

from peen.testing.daemon import Daemon

WAITING = "echo $PPID > worker; echo run >> ledger; touch started; while [ ! -e go ]; do sleep 0.02; done; echo done"
WORKS = [[{"text": "A command.", **command(WAITING)}, {"text": "Then I am done."}]]


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


@dataclass
class Paused:
    """A session whose worker was killed while its turn ran a command."""

    daemon: Daemon
    client: Client
    session: str

    def __post_init__(self) -> None:
        (row,) = self.client.get("/session/executions", self.session)["executions"]
        self.execution: str = row["id"]
        self.revision: int = row["controlRevision"]
        (step,) = [each for each in self.view()["activities"] if each["state"] == "uncertain"]
        self.activity: str = step["id"]

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/session/executions/{self.execution}", self.session)
        return found

    def decides(self, *rounds: dict[str, Any]) -> None:
        """What the agent of the next turns does; the worker that is started for them reads it."""
        text = script({"works": WORKS, "decides": [list(rounds)]})
        (self.daemon.home / "script.yaml").write_text(text)

    def resolution(self, **other: Any) -> dict[str, Any]:
        arguments = {"executionId": self.execution, "activityId": self.activity, "controlRevision": self.revision}
        return tool("resolveExecutionActivity", **{**arguments, **other})

    def continuation(self) -> dict[str, Any]:
        return tool("continueExecution", executionId=self.execution, controlRevision=self.revision)

    def results(self) -> list[tuple[str, Any]]:
        """Name and content of every tool result in the feed; the content of an error is text."""
        found = [item["data"] for item in self.client.replay(self.session) if item["type"] == "tool.result"]
        return [(data["name"], data["content"] if data["isError"] else json.loads(data["content"])) for data in found]


@contextmanager
def paused() -> Iterator[Paused]:
    text = script({"works": WORKS, "decides": [[{"text": "nothing to do"}]]})
    with short_directory() as home, scripted_daemon(home, text) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "work", model="scripted/works")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")
        os.kill(int((daemon.workspace_root / "worker").read_text()), signal.SIGKILL)
        client.answered(frame)
        yield Paused(daemon, client, session)


@pytest.mark.parametrize("decision", ["accept", "retry"])
def test_an_agent_decides_about_paused_work_and_it_goes_on_when_the_agents_turn_has_ended(decision: str) -> None:
    with paused() as own:
        client, session = own.client, own.session
        outcome = {"outcome": "I saw that it ended."} if decision == "accept" else {}
        own.decides(
            tool("readExecution"),
            tool("readExecution", executionId=own.execution),
            own.resolution(decision=decision, **outcome),
            own.continuation(),
            {"text": "It goes on."},
        )
        (own.daemon.workspace_root / "go").touch()

        client.ask(session, "go on with it", model="scripted/decides")
        client.until(lambda item: item["type"] == "turn.completed" and item["data"]["text"] == "Then I am done.")

        replayed = client.replay(session)
        assert sequences(replayed) == list(range(1, len(replayed) + 1))
        kinds = [item["type"] for item in replayed if item["type"] in (*ENDS, "turn.resumed", "turn.started")]
        assert kinds == [
            "turn.started", "turn.failed", "turn.started", "turn.completed", "turn.resumed", "turn.completed",
        ]  # fmt: skip
        listed, shown, resolved, admitted = [content for name, content in own.results() if name != "runCommand"]
        assert [row["id"] for row in listed["paused"]] == [own.execution]
        assert shown["view"]["execution"]["controlRevision"] == own.revision
        assert [each["id"] for each in shown["view"]["activities"] if each["state"] == "uncertain"] == [own.activity]
        assert (resolved["decision"], resolved["resumed"], admitted["admitted"]) == (decision, False, True)
        runs = (own.daemon.workspace_root / "ledger").read_text()
        assert runs == ("run\n" if decision == "accept" else "run\nrun\n")
        _check_provenance(own, decision)
        if decision == "accept":
            rows = client.get("/messages", session)["items"]
            assert "I saw that it ended." in [row["content"] for row in rows if row["role"] == "tool"]


def _check_provenance(own: Paused, decision: str) -> None:
    """The decisions name the very activity of the tool call that took them."""
    newest, _ = own.client.get("/session/executions", own.session)["executions"]
    asking = own.client.get(f"/session/executions/{newest['id']}", own.session)
    calls = {each["input"]["name"]: each for each in asking["activities"] if each["step"].endswith(".handler")}
    events = {event["type"]: event["data"] for event in own.view()["controlEvents"]}
    for event, name in (
        ("activity.resolved", "resolveExecutionActivity"),
        ("execution.continueRequested", "continueExecution"),
        ("execution.resumed", "continueExecution"),
    ):
        data = events[event]
        assert data["caller"] == "agent"
        assert data["turnId"] == newest["turnId"]
        assert data["executionId"] == newest["id"]
        assert (data["activityId"], data["callId"]) == (calls[name]["id"], calls[name]["callId"])
    assert events["activity.resolved"]["decision"] == decision


def test_an_agents_decisions_are_refused_where_they_do_not_fit_and_nothing_changes() -> None:
    with paused() as own:
        before = own.view()
        own.decides(
            own.continuation(),
            own.resolution(decision="retry", controlRevision=own.revision - 1),
            own.resolution(decision="retry", outcome="x"),
            own.resolution(decision="accept", activityId="nothing"),
            tool("readExecution", executionId="nothing"),
            {"text": "I give up."},
        )

        frames = own.client.ask(own.session, "go on with it", model="scripted/decides")

        assert frames[-1]["type"] == "message.completed"
        contents = [content for _, content in own.results()]
        begins = ["conflict: nobody has decided", "conflict: controlRevision", "validation failed: outcome"]
        begins += ["not found: no such activity", "not found: no such execution"]
        assert [content.startswith(begin) for content, begin in zip(contents, begins, strict=True)] == [True] * 5
        assert own.view() == before
        assert own.client.get("/session", own.session)["status"] == "paused"


def test_a_stop_of_the_agents_turn_drops_the_continuation_that_it_asked_for() -> None:
    with paused() as own:
        own.decides(
            own.resolution(decision="accept"),
            own.continuation(),
            {"text": "word " * 50, "chunk": 5, "pieceDelayMs": 50},
        )
        frame = own.client.send(own.session, "go on with it", model="scripted/decides")
        own.client.until(lambda item: item["type"] == "content_block_delta" and "word" in json.dumps(item["data"]))

        own.client.http.post("/session/cancel", headers={"X-Session-ID": own.session}, json={})
        own.client.answered(frame)

        (own.daemon.workspace_root / "go").touch()
        frames = own.client.ask(own.session, "and now?", model="scripted/works")  # runs after whatever was admitted
        assert frames[-1]["type"] == "message.completed"
        assert "turn.resumed" not in [item["type"] for item in own.client.replay(own.session)]
        assert own.view()["execution"]["state"] == "paused"
