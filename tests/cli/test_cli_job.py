"""`peen job`, and `peen session stop --jobs`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_canned import (
    SESSION,
    Handler,
    answer,
    canned,
    environment_in,
    http_bytes,
    job_id,
    job_json,
    read_request,
    settings_in,
)

from peen.cli import job
from peen.cli.main import main
from peen.control.lock import ControllerLock, LockInfo
from peen.settings import Settings

PAGE = {"limit": 200, "offset": 0, "hasMore": False}


@pytest.fixture
def held(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A lock that says: a controller runs."""
    settings = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(short_path)
    info = LockInfo.of_this_process(control_socket=settings.control_socket, address="http://127.0.0.1:9")
    with ControllerLock.acquire(settings.state_dir, info):
        yield settings


def line(sequence: int, content: str, **changed: Any) -> dict[str, Any]:
    return {
        "id": "i", "sessionId": SESSION, "jobId": job_id(1), "sequence": sequence, "stream": "stdout",
        "content": content, "createdAt": "2026-01-31T12:00:00.000Z", **changed,
    }  # fmt: skip


def output(state: str, cursor: int, *lines: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"jobId": job_id(1), "state": state, "lines": list(lines), "nextCursor": cursor, "hasMore": more}


def signal(asked: list[tuple[str, Any]], number: int, *, signalled: bool = True) -> Handler:
    """Takes a signal for a job."""

    def handle(connection: socket.socket) -> None:
        first, _, body = read_request(connection)
        asked.append((first.split()[1], json.loads(body)))
        told = {"jobId": job_id(number), "signalled": signalled, "state": "running"}
        connection.sendall(http_bytes(202, json.dumps(told).encode()))

    return handle


