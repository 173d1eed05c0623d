"""`peen exec` as a process of its own: signals, time limits, controllers that die, readers that do not read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crash_kit import (
    PATIENCE_S,
    Client,
    alive,
    command,
    descendants,
    script,
    scripted_daemon,
    short_directory,
    wait_for,
)

from peen.cli.host import HELD_BYTES
from peen.testing.daemon import Daemon

ROOT = Path(__file__).parents[2]
LARGE_ROUNDS, LARGE_CHARACTERS = 24, 500_000  # in all more than any waiting reader is kept
WAITING = "echo $PPID > worker; touch started; while [ ! -e go ]; do sleep 0.02; done"
SCRIPT = script(
    {
        "answers": [[{"text": "hello again"}]],
        "waits": [
            [
                {"text": "First.", **command(WAITING)},
                {"text": "done"},
            ]
        ],
        "fails": [[{"fault": {"kind": "status", "status": 400, "message": "no luck"}}]],
        "floods": [
            [
                {"text": "x" * LARGE_CHARACTERS, "repeat": LARGE_ROUNDS, **command("true")},
                command("touch flooded"),
                {"text": "the end"},
            ]
        ],
    }
)  # fmt: skip


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Exec:
    """`peen exec` in the directories of a daemon, which may be running or not.

    With `workspace` it runs there, and a controller of its own serves nothing else.
    """

    def __init__(self, daemon: Daemon, *arguments: str, workspace: Path | None = None) -> None:
        self.workspace = daemon.workspace_root if workspace is None else workspace
        root = {} if workspace is None else {"PEEN_WORKSPACE_ROOT": str(workspace)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peen", "exec", *arguments],
            cwd=self.workspace,
            env={**daemon.environment, "PYTHONPATH": str(ROOT), **root},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_file(self, name: str) -> None:
        wait_for((self.workspace / name).exists, f"the turn to make {name}")

    def interrupt(self) -> Ended:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Ended:
        """Wait for the end. What people read is lines of ours, never a traceback."""
        out, err = self.process.communicate(timeout=2 * PATIENCE_S)
        assert all(line.startswith("peen: ") for line in err.splitlines()), err
        return Ended(self.process.returncode, out, err)


@contextmanager
def idle_world() -> Iterator[Daemon]:
    """Directories and models of a daemon that is not running."""
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT)
        daemon.config_dir.mkdir(mode=0o700)
        yield daemon


@contextmanager
def world() -> Iterator[Daemon]:
    with idle_world() as daemon, daemon:
        yield daemon


def run(daemon: Daemon, *arguments: str) -> Ended:
    return Exec(daemon, *arguments).end()


def turns(daemon: Daemon) -> list[str]:
    """States of the turns of the only session, the newest first."""
    with Client(daemon) as client:
        found = client.get("/session/turns", session_of(client))["turns"]
    return [turn["state"] for turn in found]


def session_of(client: Client) -> str:
    (found,) = client.http.get("/sessions").json()["items"]
    session_id: str = found["id"]
    return session_id


def frames_of(out: str) -> list[dict[str, Any]]:
    """The lines of --stream-json, each of which must be a whole document."""
    assert out == "" or out.endswith("\n")
    return [json.loads(line) for line in out.splitlines()]


# --- SIGINT and --timeout -------------------------------------------------------------------------------------------


def test_sigint_stops_the_own_controller_in_order_and_the_turn_is_kept() -> None:
    with idle_world() as daemon:
        turn = Exec(daemon, "-m", "scripted/waits", "go")
        turn.until_file("started")
        below = descendants(turn.process.pid)
        assert len(below) >= 3  # fork server, worker, shell

        ended = turn.interrupt()

        assert (ended.code, ended.out) == (130, "")
        assert "interrupted" in ended.err
        wait_for(lambda: not any(map(alive, below)), "everything below it to end", within_s=5)
        with daemon:
            assert turns(daemon) == ["interrupted"]
            assert run(daemon, "-m", "scripted/answers", "again").code == 0


def test_sigint_stops_the_borrowed_turn_first() -> None:
    with world() as daemon:
        turn = Exec(daemon, "--stream-json", "-m", "scripted/waits", "go")
        turn.until_file("started")

        ended = turn.interrupt()

        assert ended.code == 130
        assert "the turn was cancelled: interrupted" in ended.err
        assert turns(daemon) == ["cancelled"]
        with Client(daemon) as client:
            replayed = client.replay(session_of(client))
        assert replayed[-1]["type"] == "turn.cancelled"
        assert [frame for frame in frames_of(ended.out) if "sequence" in frame["metadata"]] == replayed


def test_sigint_leaves_a_turn_alone_that_the_message_only_joined() -> None:
    with world() as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        opener = client.send(session, "go", model="scripted/waits")
        wait_for((daemon.workspace_root / "started").exists, "the turn to begin")
        guest = Exec(daemon, "and this")
        client.until_type("userMessage.queued")
        client.until(lambda frame: frame["type"] == "message.completed")

        ended = guest.interrupt()

        assert (ended.code, ended.out) == (130, "")
        assert "goes on in the running controller" in ended.err
        assert client.get("/session", session)["activeTurn"] is True
        (daemon.workspace_root / "go").touch()
        assert client.answered(opener)[-1]["type"] == "message.completed"


def test_the_end_of_the_time_limit_interrupts_the_own_turn() -> None:
    with idle_world() as daemon:
        turn = Exec(daemon, "--json", "--timeout", "6s", "-m", "scripted/waits", "go")
        turn.until_file("started")

        ended = turn.end()

        assert (ended.code, json.loads(ended.out)["state"]) == (4, "interrupted")
        assert "--timeout is over" in ended.err
        with daemon:
            assert turns(daemon) == ["interrupted"]


def test_the_end_of_the_time_limit_stops_the_borrowed_turn() -> None:
    with world() as daemon:
        turn = Exec(daemon, "--json", "--timeout", "6s", "-m", "scripted/waits", "go")
        turn.until_file("started")

        ended = turn.end()

        assert (ended.code, json.loads(ended.out)["state"]) == (4, "cancelled")
        assert "--timeout is over" in ended.err
        assert turns(daemon) == ["cancelled"]


# --- a controller that dies -----------------------------------------------------------------------------------------


def test_a_controller_that_dies_under_a_turn_and_comes_back_tells_how_it_ended() -> None:
    with world() as daemon:
        turn = Exec(daemon, "-m", "scripted/waits", "go")
        turn.until_file("started")

        daemon.kill()
        daemon.start()
        ended = turn.end()

        assert (ended.code, ended.out) == (4, "")
        assert "the turn was interrupted" in ended.err
        assert turns(daemon) == ["interrupted"]


def test_a_controller_that_dies_before_it_reads_the_message_leaves_it_to_the_next() -> None:
    with world() as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        turn = Exec(daemon, "-m", "scripted/answers", "hello")
        wait_for(lambda: is_connected(turn.process.pid), "the command to connect")

        daemon.kill()

        assert turn.end()[:2] == (0, "hello again\n")
        with daemon:
            assert turns(daemon) == ["completed"]


def is_connected(pid: int) -> bool:
    """Whether the process has a socket. One that closes a file meanwhile is looked at again."""
    place = Path(f"/proc/{pid}/fd")
    try:
        return any(os.readlink(path).startswith("socket:") for path in list(place.iterdir()))
    except FileNotFoundError:
        return False


# --- several at once ------------------------------------------------------------------------------------------------


def siblings(daemon: Daemon, count: int) -> list[Path]:
    """Directories side by side, none of which holds another."""
    made = [daemon.home / f"e{number}" for number in range(count)]
    for path in made:
        path.mkdir()
    return made


def test_commands_in_sibling_directories_that_start_at_once_all_complete() -> None:
    with idle_world() as daemon:
        execs = [Exec(daemon, "-m", "scripted/answers", "hello", workspace=path) for path in siblings(daemon, 6)]

        ended = [turn.end() for turn in execs]

        assert [(one.code, one.out) for one in ended] == [(0, "hello again\n")] * len(execs)
        assert all(one.err.count("waiting for its end") <= 1 for one in ended)


def test_a_command_waits_for_one_that_serves_other_directories_and_leaves_it_alone() -> None:
    with idle_world() as daemon:
        here, there, elsewhere = siblings(daemon, 3)
        first = Exec(daemon, "-m", "scripted/waits", "go", workspace=here)
        first.until_file("started")

        late = Exec(daemon, "--timeout", "2s", "-m", "scripted/answers", "hello", workspace=there).end()
        waits = Exec(daemon, "-m", "scripted/answers", "hello", workspace=elsewhere)
        left = Exec(daemon, "-m", "scripted/answers", "hello", workspace=there)
        assert waits.process.stderr is not None
        assert left.process.stderr is not None
        assert "waiting for its end" in left.process.stderr.readline()
        assert "waiting for its end" in waits.process.stderr.readline()
        interrupted = left.interrupt()
        (here / "go").touch()

        assert (late.code, late.out) == (4, "")
        assert "nothing was sent" in late.err
        assert interrupted == (130, "", "peen: interrupted; nothing was sent\n")
        assert first.end().code == 0
        assert waits.end() == (0, "hello again\n", "")


def test_an_answer_that_cannot_be_written_is_a_failure_of_the_command_alone() -> None:
    with idle_world() as daemon:
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "peen", "exec", "-m", "scripted/answers", "hello"],
                cwd=daemon.workspace_root, env={**daemon.environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S,
            )  # fmt: skip

        assert done.returncode == 1
        assert "No space left on device; the answer is stored" in done.stderr
        with daemon:
            assert turns(daemon) == ["completed"]


# --- exit codes -----------------------------------------------------------------------------------------------------


def test_every_end_has_its_exit_code_and_only_an_answer_is_standard_output() -> None:
    with world() as daemon:
        assert run(daemon, "-m", "scripted/answers", "hello") == (0, "hello again\n", "")
        failed = run(daemon, "-m", "scripted/fails", "hello")
        assert (failed.code, failed.out) == (1, "")
        assert "no luck" in failed.err
        refused = run(daemon, "-m", "scripted/nobody", "hello")
        assert (refused.code, refused.out) == (2, "")
        assert "nothing was stored" in refused.err
        outside = run(daemon, "-w", "/usr", "hello")
        assert (outside.code, outside.out) == (2, "")
        assert "PEEN_WORKSPACE_ROOT" in outside.err

        turn = Exec(daemon, "-m", "scripted/waits", "go")
        turn.until_file("started")
        with Client(daemon) as client:
            session = session_of(client)
            peen(daemon, "session", "stop", session)
        cancelled = turn.end()
        assert (cancelled.code, cancelled.out) == (3, "")

        (daemon.workspace_root / "started").unlink()
        turn = Exec(daemon, "-m", "scripted/waits", "go")
        turn.until_file("started")
        os.kill(int((daemon.workspace_root / "worker").read_text()), signal.SIGKILL)
        interrupted = turn.end()
        assert (interrupted.code, interrupted.out) == (4, "")


def peen(daemon: Daemon, *arguments: str) -> str:
    """Another command of the program; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "peen", *arguments],
        cwd=daemon.workspace_root, env={**daemon.environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    return done.stdout


def test_without_any_controller_the_exit_code_is_five() -> None:
    with idle_world() as daemon:
        daemon.state_dir.mkdir(mode=0o700)
        (daemon.state_dir / "peen.db").write_bytes(b"this is no database" * 1000)

        ended = run(daemon, "hello")

        assert (ended.code, ended.out) == (5, "")
        assert "peen.db" in ended.err


# --- watching -------------------------------------------------------------------------------------------------------


def test_a_watched_session_is_shown_without_a_gap_over_the_death_of_its_controller() -> None:
    with world() as daemon:
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
        shown = daemon.home / "shown"
        with shown.open("wb") as out:
            watch = subprocess.Popen(
                [sys.executable, "-m", "peen", "session", "attach", session],
                cwd=daemon.workspace_root, env={**daemon.environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        with Client(daemon) as client:
            # Until the watch is connected, what happens is before it.
            wait_for(lambda: bool(client.ask(session, "hello", model="scripted/answers")) and shown.stat().st_size > 0,
                     "the watch to begin")  # fmt: skip
        daemon.kill()
        daemon.start()
        with Client(daemon) as client:
            client.ask(session, "again", model="scripted/answers")
            replayed = [f"{frame['type']}\t{json.dumps(frame['data'])}" for frame in client.replay(session)]
        wait_for(lambda: stored_lines(shown)[-1:] == replayed[-1:], "the watch to show the last frame")

        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=PATIENCE_S)

        assert watch.returncode == 0
        assert all(line.startswith("peen: ") for line in err.splitlines()), err
        lines = stored_lines(shown)
        assert len(lines) > 8
        assert lines == replayed[-len(lines) :]


def stored_lines(shown: Path) -> list[str]:
    """The whole lines of a watch that stand in the feed, their JSON in our own spelling."""
    pairs = [line.partition("\t") for line in shown.read_text().split("\n")[:-1]]
    return [f"{kind}\t{json.dumps(json.loads(data))}" for kind, _, data in pairs if not kind.startswith("message.")]


# --- readers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_borrowed", [False, True], ids=["own", "borrowed"])
def test_a_reader_that_has_gone_does_not_end_the_turn(is_borrowed: bool) -> None:
    with world() if is_borrowed else idle_world() as daemon:
        turn = Exec(daemon, "--stream-json", "-m", "scripted/waits", "go")
        assert turn.process.stdout is not None
        turn.process.stdout.close()
        turn.until_file("started")
        (daemon.workspace_root / "go").touch()

        assert turn.process.wait(2 * PATIENCE_S) == 0
        assert turn.process.stderr is not None
        with turn.process.stderr as errors:
            assert errors.read() == ""
        with daemon:
            assert turns(daemon) == ["completed"]


@pytest.mark.parametrize("is_borrowed", [False, True], ids=["own", "borrowed"])
def test_a_reader_that_falls_behind_gets_every_frame_from_the_feed(is_borrowed: bool) -> None:
    with world() if is_borrowed else idle_world() as daemon:
        turn = Exec(daemon, "--stream-json", "-m", "scripted/floods", "go")
        turn.until_file("flooded")  # and nothing was read so far

        ended = turn.end()

        assert (ended.code, ended.err) == (0, "")
        frames = frames_of(ended.out)
        assert len(ended.out) > LARGE_ROUNDS * LARGE_CHARACTERS > HELD_BYTES
        assert ("client dropped" in daemon.output()) is is_borrowed
        got = [frame["metadata"]["sequence"] for frame in frames if "sequence" in frame["metadata"]]
        assert got == list(range(1, len(got) + 1))
        assert [frame["type"] for frame in frames[-2:]] == ["turn.completed", "message.completed"]
        assert frames[-2]["data"]["text"] == "the end"
