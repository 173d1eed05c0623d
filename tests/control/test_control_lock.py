"""One controller a state directory, and who it is."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peen.control.lock import LOCK_NAME, ControllerLock, LockInfo, process_start_time, read_lock
from peen.errors import ConfigurationInvalid, ControllerRunning, StorageFull

HOLDER = """
import sys
from pathlib import Path
from peen.control.lock import ControllerLock, LockInfo
state = Path(sys.argv[1])
with ControllerLock.acquire(state, LockInfo.of_this_process(control_socket=state / "control.sock")) as lock:
    lock.update(address="127.0.0.1:8080")
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_controller(state: Path) -> Iterator[subprocess.Popen[str]]:
    """A real process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def ours(state: Path) -> LockInfo:
    return LockInfo.of_this_process(control_socket=state / "control.sock")


def test_the_lock_says_who_holds_it(tmp_path: Path) -> None:
    with ControllerLock.acquire(tmp_path, ours(tmp_path)) as lock:
        assert read_lock(tmp_path) == LockInfo(
            pid=os.getpid(),
            start_time=process_start_time(os.getpid()),
            address=None,
            control_socket=str(tmp_path / "control.sock"),
        )
        lock.update(address="127.0.0.1:4321")
        content = json.loads((tmp_path / LOCK_NAME).read_text())

    assert set(content) == {"pid", "startTime", "address", "controlSocket"}
    assert content["address"] == "127.0.0.1:4321"


def test_a_second_controller_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with another_controller(tmp_path) as holder:
        before = (tmp_path / LOCK_NAME).read_bytes()

        with pytest.raises(ControllerRunning, match=f"process {holder.pid}") as caught:
            ControllerLock.acquire(tmp_path, ours(tmp_path))

        assert (caught.value.pid, caught.value.lock) == (holder.pid, tmp_path / LOCK_NAME)
        assert (tmp_path / LOCK_NAME).read_bytes() == before
        found = read_lock(tmp_path)
        assert found is not None
        assert (found.pid, found.address) == (holder.pid, "127.0.0.1:8080")


def test_what_a_killed_controller_left_stands_in_nobodys_way(tmp_path: Path) -> None:
    with another_controller(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert f'"pid":{holder.pid}' in (tmp_path / LOCK_NAME).read_text()

        assert read_lock(tmp_path) is None
        with ControllerLock.acquire(tmp_path, ours(tmp_path)):
            found = read_lock(tmp_path)

    assert found is not None
    assert found.pid == os.getpid()


def test_a_released_lock_is_free_and_its_file_stays_empty(tmp_path: Path) -> None:
    lock = ControllerLock.acquire(tmp_path, ours(tmp_path))
    lock.release()
    lock.release()

    assert (tmp_path / LOCK_NAME).read_bytes() == b""
    assert read_lock(tmp_path) is None
    with ControllerLock.acquire(tmp_path, ours(tmp_path)):
        pass


def test_no_lock_file_means_no_controller_and_none_is_made(tmp_path: Path) -> None:
    assert read_lock(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with ControllerLock.acquire(tmp_path, ours(tmp_path)):
            assert oct((tmp_path / LOCK_NAME).stat().st_mode & 0o7777) == "0o600"
    finally:
        os.umask(before)


def test_a_program_that_the_controller_starts_does_not_keep_the_lock(tmp_path: Path) -> None:
    with ControllerLock.acquire(tmp_path, ours(tmp_path)):
        # close_fds off: what is inherited is what the descriptor's own flag says.
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    try:
        assert read_lock(tmp_path) is None
        ControllerLock.acquire(tmp_path, ours(tmp_path)).release()
    finally:
        child.communicate()


def test_a_short_address_after_a_long_one_leaves_no_rest_behind(tmp_path: Path) -> None:
    with ControllerLock.acquire(tmp_path, ours(tmp_path)) as lock:
        for address in ("a-rather-long-name.example.org:12345", "h:1"):
            lock.update(address=address)
            found = read_lock(tmp_path)
            assert found is not None
            assert found.address == address


def test_a_reader_that_looks_at_the_wrong_moment_does_not_stop_a_start(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("")
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            read_lock(tmp_path)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(200):
            ControllerLock.acquire(tmp_path, ours(tmp_path)).release()
    finally:
        stop.set()
        reader.join()


def test_a_holder_that_has_not_written_yet_is_a_controller_all_the_same(tmp_path: Path) -> None:
    with ControllerLock.acquire(tmp_path, ours(tmp_path)):
        (tmp_path / LOCK_NAME).write_text('{"pid": 1')

        assert read_lock(tmp_path) == LockInfo()
        with pytest.raises(ControllerRunning, match="held by another process"):
            ControllerLock.acquire(tmp_path, ours(tmp_path))


def test_no_link_pipe_or_directory_is_taken_for_the_lock(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    path = tmp_path / LOCK_NAME
    makers: list[Callable[[], None]] = [
        lambda: path.symlink_to(tmp_path / "victim"),
        path.mkdir,
        lambda: os.mkfifo(path),
    ]
    users: list[Callable[[], object]] = [
        lambda: ControllerLock.acquire(tmp_path, ours(tmp_path)),
        lambda: read_lock(tmp_path),
    ]
    for make in makers:
        make()
        for use in users:
            with pytest.raises(ConfigurationInvalid, match=r"controller\.lock cannot be used") as caught:
                use()
            assert caught.value.variable == "PEEN_STATE_DIR"
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    assert (tmp_path / "victim").read_text() == "kept"


def test_a_missing_state_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="state directory does not exist"):
        ControllerLock.acquire(tmp_path / "gone", ours(tmp_path))


def test_whoever_deletes_the_file_lets_no_second_controller_in(tmp_path: Path) -> None:
    with ControllerLock.acquire(tmp_path, ours(tmp_path)):
        (tmp_path / LOCK_NAME).unlink()

        with pytest.raises(ControllerRunning):
            ControllerLock.acquire(tmp_path, ours(tmp_path))

    with ControllerLock.acquire(tmp_path, ours(tmp_path)):
        pass


def test_a_full_disk_is_called_that_and_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageFull, match=LOCK_NAME):
        ControllerLock.acquire(tmp_path, ours(tmp_path))

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refused_lock_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    with ControllerLock.acquire(tmp_path, ours(tmp_path)):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ControllerRunning):
            ControllerLock.acquire(tmp_path, ours(tmp_path))
        read_lock(tmp_path)

        assert len(os.listdir("/proc/self/fd")) == before


def test_the_start_time_is_that_of_the_process_whatever_it_is_called(tmp_path: Path) -> None:
    odd = tmp_path / "a) b (c"
    odd.symlink_to("/bin/cat")
    child = subprocess.Popen([odd], stdin=subprocess.PIPE)
    try:
        started = process_start_time(child.pid)
        assert started is not None
        own = process_start_time(os.getpid())
        assert own is not None
        assert started >= own
    finally:
        child.communicate()
    assert process_start_time(child.pid) is None