def test_jobs_are_a_line_each_with_the_newest_last(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    over = job_json(1, state="exited", exitCode=2, durationMs=1500)
    with canned(held.control_socket, answer(200, {"jobs": [job_json(2), over], **PAGE}, seen)):
        assert main(["job", "list", SESSION]) == 0

    assert capfd.readouterr().out.splitlines() == [
        f"{job_id(1)}\texited 2\t1.5s\ttest\tmake test",
        f"{job_id(2)}\trunning\t1m30s\ttest\tmake test",
    ]
    assert seen[0].split()[1] == "/api/v1/session/jobs?limit=200"


def test_jobs_are_listed_by_state_and_for_programs(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    with canned(held.control_socket, answer(200, {"jobs": [job_json(2)], **PAGE}, seen)):
        assert main(["job", "list", SESSION, "--state", "running", "--json"]) == 0

    assert json.loads(capfd.readouterr().out)["jobs"] == [job_json(2)]
    assert seen[0].split()[1] == "/api/v1/session/jobs?limit=200&state=running"


def test_output_is_printed_byte_for_byte_each_stream_to_its_own(
    held: Settings, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    raw = b64encode(b"\xff\0").decode()
    pages = [
        output("running", 2, line(1, "one"), line(2, "tw", continued=True), more=True),
        output("running", 4, line(3, "o"), line(4, raw, stream="stderr", encoding="base64")),
    ]
    seen: list[str] = []
    with canned(held.control_socket, *(answer(200, page, seen) for page in pages)):
        assert main(["job", "output", SESSION, job_id(1)]) == 0

    assert capfdbinary.readouterr() == (b"one\ntwo\n", b"\xff\0\n")
    path = f"/api/v1/session/jobs/{job_id(1)}/output"
    assert [each.split()[1] for each in seen] == [f"{path}?cursor={cursor}&limit=2000&stream=both" for cursor in (0, 2)]


def test_following_ends_with_the_job(
    held: Settings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "LOOK_S", 0.0)
    pages = [
        output("running", 0),
        output("running", 1, line(1, "one")),
        output("exited", 2, line(2, "two"), more=True),
        output("exited", 3, line(3, "three")),
    ]
    with canned(held.control_socket, *(answer(200, page) for page in pages)):
        assert main(["job", "output", "-f", "--stream", "stdout", SESSION, job_id(1)]) == 0

    assert capfd.readouterr().out == "one\ntwo\nthree\n"


@pytest.mark.parametrize(("words", "sent"), [((), "stop"), (("stop",), "stop"), (("kill",), "kill")])
def test_a_signal_is_sent_and_its_answer_told(
    held: Settings, words: tuple[str, ...], sent: str, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, Any]] = []
    with canned(held.control_socket, signal(asked, 1)):
        assert main(["job", "signal", SESSION, job_id(1), *words]) == 0

    assert asked == [(f"/api/v1/session/jobs/{job_id(1)}/signal", {"signal": sent})]
    assert capfd.readouterr().out == f"{job_id(1)}\tsignalled=true\trunning\n"


@pytest.mark.parametrize("command", ["output", "signal"])
def test_what_is_no_id_is_not_even_asked_for(held: Settings, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["job", command, SESSION, "1"]) == 2
    assert f"no job id; peen job list {SESSION} shows them" in capfd.readouterr().err
    assert main(["job", command, "1", job_id(1)]) == 2
    assert "no session id" in capfd.readouterr().err


def test_an_unknown_job_is_refused(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    refusal = answer(404, {"code": "NOT_FOUND", "message": "the session has no such job"})
    with canned(held.control_socket, refusal):
        assert main(["job", "output", SESSION, job_id(1)]) == 2
    assert capfd.readouterr().err.startswith("peen: 404 NOT_FOUND: the session has no such job")


def test_stop_ends_background_commands_only_if_that_is_asked_for(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, Any]] = []
    running = [job_json(3), job_json(2, detached=False), job_json(1)]
    with canned(
        held.control_socket,
        answer(202, {"cancelRequested": True}),
        answer(200, {"jobs": running, **PAGE}),
        signal(asked, 1, signalled=False),
        signal(asked, 3),
    ):
        assert main(["session", "stop", "--jobs", SESSION]) == 0

    assert [path for path, _ in asked] == [f"/api/v1/session/jobs/{job_id(number)}/signal" for number in (1, 3)]
    assert capfd.readouterr().out == f"{SESSION}\tcancelRequested=true\n{job_id(3)}\tsignalled=true\n"


PRINTING = {
    "list": (["job", "list", SESSION], {"jobs": [job_json(2)], **PAGE}),
    "list --json": (["job", "list", SESSION, "--json"], {"jobs": [job_json(2)], **PAGE}),
    "output": (["job", "output", SESSION, job_id(1)], output("exited", 1, line(1, "one"))),
    "error": (["job", "output", SESSION, job_id(1)], output("exited", 1, line(1, "one", stream="stderr"))),
}


def printing(
    held: Settings, words: list[str], page: dict[str, Any], **streams: Any
) -> subprocess.CompletedProcess[str]:
    """`peen` as a process of its own, on a controller that answers once."""
    with canned(held.control_socket, answer(200, page)):
        return subprocess.run(
            [sys.executable, "-m", "peen", *words],
            stdout=streams.get("stdout", subprocess.PIPE),
            stderr=streams.get("stderr", subprocess.PIPE),
            text=True,
            timeout=60,
        )


@pytest.mark.parametrize("words", ["list", "list --json", "output"])
def test_a_full_disk_behind_standard_output_is_named_and_nothing_else_is(held: Settings, words: str) -> None:
    with open("/dev/full", "wb") as full:
        process = printing(held, *PRINTING[words], stdout=full)

    assert (process.returncode, process.stderr) == (1, "peen: standard output: No space left on device\n")


def test_a_full_disk_behind_standard_error_is_a_failure(held: Settings) -> None:
    with open("/dev/full", "wb") as full:
        assert printing(held, *PRINTING["error"], stderr=full).returncode == 1


@pytest.mark.parametrize("words", ["list", "list --json", "output"])
def test_a_reader_that_has_seen_enough_is_no_failure(held: Settings, words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    process = printing(held, *PRINTING[words], stdout=write)
    os.close(write)

    assert (process.returncode, process.stderr) == (0, "")


def test_what_is_not_stored_is_told_behind_what_is(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    page = output("running", 1, line(1, "one")) | {"outputMissing": "behind number 1: a reason", "unstoredBytes": 30}
    with canned(held.control_socket, answer(200, page)):
        assert main(["job", "output", SESSION, job_id(1)]) == 0

    assert capfd.readouterr() == ("one\n", "peen: behind number 1: a reason; 30 bytes are missing\n")


def test_every_command_prints_in_one_place() -> None:
    """Else a full disk would be blamed on the state directory, and a reader that has gone would be an error."""
    package = Path(job.__file__).parent
    printing = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"click\.s?echo\(|\bprint\((?!.*file=sys\.stderr)|sys\.stdout\.(write|buffer)", path.read_text())
    }

    assert printing == {"streams.py"}
