"""Paused work: inspected, decided about, gone on with or given up; by hand, or by itself after a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from crash_kit import ENDS, Client, command, script, scripted_daemon, sequences, short_directory, wait_for

from peen.testing.daemon import Daemon

READ = {"calls": [{"name": "readFile", "arguments": {"path": "notes.txt"}}]}
WAITING = "echo $PPID > worker; echo run >> ledger; touch started; while [ ! -e go ]; do sleep 0.02; done; echo done"
SCRIPT = script(
    {
        "works": [[
            {"text": "First I read.", **READ},
            {"text": "Then a command.", **command(WAITING)},
            {"text": "Then I am done."},
        ]],
        "talks": [[{"text": "word " * 50, "chunk": 5, "pieceDelayMs": 50}]],
        "answers": [[{"text": "short"}]],
    }
)  # fmt: skip


def begin(daemon: Daemon, client: Client) -> tuple[str, str]:
    """A session whose turn runs its command; the id of the session and of the message's frame."""
    (daemon.workspace_root / "notes.txt").write_text("blue\n")
    session = client.open(daemon.workspace_root)
    frame = client.send(session, "work", model="scripted/works")
    wait_for((daemon.workspace_root / "started").exists, "the command to start")
    return session, frame


def post(client: Client, session: str, path: str, **body: Any) -> tuple[int, Any]:
    answer = client.http.post(path, headers={"X-Session-ID": session}, json=body)
    return answer.status_code, answer.json()


def the_execution(client: Client, session: str) -> dict[str, Any]:
    """The newest execution, with everything."""
    newest = client.get("/session/executions", session)["executions"][0]["id"]
    view: dict[str, Any] = client.get(f"/session/executions/{newest}", session)
    return view


def uncertain(view: dict[str, Any]) -> dict[str, Any]:
    (found,) = [activity for activity in view["activities"] if activity["state"] == "uncertain"]
    return dict(found)


def stop(daemon: Daemon, client: Client, session: str, frame: str) -> None:
    post(client, session, "/session/cancel")
    client.answered(frame)


def kill_the_worker(daemon: Daemon, client: Client, session: str, frame: str) -> None:
    os.kill(int((daemon.workspace_root / "worker").read_text()), signal.SIGKILL)
    client.answered(frame)


@pytest.mark.parametrize("pause", [stop, kill_the_worker])
@pytest.mark.parametrize("decision", ["accept", "retry"])
def test_an_uncertain_effect_is_decided_about_and_then_the_same_turn_goes_on(
    pause: Callable[[Daemon, Client, str, str], None], decision: str
) -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session, frame = begin(daemon, client)
        pause(daemon, client, session, frame)
        view = the_execution(client, session)
        execution, step = view["execution"], uncertain(view)
        where = f"/session/executions/{execution['id']}"
        revision = execution["controlRevision"]
        assert execution["state"] == "paused"
        assert step["step"] == "r1.t0.handler"

        refused, why = post(client, session, f"{where}/resume", controlRevision=revision)
        outcome = {"outcome": "I saw that it ended."} if decision == "accept" else {}
        decided, _ = post(
            client, session, f"{where}/activities/{step['id']}/resolve",
            decision=decision, controlRevision=revision, **outcome,
        )  # fmt: skip
        (daemon.workspace_root / "go").touch()
        resumed, _ = post(client, session, f"{where}/resume", controlRevision=revision)
        client.until_type("turn.completed")

        assert (refused, why["code"], "r1.t0.handler" in why["message"]) == (409, "CONFLICT", True)
        assert (decided, resumed) == (200, 202)
        runs = (daemon.workspace_root / "ledger").read_text()
        assert runs == ("run\n" if decision == "accept" else "run\nrun\n")
        replayed = client.replay(session)
        assert sequences(replayed) == list(range(1, len(replayed) + 1))
        kinds = [item["type"] for item in replayed if item["type"] in (*ENDS, "turn.resumed", "turn.started")]
        assert kinds[0] == "turn.started"
        assert kinds[2:] == ["turn.resumed", "turn.completed"]
        assert len({item["metadata"].get("requestId") for item in replayed} - {None}) == 1
        starts = [item["data"]["index"] for item in replayed if item["type"] == "content_block_start"]
        assert starts == list(range(len(starts)))  # block indexes go on
        read = [item for item in replayed if item["type"] == "tool.result" and item["data"]["name"] == "readFile"]
        assert len(read) == 1  # a committed result is not produced again
        (turn,) = client.get("/session/turns", session)["turns"]
        assert turn["state"] == "completed"
        rows = client.get("/messages", session)["items"]
        assert rows[-1]["content"] == "Then I am done."
        assert not any(row["incomplete"] for row in rows)
        if decision == "accept":
            assert "I saw that it ended." in [row["content"] for row in rows if row["role"] == "tool"]
        assert client.get("/session", session)["status"] == "idle"
        assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"


