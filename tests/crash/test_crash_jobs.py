"""Commands that outlive their call: they go on past turns and Stops, and nothing else; each end is told once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_kit import Client, alive, children, command, descendants, script, scripted_daemon, short_directory, wait_for

from peen.testing.daemon import Daemon

ROOT = Path(__file__).parents[2]
# Of the last one nothing tells whose it is but its brand: no environment, session, output or parent.
JOB = (
    "echo $PPID > worker; trap '' TERM; setsid sh -c 'echo $$ > left; exec sleep 100' & "
    "(env -i setsid sh -c 'echo $$ > escaped; exec sleep 100' </dev/null >/dev/null 2>&1 &); "
    "echo up; echo $$ > job; wait"
)
PARTS = ("job", "left", "escaped")


def background(text: str, **arguments: Any) -> dict[str, Any]:
    given = {"command": text, "purpose": "a job", "background": True, **arguments}
    return {"calls": [{"name": "runCommand", "arguments": given}]}


WAITS = "echo $$ > shell; setsid sh -c 'trap \"\" TERM; echo $$ > wait; exec sleep 100' & wait"
SCRIPT = script(
    {
        "starts": [[background(JOB), {"text": "started"}]],
        "startsAndWaits": [[background(JOB), command(WAITS), {"text": "never"}]],
        "short": [[background("while [ ! -e go ]; do sleep 0.02; done; echo done; exit 3"), {"text": "started"}]],
        "outlives": [
            [
                {"calls": [{"name": "runCommand", "arguments": {"command": JOB, "purpose": "p", "timeout": "300ms"}}]},
                {"text": "it goes on"},
            ]
        ],
        "front": [[command(JOB), {"text": "never"}]],
        "answers": [[{"text": "hello"}]],
    }
)


def number_in(daemon: Daemon, name: str) -> int:
    path = daemon.workspace_root / name
    wait_for(lambda: path.exists() and path.read_text().strip() != "", f"{name} to be written")
    return int(path.read_text())


def start(daemon: Daemon, client: Client, model: str = "starts") -> tuple[str, str, list[int]]:
    """Session, job, and the pids of what belongs to it. The call of model `front` does not return."""
    session, returns = client.open(daemon.workspace_root), model != "front"
    frame = client.send(session, "go", model=f"scripted/{model}")
    assert not returns or client.answered(frame)[-1]["type"] == "message.completed"
    pids = [number_in(daemon, name) for name in PARTS]
    wait_for(lambda: job_of(client, session)["pid"] != 0, "the pid to be stored")
    (found,) = client.get("/session/jobs", session)["jobs"]
    assert (found["state"], found["detached"], found["pid"]) == ("running", returns, pids[0])
    return session, found["jobId"], pids


def job_notices(client: Client, session: str) -> list[dict[str, Any]]:
    shown = client.get("/session/notices", session)["notices"]
    return [notice for notice in shown if notice["type"].startswith("job.")]


def worker_states(client: Client, session: str) -> list[str]:
    return [worker["state"] for worker in client.get("/session/workers", session)["items"]]


def job_of(client: Client, session: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/session/jobs", session)["jobs"][0]
    return found


def kill_worker(daemon: Daemon) -> None:
    os.kill(number_in(daemon, "worker"), signal.SIGKILL)


def kill_controller(daemon: Daemon) -> None:
    daemon.kill()


def kill_everything(daemon: Daemon) -> None:
    """Controller, fork server and worker in one moment; the job itself lives on, until the sweep."""
    worker, below = number_in(daemon, "worker"), descendants(daemon.pid)
    jobs = {number_in(daemon, name) for name in PARTS}
    kill_at_once([daemon.pid, *(below - jobs - descendants(worker))])
    daemon.kill()
    assert alive(number_in(daemon, "escaped"))


def kill_fork_server_and_worker(daemon: Daemon) -> None:
    """The controller lives on, and is told nothing of what either had below it."""
    worker = number_in(daemon, "worker")
    (fork_server,) = (pid for pid in children(daemon.pid) if worker in descendants(pid))
    kill_at_once([fork_server, worker])


def kill_at_once(pids: list[int]) -> None:
    """None of them sees the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


