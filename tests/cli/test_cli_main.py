"""`peen` itself: what it imports, how it ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_canned import environment_in
from click.testing import CliRunner

from peen import __version__
from peen.cli.ends import code_of, printable
from peen.cli.main import _COMMANDS, cli, main
from peen.control.lock import ControllerLock, LockInfo
from peen.errors import ConfigurationInvalid, ControllerRunning, SessionBusy, StorageFull

ROOT = Path(__file__).parents[2]
HEAVY = ("trio", "httpx", "quart", "hypercorn", "structlog", "apsw", "anyio", "asyncio")


def peen(*arguments: str, short_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The program as a user runs it, with its directories in `short_path`."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(short_path),
        "PYTHONPATH": str(ROOT),
        **environment_in(short_path),
        **more,
    }
    return subprocess.run(
        [sys.executable, "-m", "peen", *arguments],
        cwd=short_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def imported_after(statement: str, *more: str) -> set[str]:
    """Which of the heavy modules, and of `more`, a fresh interpreter has imported after `statement`."""
    code = f"import sys\n{statement}\nprint(*(name for name in {(*HEAVY, *more)!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_version_is_told_without_importing_anything_heavy(short_path: Path) -> None:
    assert peen("--version", short_path=short_path).stdout == f"peen {__version__}\n"
    assert imported_after("import peen.cli.main") == set()


def test_a_borrowed_turn_imports_nothing_heavy() -> None:
    assert imported_after("import peen.cli.exec, peen.cli.borrow, peen.cli.screen") == set()


@pytest.mark.parametrize("module", ["stop", "session", "sessionend", "attach", "control", "models"])
def test_the_other_short_commands_import_nothing_heavy(module: str) -> None:
    assert imported_after(f"import peen.cli.{module}") == set()


def test_a_controller_of_ones_own_starts_its_fork_server_before_anything_heavy() -> None:
    assert imported_after("import peen.cli.exec, peen.cli.process", "h11", "wsproto") == set()


def test_the_check_of_imports_can_fail() -> None:
    assert imported_after("import trio") == {"trio"}


def test_help_lists_every_command_but_the_hidden_one() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output

    commands = shown.partition("Commands:\n")[2]
    assert [line.split()[0] for line in commands.splitlines()] == [name for name in _COMMANDS if name != "worker"]


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])

    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_wrong_usage_is_exit_two_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == 2
    assert main(["exec", "--json", "--stream-json", "x"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "No such command" in err
    assert "exclude each other" in err


def test_errors_have_the_codes_of_their_kind() -> None:
    assert code_of(ConfigurationInvalid("PEEN_X", "is wrong", example="1")) == 2
    assert code_of(SessionBusy("busy")) == 2
    assert code_of(ControllerRunning(Path("/s/controller.lock"), pid=1)) == 5
    assert code_of(StorageFull("/s/peen.db", "disk full")) == 5


def test_several_wrong_settings_are_a_line_each_without_a_traceback(short_path: Path) -> None:
    done = peen("exec", "hello", short_path=short_path, PEEN_MAX_TOOL_ROUNDS="many", PEEN_TURN_TIMEOUT="soon")

    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("peen: PEEN_") for line in lines)


def test_run_with_a_wrong_setting_is_exit_one(short_path: Path) -> None:
    done = peen("run", short_path=short_path, PEEN_MAX_TOOL_ROUNDS="many")

    assert done.returncode == 1
    assert done.stderr.startswith("peen: PEEN_MAX_TOOL_ROUNDS: ")
    assert "Traceback" not in done.stderr


def test_run_refuses_a_state_directory_that_is_in_use(short_path: Path) -> None:
    (short_path / "state").mkdir(mode=0o700)
    with ControllerLock.acquire(
        short_path / "state", LockInfo.of_this_process(control_socket=short_path / "control.sock")
    ):
        done = peen("run", short_path=short_path)

    assert done.returncode == 1
    assert f"held by process {os.getpid()}" in done.stderr


def test_exec_without_a_prompt_does_not_wait(short_path: Path) -> None:
    done = peen("exec", short_path=short_path)  # standard input is /dev/null

    assert (done.returncode, done.stdout, done.stderr) == (2, "", "peen: the prompt is empty\n")


def test_a_worker_without_a_sound_document_is_refused(short_path: Path) -> None:
    done = peen("worker", short_path=short_path)

    assert done.returncode == 2
    assert "launch document cannot be read" in done.stderr


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    command = [sys.executable, "-m", "peen", "exec", "--help"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()

    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "peen", "exec", "--help"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "peen: standard output: No space left on device\n")


def test_a_full_disk_elsewhere_is_not_blamed_on_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "main", full)

    assert main(["run"]) == 1
    assert "No space left on device: free some in the directories of PEEN_STATE_DIR" in capsys.readouterr().err


def test_words_of_others_cannot_move_the_cursor() -> None:
    assert printable("plain ü") == "plain ü"
    assert printable("a\tb\x1b[2J") == "a b\N{REPLACEMENT CHARACTER}[2J"
