"""The commands that look at a running controller, or stop it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cli_canned import (
    SESSION,
    answer,
    canned,
    environment_in,
    http_bytes,
    job_id,
    job_json,
    opened,
    read_request,
    session_json,
    settings_in,
)
from msgspec import Raw

from peen.cli.ends import CommandEnds
from peen.cli.main import main
from peen.cli.session import readable
from peen.cli.stop import stop_controller
from peen.control.lock import ControllerLock, LockInfo, read_lock
from peen.entropy import SystemEntropy
from peen.settings import Settings
from peen.wire.rest import Image, Message, Session, SessionLimits, ToolCall, Turn, UsedSoFar

ROOT = Path(__file__).parents[2]
HOLDER = """
import os, signal, sys
from pathlib import Path
from peen.control.lock import ControllerLock, LockInfo
state = Path(sys.argv[1])
stubborn = sys.argv[2] == "stubborn"
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
with ControllerLock.acquire(state, LockInfo.of_this_process(control_socket=state / "control.sock")):
    print("holding", flush=True)
    signal.sigwait([signal.SIGTERM])
    if stubborn:
        print("asked", flush=True)
        signal.sigwait([signal.SIGUSR1])
"""


@pytest.fixture
def settings(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(short_path)
    return made


@pytest.fixture
def held(settings: Settings) -> Iterator[Settings]:
    """A lock that says: a controller runs, and its address is known."""
    info = LockInfo.of_this_process(control_socket=settings.control_socket, address="http://127.0.0.1:9")
    with ControllerLock.acquire(settings.state_dir, info):
        yield settings


def holder(settings: Settings, kind: str) -> subprocess.Popen[str]:
    """Another process that holds the lock until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(settings.state_dir), kind], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


# --- stop -----------------------------------------------------------------------------------------------------------


