"""Finding and ending processes by what /proc says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peen.brand import Brand, brand_number, worn
from peen.space.proc import MARKER, all_stats, descendants, is_running, kill_recorded, read_stat, signal_all, sweep

STATE = f"sweep-test-{os.getpid()}"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are gone after the test, whatever it did."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        signal_all([*descendants([process.pid], all_stats()), process.pid], signal.SIGKILL)
        process.communicate()


def run(started: list[subprocess.Popen[str]], script: str, **environment: str) -> subprocess.Popen[str]:
    """A shell with `script`, which has printed one line when this returns."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], env={"PATH": os.environ["PATH"], **environment}, stdout=subprocess.PIPE, text=True
    )
    started.append(process)
    return process


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_name_with_parentheses_and_spaces_is_read_right(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    odd = tmp_path / ") S 1 (x"
    odd.symlink_to(sys.executable)
    process = subprocess.Popen([str(odd), "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    started.append(process)
    first_line(process)

    stat = read_stat(process.pid)

    assert stat is not None
    assert stat.ppid == os.getpid()
    assert stat.start_time >= all_stats()[os.getpid()].start_time


def test_a_process_that_never_was_has_no_stat() -> None:
    assert read_stat(2**22 + 1) is None
    assert not is_running(2**22 + 1, 1)


def test_descendants_come_parents_first(started: list[subprocess.Popen[str]]) -> None:
    shell = run(started, "sh -c 'sleep 100 & echo $!; wait' & wait")
    grandchild = int(first_line(shell))

    below = descendants([shell.pid], all_stats())

    assert len(below) == 2
    assert below[1] == grandchild


def test_kill_recorded_ends_the_whole_tree(started: list[subprocess.Popen[str]]) -> None:
    shell = run(started, "sh -c 'setsid sleep 100 & echo $!; wait' & wait")
    sleeping = int(first_line(shell))
    stats = all_stats()

    assert kill_recorded(shell.pid, stats[shell.pid].start_time)

    assert not is_running(shell.pid, stats[shell.pid].start_time)
    assert not is_running(sleeping, stats[sleeping].start_time)


def test_kill_recorded_leaves_a_reused_pid_alone(started: list[subprocess.Popen[str]]) -> None:
    process = run(started, "echo up; exec sleep 100")
    first_line(process)
    stat = read_stat(process.pid)
    assert stat is not None

    assert kill_recorded(process.pid, stat.start_time - 1)

    assert is_running(process.pid, stat.start_time)


def test_kill_recorded_ends_a_stopped_process(started: list[subprocess.Popen[str]]) -> None:
    process = run(started, "echo up; exec sleep 100")
    first_line(process)
    stat = read_stat(process.pid)
    assert stat is not None
    process.send_signal(signal.SIGSTOP)

    assert kill_recorded(process.pid, stat.start_time)

    assert process.wait() == -signal.SIGKILL


def test_sweep_ends_what_is_marked_and_what_descends_from_it(started: list[subprocess.Popen[str]]) -> None:
    bare = "env -i sleep 100 & echo $!; wait"
    marked = run(started, bare, **{MARKER: f"{STATE}:generation"})
    other = run(started, "echo up; exec sleep 100", **{MARKER: f"{STATE}-other:generation"})
    below = int(first_line(marked))
    first_line(other)

    killed = sweep(STATE)

    assert sorted(killed) == sorted([marked.pid, below])
    assert marked.wait() == -signal.SIGKILL
    assert other.poll() is None


def test_sweep_ends_what_has_nothing_but_the_brand(started: list[subprocess.Popen[str]]) -> None:
    escape = "(env -i setsid sh -c 'echo $$; exec >/dev/null; exec sleep 100' &)"
    with worn(Brand.STATE, brand_number(STATE)):
        ours = int(first_line(run(started, escape)))
    with worn(Brand.STATE, brand_number(f"{STATE}-other")):
        others = int(first_line(run(started, escape)))

    killed = sweep(STATE)

    assert killed == [ours]
    assert read_stat(others) is not None
    os.kill(others, signal.SIGKILL)


def test_sweep_spares_the_caller_and_what_it_is_told_to_keep(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    kept = run(started, "sleep 100 & echo $!; wait", **{MARKER: f"{STATE}:nanny"})
    child = int(first_line(kept))
    code = (
        "import os, sys; from peen.space.proc import sweep, read_stat\n"
        f"print(sweep({STATE!r}, keep=[{kept.pid}]), read_stat({child}) is not None)"
    )
    caller = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, MARKER: f"{STATE}:generation", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert caller.stdout.strip() == "[] True"


def test_sweep_finds_nothing_to_do() -> None:
    assert sweep("no-such-state") == []
