"""The client of the documentation, run as it is, with the daemon killed under it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from crash_kit import command, script, scripted_daemon, sequences, short_directory, wait_for

EXAMPLE = Path(__file__).parents[2] / "harness_examples" / "client.py"
WAITING = "touch started; while [ ! -e go ]; do sleep 0.02; done"
SCRIPT = script({"waits": [[{"text": "one"}], [command(WAITING), {"text": "two"}]]})


def run_example(address: str, workspace: Path, message: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(EXAMPLE), address, str(workspace), message]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_example_client_follows_a_turn_to_its_end() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon:
        example = run_example(daemon.address, daemon.workspace_root, "hello")
        output, _ = example.communicate(timeout=30)

        frames = [json.loads(line) for line in output.splitlines()]
        assert example.returncode == 0, output
        assert sequences(frames) == list(range(1, len(frames)))
        assert [frame["type"] for frame in frames[-2:]] == ["turn.completed", "message.completed"]


def test_the_example_client_sees_every_frame_once_over_a_crash_of_the_daemon() -> None:
    with short_directory() as home:
        fixed = {"PEEN_HTTP_LISTEN_ADDRESS": f"127.0.0.1:{free_port()}"}
        daemon = scripted_daemon(home, SCRIPT, fixed).start()
        first = run_example(daemon.address, daemon.workspace_root, "hello")
        first.communicate(timeout=30)
        example = run_example(daemon.address, daemon.workspace_root, "work")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")

        daemon.kill()
        with daemon.start():
            output, _ = example.communicate(timeout=30)
            frames = [json.loads(line) for line in output.splitlines()]

        assert example.returncode == 1, output  # the turn was interrupted, and the resend says so
        seen = sequences(frames)
        assert seen == list(range(seen[0], seen[0] + len(seen)))
        assert [frame["type"] for frame in frames[-2:]] == ["turn.failed", "message.failed"]
        assert frames[-1]["data"]["reason"] == "interrupted"


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