def test_stop_with_nothing_to_stop_is_no_error(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 0
    assert capfd.readouterr().out == "controller: not running\n"


def test_stop_ends_the_process_of_the_lock_and_waits_for_it(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    process = holder(settings, "obedient")

    assert main(["stop"]) == 0

    assert read_lock(settings.state_dir) is None
    assert process.wait(10) == 0
    assert capfd.readouterr().out == "stopped\n"
    assert process.stdout is not None
    process.stdout.close()


def test_stop_says_so_if_the_controller_does_not_end(settings: Settings) -> None:
    process = holder(settings, "stubborn")

    with pytest.raises(CommandEnds, match=rf"process {process.pid}\) did not stop within 0.1 s") as end:
        stop_controller(settings.state_dir, limit_s=0.1, entropy=SystemEntropy())

    assert end.value.code == 1
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(10) == 0
    process.stdout.close()


def test_stop_never_signals_a_process_that_only_inherited_the_number(settings: Settings) -> None:
    # The lock names us, but with the start time of somebody else: a SIGTERM would end this test run.
    info = LockInfo(pid=os.getpid(), start_time=1, control_socket=str(settings.control_socket))

    with ControllerLock.acquire(settings.state_dir, info), pytest.raises(CommandEnds, match="did not stop"):
        stop_controller(settings.state_dir, limit_s=0.05, entropy=SystemEntropy())


# --- status and sessions --------------------------------------------------------------------------------------------


def test_status_without_a_controller_starts_none(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["control", "status"]) == 0
    assert capfd.readouterr().out == "controller: not running\n"
    assert list(settings.state_dir.iterdir()) == []


def test_status_counts_the_sessions_of_all_pages(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    first = {"items": [session_json()] * 200, "limit": 200, "offset": 0, "hasMore": True}
    second = {"items": [session_json()], "limit": 200, "offset": 200, "hasMore": False}
    with canned(held.control_socket, answer(200, first, seen), answer(200, second, seen)):
        assert main(["control", "status"]) == 0

    assert capfd.readouterr().out == "controller: running\naddress: http://127.0.0.1:9\nsessions: 201\n"
    assert seen[1] == "GET /api/v1/sessions?limit=200&offset=200 HTTP/1.1"


def test_status_of_a_controller_that_does_not_answer_is_still_running(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["control", "status"]) == 0
    assert "controller: running\n" in (out := capfd.readouterr().out)
    assert "sessions: unknown (" in out


@pytest.mark.parametrize(
    "command",
    [
        ["list"], ["open", "."], ["show", SESSION], ["attach", SESSION], ["stop", SESSION],
        ["delete", "--yes", SESSION], ["continue", SESSION], ["continue", SESSION, "--request", SESSION],
        ["abandon", SESSION],
    ],
)  # fmt: skip
def test_sessions_need_a_running_controller(
    settings: Settings, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", *command]) == 5
    out, err = capfd.readouterr()
    assert out == ""
    assert "start one with: peen run" in err


def test_open_tells_the_session_on_one_line(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    with canned(held.control_socket, opened()):
        assert main(["session", "open", "work"]) == 0
    assert capfd.readouterr().out == f"{SESSION}\t/work\tcreated=false\n"


def test_open_of_a_forbidden_directory_names_the_remedy(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    refusal = answer(403, {"code": "WORKSPACE_NOT_ALLOWED", "message": "no"})
    with canned(held.control_socket, refusal):
        assert main(["session", "open", "/etc"]) == 2
    assert "workspace /etc is outside the PEEN_WORKSPACE_ROOT" in capfd.readouterr().err


def test_open_of_a_missing_directory_says_so_also_outside_the_root(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    refusal = answer(403, {"code": "WORKSPACE_NOT_ALLOWED", "message": "no"})
    with canned(held.control_socket, refusal):
        assert main(["session", "open", "/nonexist"]) == 2
    assert capfd.readouterr().err == "peen: the directory /nonexist does not exist (403 WORKSPACE_NOT_ALLOWED)\n"


def test_open_of_a_directory_that_holds_what_peen_keeps_says_so(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    refusal = answer(403, {"code": "WORKSPACE_NOT_ALLOWED", "message": "no"})
    with canned(held.control_socket, refusal):
        assert main(["session", "open", str(held.state_dir.parent)]) == 2
    assert f"it holds {held.state_dir} and {held.config_dir}, where Peen keeps its own" in capfd.readouterr().err


def test_list_is_one_line_a_session(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    page = {"items": [session_json(), session_json(workspace="/odd\nname")], "limit": 50, "offset": 0, "hasMore": False}
    with canned(held.control_socket, answer(200, page)):
        assert main(["session", "list"]) == 0
    assert capfd.readouterr().out == f"{SESSION}\t/work\tup/model\n{SESSION}\t/odd name\tup/model\n"


def test_an_unknown_session_is_refused_with_status_and_code(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    refusal = answer(404, {"code": "SESSION_NOT_FOUND", "message": "no such session"})
    with canned(held.control_socket, refusal):
        assert main(["session", "show", SESSION]) == 2
    assert capfd.readouterr().err == "peen: 404 SESSION_NOT_FOUND: no such session\n"


@pytest.mark.parametrize("command", ["show", "attach", "stop", "delete", "continue", "abandon"])
def test_what_is_no_session_id_is_not_even_asked_for(
    held: Settings, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", command, "1"]) == 2
    assert "no session id" in capfd.readouterr().err


def test_show_asks_for_session_turns_and_messages(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    empty = {"limit": 10, "offset": 0, "hasMore": False}
    over = [job_json(number, state="exited") for number in range(9, 2, -1)]
    with ExitStack() as stack:
        stack.enter_context(
            canned(
                held.control_socket,
                answer(200, session_json(), seen),
                answer(200, {"turns": [{"new": 2}, {"old": 1}], **empty}, seen),
                answer(200, {"items": [{"later": 2}, {"first": 1}], **empty}, seen),
                answer(200, {"jobs": [job_json(1)], **empty}, seen),
                answer(200, {"jobs": [*over, job_json(2, detached=False), job_json(1)], **empty}, seen),
                answer(200, {"executions": [], "stopRevision": 0, "waiting": [], **empty}, seen),
            )
        )
        assert main(["session", "show", "--json", SESSION]) == 0

    assert [line.split()[1] for line in seen] == [
        "/api/v1/session", "/api/v1/session/turns?limit=10", "/api/v1/messages?limit=20&order=desc",
        "/api/v1/session/jobs?limit=200&state=running", "/api/v1/session/jobs?limit=50",
        "/api/v1/session/executions?limit=200&offset=0",
    ]  # fmt: skip
    document = json.loads(capfd.readouterr().out)
    assert document["turns"] == [{"old": 1}, {"new": 2}]
    assert document["messages"] == [{"first": 1}, {"later": 2}]
    # The last that have ended, and behind them whatever runs; a command that ended in its call is none of them.
    assert [job["jobId"] for job in document["jobs"]] == [job_id(number) for number in (5, 6, 7, 8, 9, 1)]
    assert document["paused"] == []
    assert document["waiting"] == []


def test_a_session_is_readable_with_its_newest_words_last() -> None:
    when = "2026-01-31T12:00:00.000Z"
    found = Session(
        id=SESSION, created_at=when, updated_at=when, message_count=2, completed_turn_count=1, active_turn=False,
        status="paused", pause_reason="shutdown", agent="default", model="up/model", workspace="/w",
        agent_space="control", feed_sequence=9, budget=SessionLimits(cost_usd="2.5", tokens=5000),
        usage=UsedSoFar(prompt=1200, completion=34, billed_cost_amount="0.012", cost_known=False),
    )  # fmt: skip
    turn = Turn(
        id="turn-1", session_id=SESSION, request_id="r", workspace="/w", state="failed", cancel_requested=False,
        started_at=when, failure_classification="agentRun",
        usage=UsedSoFar(prompt=1000, completion=0, billed_cost_amount="0.012", cost_known=True),
    )  # fmt: skip

    def message(role: str, content: str, calls: list[ToolCall] | None = None, *images: Image) -> Message:
        return Message(
            id="m", sequence=1, role=role, content=content, workspace="/w", tool_calls=calls, is_error=role == "tool",  # type: ignore[arg-type]
            incomplete=False, injected=False, images=list(images) or None, turn_id="turn-1", created_at=when,
        )  # fmt: skip

    call = ToolCall(id="c", name="readFile", arguments=Raw(b'{"path":"a"}'))
    seen = Image(media_type="image/png", size_bytes=70, sha256="ab" * 32)
    gone = Image(media_type="image/gif", size_bytes=9, sha256="cd" * 32, refused="too\x1b[31m large")
    newest_first = [
        message("tool", "gone"),
        message("assistant", "", [call]),
        message("user", "line\n" * 14, None, seen, gone),
    ]

    text = readable(found, [turn], newest_first)

    assert "status     paused (shutdown)" in text
    assert "used       1,234 tokens, at least $0.012\nlimit      5,000 tokens, $2.5\n" in text
    assert f"  {when}  failed       turn-1  1,000 tokens, $0.012  agentRun" in text
    assert text.index("user") < text.index('> readFile {"path":"a"}') < text.index("tool, error")
    assert "    … 2 more lines" in text
    assert "    [image image/png, 70 bytes, abababababab]" in text
    assert "    [image image/gif, 9 bytes, cdcdcdcdcdcd, refused: too" in text
    assert "\x1b" not in text


# --- stop and delete ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ran", [True, False])
def test_a_session_is_stopped_by_one_call_and_its_answer_told(
    held: Settings, ran: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, dict[str, str], bytes]] = []

    def accept(connection: socket.socket) -> None:
        asked.append(read_request(connection))
        connection.sendall(http_bytes(202, json.dumps({"cancelRequested": ran}).encode()))

    with canned(held.control_socket, accept):
        assert main(["session", "stop", SESSION]) == 0

    ((first, headers, body),) = asked
    assert (first, body) == ("POST /api/v1/session/cancel HTTP/1.1", b"")
    assert headers["x-session-id"] == SESSION
    assert headers["content-type"] == "application/json"
    assert capfd.readouterr().out == f"{SESSION}\tcancelRequested={str(ran).lower()}\n"


def test_delete_with_yes_asks_nobody(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    with canned(held.control_socket, answer(200, {"deleted": True}, asked)):
        assert main(["session", "delete", "--yes", SESSION]) == 0

    assert asked == [f"DELETE /api/v1/sessions/{SESSION} HTTP/1.1"]
    assert capfd.readouterr().out == f"{SESSION}\tdeleted=true\n"


def test_delete_of_a_running_session_says_how_to_stop_it(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    busy = answer(409, {"code": "SESSION_BUSY", "message": "a turn is running"})
    with canned(held.control_socket, busy):
        assert main(["session", "delete", "--yes", SESSION]) == 2
    assert f"stop it with: peen session stop {SESSION}" in capfd.readouterr().err


def delete_with(typed: bytes | None) -> subprocess.CompletedProcess[str]:
    """`peen session delete` with `typed` on its terminal, or without one."""
    command = [sys.executable, "-m", "peen", "session", "delete", SESSION]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if typed is None:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    ours, theirs = os.openpty()
    try:
        os.write(ours, typed)
        return subprocess.run(command, env=environment, stdin=theirs, capture_output=True, text=True, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)


def test_delete_asks_on_the_terminal_and_names_what_would_go(held: Settings) -> None:
    asked: list[str] = []
    shown = answer(200, session_json(messageCount=7), asked)
    with canned(held.control_socket, shown, answer(200, {"deleted": True}, asked)):
        done = delete_with(b"y\n")

    assert (done.returncode, done.stdout) == (0, f"{SESSION}\tdeleted=true\n")
    assert "Delete the session of /work with 7 messages, for good? [y/N]" in done.stderr
    assert [line.split()[0] for line in asked] == ["GET", "DELETE"]


def test_delete_without_a_yes_deletes_nothing(held: Settings) -> None:
    with canned(held.control_socket, answer(200, session_json())):
        done = delete_with(b"\n")

    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was deleted" in done.stderr


def test_delete_without_a_terminal_needs_yes(held: Settings) -> None:
    done = delete_with(None)

    assert (done.returncode, done.stdout) == (2, "")
    assert "add --yes" in done.stderr