CRASHES = [kill_worker, kill_fork_server_and_worker, kill_controller, kill_everything]
WITHOUT_CONTROLLER = [kill_controller, kill_everything]


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("model", ["starts", "outlives", "front"])
def test_a_job_that_a_crash_ended_is_told_as_failed_exactly_once(crash: Callable[[Daemon], None], model: str) -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session, job_id, pids = start(daemon, client, model)
            wait_for(lambda: job_of(client, session)["lines"] > 0, "output to be stored")
            crash(daemon)
            if crash not in WITHOUT_CONTROLLER:
                wait_for(lambda: job_notices(client, session) != [], "the end to be told")
        if crash in WITHOUT_CONTROLLER:
            daemon.start()
        with daemon, Client(daemon) as client:
            assert not any(map(alive, pids))
            job = job_of(client, session)
            assert (job["state"], job["exitCode"]) == ("interrupted", -1)
            (notice,) = job_notices(client, session)
            assert (notice["type"], notice["source"]) == ("job.failed", "tools.job")
            assert notice["data"]["jobId"] == job_id
            assert (notice["data"]["exitCode"], notice["data"]["reason"]) == (-1, "interrupted")
            frames = [item["data"]["id"] for item in client.replay(session) if item["type"] == "notice.created"]
            assert frames.count(notice["id"]) == 1
            lines = client.get(f"/session/jobs/{job_id}/output", session)["lines"]
            assert [line["content"] for line in lines] == ["up"]
            told = client.ask(session, "what happened?", model="scripted/answers")
            delivered = [item for item in told if item["type"] == "session.events"]
            assert [each["id"] for item in delivered for each in item["data"]["notices"]] == [notice["id"]]
            assert len(job_notices(client, session)) == 1


def test_an_orderly_stop_ends_jobs_and_records_how() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT).start()
        with Client(daemon) as client:
            session, _, pids = start(daemon, client)

        assert daemon.stop() == 0

        assert not any(map(alive, pids))
        with daemon.start(), Client(daemon) as client:
            job = job_of(client, session)
            assert (job["state"], job["exitCode"]) == ("signalled", -1)
            assert [notice["type"] for notice in job_notices(client, session)] == ["job.signalled"]


def test_stop_ends_the_foreground_and_leaves_jobs_alone() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "go", model="scripted/startsAndWaits")
        jobs, front = ([number_in(daemon, name) for name in names] for names in (PARTS, ("shell", "wait")))
        began = time.monotonic()

        assert client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={}).status_code == 202
        ended = client.answered(frame)

        assert time.monotonic() - began < 6
        assert "turn.cancelled" in [item["type"] for item in ended]
        assert not any(map(alive, front))
        assert all(map(alive, jobs))
        waiting, job = client.get("/session/jobs", session)["jobs"]
        assert (waiting["state"], waiting["detached"], job["state"]) == ("signalled", False, "running")
        (asked,) = client.get(f"/session/jobs/{waiting['jobId']}/signals", session)["signalRequests"]
        assert (asked["signal"], asked["accepted"]) == ("stop", True)
        assert job_notices(client, session) == []
        answer = client.http.post(
            f"/session/jobs/{job['jobId']}/signal", headers={"X-Session-ID": session}, json={"signal": "kill"}
        )
        assert answer.json()["signalled"] is True
        wait_for(lambda: not any(map(alive, jobs)), "the job to end", within_s=5)
        wait_for(lambda: job_notices(client, session) != [], "its end to be told", within_s=5)
        assert [notice["type"] for notice in job_notices(client, session)] == ["job.signalled"]


def test_a_worker_with_a_live_job_is_not_idle() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_WORKER_IDLE_TIMEOUT": "300ms"})
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.ask(session, "go", model="scripted/short")
            (daemon.workspace_root / "other").mkdir()
            other = client.open(daemon.workspace_root / "other")
            client.ask(other, "hello", model="scripted/answers")
            # This one has been idle for a shorter time, and has no job.
            wait_for(lambda: worker_states(client, other) == ["stopped"], "the other worker to stop")
            assert worker_states(client, session) == ["ready"]

            (daemon.workspace_root / "go").touch()

            client.until_type("notice.created")
            (notice,) = job_notices(client, session)
            assert (notice["type"], notice["data"]["exitCode"]) == ("job.exited", 3)
            wait_for(
                lambda: client.get("/session/workers", session)["items"][0]["state"] == "stopped",
                "the idle worker to stop",
            )
            assert job_of(client, session)["state"] == "exited"


def test_a_job_is_followed_and_ended_from_the_command_line() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:

        def peen(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "peen", *words],
                env={**daemon.environment, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            )
            return done.stdout

        session, job_id, pids = start(daemon, client)
        assert f"{job_id}\trunning\t" in peen("job", "list", session)
        assert f"jobs (1)\n  {job_id}\trunning\t" in peen("session", "show", session)
        deleted = client.http.request("DELETE", f"/sessions/{session}", headers={"content-type": "application/json"})
        assert (deleted.status_code, deleted.json()["code"]) == (409, "SESSION_BUSY")

        assert peen("session", "stop", "--jobs", session).endswith(f"{job_id}\tsignalled=true\n")
        assert peen("job", "signal", session, job_id, "kill").startswith(f"{job_id}\tsignalled=")

        assert peen("job", "output", "-f", session, job_id) == "up\n"
        assert not any(map(alive, pids))
        assert f"{job_id}\tsignalled\t" in peen("job", "list", session)