def test_an_interrupted_answer_is_simply_asked_for_again() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "talk", model="scripted/talks")
        client.until_type("content_block_delta")
        stop(daemon, client, session, frame)
        execution = the_execution(client, session)["execution"]

        status, _ = post(
            client, session, f"/session/executions/{execution['id']}/resume",
            controlRevision=execution["controlRevision"],
        )  # fmt: skip
        client.until_type("turn.completed")

        assert status == 202
        rows = client.get("/messages", session)["items"]
        assert [row["content"] for row in rows if row["role"] == "assistant"] == ["word " * 50]
        attempts = {step["step"]: step["attempt"] for step in the_execution(client, session)["activities"]}
        assert attempts["r0.model"] == 2


def test_a_decision_counts_only_for_the_revision_that_was_inspected() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session, frame = begin(daemon, client)
        stop(daemon, client, session, frame)
        view = the_execution(client, session)
        where = f"/session/executions/{view['execution']['id']}"
        old = view["execution"]["controlRevision"] - 1

        for path, body in (
            ("resume", {}),
            ("abandon", {}),
            (f"activities/{uncertain(view)['id']}/resolve", {"decision": "retry"}),
        ):
            status, answer = post(client, session, f"{where}/{path}", controlRevision=old, **body)
            assert (status, answer["code"]) == (409, "CONFLICT")
        assert the_execution(client, session) == view


def test_work_that_is_given_up_never_comes_back() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT, {"PEEN_CRASH_RECOVERY": "resume"}) as daemon:
        with Client(daemon) as client:
            session, frame = begin(daemon, client)
            stop(daemon, client, session, frame)
            execution = the_execution(client, session)["execution"]
            where = f"/session/executions/{execution['id']}"
            status, view = post(client, session, f"{where}/abandon", controlRevision=execution["controlRevision"])
            assert (status, view["execution"]["state"]) == (200, "cancelled")
            assert client.get("/session", session)["status"] == "idle"
        daemon.kill()
        with daemon.start(), Client(daemon) as client:
            assert the_execution(client, session)["execution"]["state"] == "cancelled"
            assert (daemon.workspace_root / "ledger").read_text() == "run\n"


def test_work_that_a_crash_interrupted_goes_on_by_itself_if_that_is_configured_and_repeats_no_effect() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_CRASH_RECOVERY": "resume"}).start()
        with Client(daemon) as client:
            session, _ = begin(daemon, client)
        daemon.kill()
        with daemon.start(), Client(daemon) as client:
            wait_for(lambda: client.get("/session", session)["status"] == "idle", "the turn to end")
            replayed = client.replay(session)
            kinds = [item["type"] for item in replayed if item["type"] in (*ENDS, "turn.resumed")]
            assert kinds == ["turn.failed", "turn.resumed", "turn.completed"]
            assert (daemon.workspace_root / "ledger").read_text() == "run\n"
            told = [row for row in client.get("/messages", session)["items"] if row["role"] == "tool"][-1]
            assert told["isError"]
            assert "unknown" in told["content"]


