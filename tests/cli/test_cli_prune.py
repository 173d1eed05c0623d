"""`peen prune` against a server that says what the test wrote down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_canned import answer, canned, environment_in, http_bytes, read_request, settings_in

from peen.cli.main import main
from peen.control.lock import ControllerLock, LockInfo
from peen.settings import Settings

ROOT = Path(__file__).parents[2]
PRUNED = {"deleted": 3, "keptPaused": 1, "freedBytes": 8192}
TOLD = "deleted=3\tkeptPaused=1\tfreedBytes=8192\n"


@pytest.fixture
def held(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A lock that says: a controller runs."""
    settings = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    with ControllerLock.acquire(settings.state_dir, LockInfo.of_this_process(control_socket=settings.control_socket)):
        yield settings


def prune_with(typed: bytes | None) -> subprocess.CompletedProcess[str]:
    """`peen prune` with `typed` on its terminal, or without one."""
    command = [sys.executable, "-m", "peen", "prune", "--older-than", "720h"]
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


def test_prune_with_yes_asks_nobody_and_tells_what_was_done(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, bytes]] = []

    def accept(connection: socket.socket) -> None:
        first, _, body = read_request(connection)
        asked.append((first, body))
        connection.sendall(http_bytes(200, json.dumps(PRUNED).encode()))

    with canned(held.control_socket, accept):
        assert main(["prune", "--older-than", "720h", "--yes"]) == 0

    assert asked == [("POST /api/v1/maintenance/prune HTTP/1.1", b'{"olderThan":"720h"}')]
    assert capfd.readouterr().out == TOLD


@pytest.mark.parametrize("age", ["30d", "soon", "0", "-1h"])
def test_what_is_no_length_of_time_is_not_even_asked_for(
    held: Settings, age: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", "--older-than", age, "--yes"]) == 2
    assert "--older-than: " in capfd.readouterr().err


def test_a_refusal_is_told(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    with canned(held.control_socket, answer(507, {"code": "STORAGE_FULL", "message": "the disk is full"})):
        assert main(["prune", "--older-than", "720h", "-y"]) == 2
    assert "STORAGE_FULL: the disk is full" in capfd.readouterr().err


def test_prune_asks_on_the_terminal_and_names_the_age(held: Settings) -> None:
    with canned(held.control_socket, answer(200, PRUNED)):
        done = prune_with(b"y\n")

    assert (done.returncode, done.stdout) == (0, TOLD)
    assert "Delete every session that was not used for 720h0m0s, for good? [y/N]" in done.stderr


def test_prune_without_a_yes_asks_the_controller_for_nothing(held: Settings) -> None:
    done = prune_with(b"\n")

    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was deleted" in done.stderr


def test_prune_without_a_terminal_needs_yes(held: Settings) -> None:
    done = prune_with(None)

    assert (done.returncode, done.stdout) == (2, "")
    assert "add --yes" in done.stderr


def test_prune_needs_a_running_controller(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)

    assert main(["prune", "--older-than", "1h", "--yes"]) == 5
    assert "start one with: peen run" in capfd.readouterr().err
