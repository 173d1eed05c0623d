"""Processes that leave everything behind which tells whose they are: Stop finds them, and their remains go away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from crash_kit import Client, alive, command, script, scripted_daemon, short_directory, wait_for

SILENT = ">/dev/null 2>&1"
ESCAPING = (
    f"env -i setsid sh -c 'trap \"\" TERM; sleep 78 {SILENT} & echo $! > escaped; exit' {SILENT}; "
    "touch started; sleep 40"
)
COMMANDS = 20
LITTERING = f"(setsid sh -c 'sleep 0.02; (sleep 0.05 &); sleep 0.1 & exit' {SILENT} &); (sleep 0.01 &); true"
LOOKING = "echo $PPID > worker; sleep 0.3"
# Beside a job, and quicker than anybody can look.
WAITING = "while [ ! -e go ]; do sleep 0.02; done; echo gone"
LEAVING = (
    "(env -i setsid sh -c 'echo $$ > left; exec sleep 79' </dev/null >/dev/null 2>&1 &); "
    "while [ ! -s left ]; do :; done"
)


def background(text: str) -> dict[str, Any]:
    return {"calls": [{"name": "runCommand", "arguments": {"command": text, "purpose": "p", "background": True}}]}


SCRIPT = script(
    {
        "escapes": [[command(ESCAPING), {"text": "never"}]],
        "litters": [[*[command(LITTERING)] * COMMANDS, command(LOOKING), {"text": "done"}]],
        "answers": [[{"text": "hello again"}]],
        "leaves": [[background(WAITING), command(LEAVING), command("true"), command("touch go"), {"text": "done"}]],
    }
)
STOP_S = 5.0


def dead_children(pid: int) -> list[str]:
    """Names of the children of a process that have ended and were not collected."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(") ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = rest.split()[:2]
        if (state, int(parent)) == ("Z", pid):
            found.append(name)
    return found


def test_stop_ends_what_has_left_parent_group_session_and_environment() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "go", model="scripted/escapes")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")
        escaped = int((daemon.workspace_root / "escaped").read_text())
        assert alive(escaped)
        began = time.monotonic()

        answer = client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
        frames = client.answered(frame)

        assert answer.status_code == 202
        assert time.monotonic() - began < STOP_S + 1
        assert "turn.cancelled" in [item["type"] for item in frames]
        assert not alive(escaped)
        assert client.ask(session, "again", model="scripted/answers")[-1]["type"] == "message.completed"


def test_a_worker_keeps_no_dead_processes_however_many_its_commands_leave() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)

        assert client.ask(session, "go", model="scripted/litters")[-1]["type"] == "message.completed"

        worker = int((daemon.workspace_root / "worker").read_text())
        assert alive(worker)
        wait_for(lambda: dead_children(worker) == [], "the dead to be collected", within_s=2)


def test_what_one_command_leaves_behind_does_not_keep_another_ones_job_running() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)

        assert client.ask(session, "go", model="scripted/leaves")[-1]["type"] == "message.completed"

        def jobs() -> dict[str, dict[str, Any]]:
            return {job["command"]: job for job in client.get("/session/jobs", session)["jobs"]}

        wait_for(lambda: jobs()[WAITING]["state"] != "running", "the job to end", within_s=5)
        left = int((daemon.workspace_root / "left").read_text())
        assert (jobs()[WAITING]["state"], jobs()[WAITING]["exitCode"]) == ("exited", 0)
        assert (jobs()[LEAVING]["state"], jobs()[LEAVING]["detached"], alive(left)) == ("running", True, True)
        notices = client.get("/session/notices", session)["notices"]
        assert [(each["type"], each["data"]["jobId"]) for each in notices] == [("job.exited", jobs()[WAITING]["jobId"])]

        path = f"/session/jobs/{jobs()[LEAVING]['jobId']}/signal"
        client.http.post(path, headers={"X-Session-ID": session}, json={"signal": "kill"})
        wait_for(lambda: not alive(left), "what was left to end", within_s=5)
