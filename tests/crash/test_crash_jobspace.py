"""What a command prints never takes the last of the disk, and a limit on it changes nothing about how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from crash_kit import Client, command, script, scripted_daemon, short_directory, wait_for
from disk_kit import fill, tiny_disk

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
ENDLESS = {"calls": [{"name": "runCommand", "arguments": {"command": "yes", "purpose": "p", "timeout": "500ms"}}]}
JOBS = {"calls": [{"name": "listJobs", "arguments": {}}]}
SCRIPT = script(
    {
        "endless": [[ENDLESS, {"text": "it goes on"}]],
        "asks": [[JOBS, command("echo alive"), {"text": "done"}]],
        "prints": [[command("seq 100000; exit 3"), {"text": "done"}]],
    }
)


def jobs(client: Client, session: str) -> list[dict[str, Any]]:
    """Newest first."""
    found: list[dict[str, Any]] = client.get("/session/jobs", session)["jobs"]
    return found


def results(client: Client, session: str) -> list[str]:
    return [str(item["data"]) for item in client.replay(session) if item["type"] == "tool.result"]


def free(directory: Path) -> int:
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize


def test_an_endless_printer_leaves_room_for_everything_else() -> None:
    with short_directory() as home, tiny_disk(home / "state", kib=96 * 1024):
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_LOG_DIRECTORY": str(home / "logs")}).start()
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            assert client.ask(session, "go", model="scripted/endless")[-1]["type"] == "message.completed"
            wait_for(lambda: jobs(client, session)[0]["bytes"] > 0, "output to be stored")
            wait_for(lambda: "outputMissing" in jobs(client, session)[0], "the disk to be found nearly full")
            first = jobs(client, session)[0]
            wait_for(lambda: jobs(client, session)[0]["unstoredBytes"] > first["unstoredBytes"], "more to be missing")

            assert client.ask(session, "and now", model="scripted/asks")[-1]["type"] == "message.completed"

            told, job = jobs(client, session)
            assert (job["state"], job["failureDetail"]) == ("running", "")
            assert job["outputMissing"].startswith(f"what it printed behind number {job['lines']} is not stored: ")
            assert "PEEN_JOB_OUTPUT_MIN_FREE_BYTES" in job["outputMissing"]
            assert (job["lines"], job["bytes"]) == (first["lines"], first["bytes"])
            assert (told["state"], told["exitCode"], told["lines"]) == ("exited", 0, 0)
            assert any("outputMissing" in result for result in results(client, session))
            assert "behind number 0 is not stored" in told["outputMissing"]
            assert any("alive" in result for result in results(client, session))
            assert free(daemon.state_dir) > 8 * MIB

            client.http.post(
                f"/session/jobs/{job['jobId']}/signal", json={"signal": "kill"}, headers={"X-Session-ID": session}
            ).raise_for_status()
            wait_for(lambda: jobs(client, session)[1]["state"] != "running", "the end of it")
            (notice,) = client.get("/session/notices", session)["notices"]
            assert notice["type"] == "job.signalled"
            assert notice["data"]["unstoredBytes"] == jobs(client, session)[1]["unstoredBytes"] > 0
        assert daemon.start().stop() == 0


def test_a_disk_that_others_fill_costs_output_and_not_the_exit_code() -> None:
    own = {"PEEN_JOB_OUTPUT_MIN_FREE_BYTES": "0"}
    slow = "while [ ! -e go ]; do sleep 0.02; done; seq 1000000; exit 3"
    call = {"name": "runCommand", "arguments": {"command": slow, "purpose": "p", "background": True}}
    text = script({"slow": [[{"calls": [call]}, {"text": "it goes on"}]]})
    with short_directory() as home, tiny_disk(home / "state", kib=24 * 1024):
        daemon = scripted_daemon(home, text, {"PEEN_LOG_DIRECTORY": str(home / "logs"), **own}).start()
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            assert client.ask(session, "go", model="scripted/slow")[-1]["type"] == "message.completed"
            fill(daemon.state_dir)
            (daemon.workspace_root / "go").touch()

            wait_for(lambda: jobs(client, session)[0]["state"] != "running", "the end of it")

            (job,) = jobs(client, session)
            assert (job["state"], job["exitCode"], job["failureDetail"]) == ("exited", 3, "")
            assert "the disk of PEEN_STATE_DIR was full" in job["outputMissing"]
            assert job["bytes"] + job["unstoredBytes"] == sum(len(f"{number}\n") for number in range(1, 1_000_001))


def test_a_job_has_a_limit_and_whoever_reads_it_is_told() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_MAX_JOB_OUTPUT_BYTES": "100000"}).start()
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            assert client.ask(session, "go", model="scripted/prints")[-1]["type"] == "message.completed"

            (job,) = jobs(client, session)
            printed = "".join(f"{number}\n" for number in range(1, 100_001))
            stored = printed[:100_000].rpartition("\n")[0] + "\n"
            assert (job["state"], job["exitCode"], job["bytes"]) == ("exited", 3, len(stored))
            assert job["unstoredBytes"] == len(printed) - len(stored)
            assert "PEEN_MAX_JOB_OUTPUT_BYTES" in job["outputMissing"]
            (result,) = results(client, session)
            assert "99999" in result  # the end of it is shown all the same
            assert "Not all of it can be read again: what it printed behind number" in result

            done = subprocess.run(
                [sys.executable, "-m", "peen", "job", "output", session, job["jobId"]],
                cwd=ROOT, env=os.environ | daemon.environment, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (0, stored)
            assert done.stderr == f"peen: {job['outputMissing']}; {job['unstoredBytes']} bytes are missing\n"