def test_work_that_a_stop_paused_never_goes_on_by_itself() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_CRASH_RECOVERY": "resume"}).start()
        with Client(daemon) as client:
            session, frame = begin(daemon, client)
            stop(daemon, client, session, frame)
        daemon.kill()
        with daemon.start(), Client(daemon) as client:
            assert client.get("/session", session)["status"] == "paused"
            assert "turn.resumed" not in [item["type"] for item in client.replay(session)]


def test_a_resumption_waits_for_the_turn_that_runs_and_other_turns_are_not_part_of_its_context() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session, frame = begin(daemon, client)
        stop(daemon, client, session, frame)
        view = the_execution(client, session)
        execution = view["execution"]
        where = f"/session/executions/{execution['id']}"
        revision = execution["controlRevision"]
        post(client, session, f"{where}/activities/{uncertain(view)['id']}/resolve", decision="accept",
             outcome="it ended", controlRevision=revision)  # fmt: skip
        other = client.send(session, "talk", model="scripted/talks")
        client.until_type("content_block_delta")

        status, _ = post(client, session, f"{where}/resume", controlRevision=revision)
        client.answered(other)
        client.until(lambda item: item["type"] == "turn.completed" and item["data"]["text"] == "Then I am done.")

        assert status == 202
        kinds = [item["type"] for item in client.replay(session) if item["type"] in (*ENDS, "turn.resumed")]
        assert kinds == ["turn.cancelled", "turn.completed", "turn.resumed", "turn.completed"]
        states = [turn["state"] for turn in client.get("/session/turns", session)["turns"]]
        assert states == ["completed", "completed"]


def test_a_resumption_that_waits_outlives_the_controller_and_nothing_else_goes_on_with_it() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session, frame = begin(daemon, client)
            stop(daemon, client, session, frame)
            view = the_execution(client, session)
            wanted = view["execution"]["id"]
            where, revision = f"/session/executions/{wanted}", view["execution"]["controlRevision"]
            post(client, session, f"{where}/activities/{uncertain(view)['id']}/resolve", decision="accept",
                 outcome="it ended", controlRevision=revision)  # fmt: skip
            client.send(session, "talk", model="scripted/talks")
            client.until_type("content_block_delta")
            status, answer = post(client, session, f"{where}/resume", controlRevision=revision)
            assert (status, answer["execution"]["state"]) == (202, "paused")
            assert answer["execution"]["admission"]["caller"] == "api"
        daemon.kill()
        with daemon.start(), Client(daemon) as client:
            wait_for(
                lambda: client.get(where, session)["execution"]["state"] == "completed", "the admitted work to end"
            )
            talk = the_execution(client, session)["execution"]

            assert (talk["state"], talk["pauseReason"]) == ("paused", "interrupted")
            kinds = [item["type"] for item in client.replay(session) if item["type"] in (*ENDS, "turn.resumed")]
            assert kinds == ["turn.cancelled", "turn.failed", "turn.resumed", "turn.completed"]
            assert "admission" not in client.get(where, session)["execution"]
            assert (daemon.workspace_root / "ledger").read_text() == "run\n"


def test_a_message_that_a_stop_left_waiting_opens_a_turn_once_somebody_says_so() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session, frame = begin(daemon, client)
        queued = client.ask(session, "and this")
        request = queued[-1]["metadata"]["requestId"]
        stop(daemon, client, session, frame)
        view = the_execution(client, session)
        assert [row["message"] for row in view["inbox"]] == ["and this"]

        stale, _ = post(client, session, "/session/continue", requestId=request, stopRevision=view["stopRevision"] - 1)
        (daemon.workspace_root / "go").touch()
        status, _ = post(client, session, "/session/continue", requestId=request, stopRevision=view["stopRevision"])
        again, _ = post(client, session, "/session/continue", requestId=request, stopRevision=view["stopRevision"])
        client.until_type("turn.completed", "turn.failed")

        assert (stale, status, again) == (409, 202, 409)
        rows = client.get("/messages", session)["items"]
        assert [row["content"] for row in rows if row["role"] == "user"] == ["work", "and this"]
        delivered = [item for item in client.replay(session) if item["type"] == "userMessage.delivered"]
        assert [item["metadata"]["requestId"] for item in delivered] == [request]
