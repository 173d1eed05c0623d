"""Paused work from the command line: shown, decided about, gone on with, given up."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

from crash_kit import ENDS, Client, command, script, scripted_daemon, short_directory, wait_for

from peen.testing.daemon import Daemon

ROOT = Path(__file__).parents[2]
WAITING = "echo run >> ledger; touch started; while [ ! -e go ]; do sleep 0.02; done; echo done"
SCRIPT = script(
    {
        "works": [[{"text": "A command.", **command(WAITING)}, {"text": "Then I am done."}]],
        "talks": [[{"text": "word " * 50, "chunk": 5, "pieceDelayMs": 50}]],
    }
)


def peen(daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command beside the daemon."""
    done = subprocess.run(
        [sys.executable, "-m", "peen", *arguments],
        env={**daemon.environment, "PYTHONPATH": str(ROOT)}, cwd=daemon.workspace_root,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def shown(daemon: Daemon, session: str) -> str:
    code, out, err = peen(daemon, "session", "show", session)
    assert (code, err) == (0, "")
    return out


def line_with(text: str, start: str) -> str:
    """What stands behind `start` in the one line that has it."""
    (found,) = [line.strip() for line in text.splitlines() if start in line]
    return found.partition(start)[2]


def begin(daemon: Daemon, client: Client) -> str:
    """A session whose turn carries out its command."""
    session = client.open(daemon.workspace_root)
    client.send(session, "work", model="scripted/works")
    wait_for((daemon.workspace_root / "started").exists, "the command to start")
    return session


def execution_states(client: Client, session: str) -> dict[str, str]:
    return {row["id"]: row["state"] for row in client.get("/session/executions", session)["executions"]}


def test_work_that_a_kill_cut_off_is_shown_decided_about_with_the_shown_command_and_goes_on() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session = begin(daemon, client)
        daemon.kill()
        with daemon.start(), Client(daemon) as client:
            (execution,) = execution_states(client, session)
            text = shown(daemon, session)
            assert "status     paused (interrupted)" in text
            assert f"{execution}  paused (interrupted)  controlRevision 2" in text
            assert line_with(text, "undecided").strip().startswith('r0.t0.handler  runCommand {"command":"echo run')
            retry = line_with(text, "if it may be done again: peen ")

            code, out, err = peen(daemon, "session", "continue", session)
            assert (code, out) == (2, "")
            assert "nothing was sent" in err
            assert f"peen: if it may be done again: peen {retry}" in err.splitlines()
            assert execution_states(client, session) == {execution: "paused"}
            assert (daemon.workspace_root / "ledger").read_text() == "run\n"

            (daemon.workspace_root / "go").touch()
            code, out, err = peen(daemon, *shlex.split(retry))
            assert (code, out, err) == (0, f"{session}\t{execution}\tresumed=true\n", "")
            wait_for(lambda: client.get("/session", session)["status"] == "idle", "the turn to end")

            assert (daemon.workspace_root / "ledger").read_text() == "run\nrun\n"
            kinds = [item["type"] for item in client.replay(session) if item["type"] in (*ENDS, "turn.resumed")]
            assert kinds == ["turn.failed", "turn.resumed", "turn.completed"]
            assert "paused work" not in shown(daemon, session)
            assert peen(daemon, "session", "abandon", session) == (2, "", "peen: nothing is paused in this session\n")


def test_one_of_several_is_accepted_with_its_outcome_and_the_other_given_up() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = begin(daemon, client)
        assert peen(daemon, "session", "stop", session)[0] == 0
        client.until_type("turn.cancelled")
        frame = client.send(session, "talk", model="scripted/talks")
        client.until_type("content_block_delta")
        assert peen(daemon, "session", "stop", session)[0] == 0
        client.answered(frame)
        talk, work = execution_states(client, session)  # newest first

        code, out, err = peen(daemon, "session", "continue", session)
        assert (code, out) == (2, "")
        wanted = [f"peen:   peen session continue {session} --execution {each}" for each in (work, talk)]
        assert [line for line in err.splitlines() if "--execution" in line] == wanted

        code, out, err = peen(daemon, "session", "abandon", session, "--execution", talk)
        assert (code, out, err) == (0, f"{session}\t{talk}\tabandoned=true\n", "")
        assert execution_states(client, session) == {talk: "cancelled", work: "paused"}

        code, out, err = peen(daemon, "session", "continue", session, "--accept", "r0.t0.handler=I saw that it ended.")
        assert (code, out, err) == (0, f"{session}\t{work}\tresumed=true\n", "")
        client.until_type("turn.completed")

        assert (daemon.workspace_root / "ledger").read_text() == "run\n"
        results = [row["content"] for row in client.get("/messages", session)["items"] if row["role"] == "tool"]
        assert results == ["I saw that it ended."]


def test_a_message_that_a_stop_left_waiting_is_shown_and_gets_a_turn_of_its_own() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = begin(daemon, client)
        request = client.ask(session, "and this")[-1]["metadata"]["requestId"]
        assert peen(daemon, "session", "stop", session)[0] == 0
        client.until_type("turn.cancelled")
        text = shown(daemon, session)
        assert line_with(text, "waiting").split() == [request, "stopRevision", "1", "and", "this"]
        own_turn = shlex.split(line_with(text, "to give this message a turn of its own: peen "))

        (daemon.workspace_root / "go").touch()
        assert peen(daemon, *own_turn) == (0, f"{session}\t{request}\tcontinued=true\n", "")
        client.until_type("turn.completed", "turn.failed")

        told = [row["content"] for row in client.get("/messages", session)["items"] if row["role"] == "user"]
        assert told == ["work", "and this"]
        code, out, err = peen(daemon, *own_turn)
        assert (code, out) == (2, "")
        assert "409 CONFLICT: this message is delivered" in err
        assert f"look again with: peen session show {session}" in err
        document = json.loads(peen(daemon, "session", "show", "--json", session)[1])
        assert [view["inbox"] for view in document["paused"]] == [[]]
