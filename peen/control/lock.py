"""`controller.lock`: one controller at a time owns a state directory, and others can see which."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import msgspec

from peen.errors import ConfigurationInvalid, ControllerRunning, StorageFailed, StorageFull

LOCK_NAME: Final = "controller.lock"
_MAX_BYTES: Final = 8192
# A reader that looks at the lock holds it for microseconds; a controller holds it for its lifetime.
_TRIES: Final = 25
_PAUSE_S: Final = 0.01


class LockInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who holds the lock. `start_time` is the process' start in clock ticks since boot: it tells a pid from its reuse.

    `address` is None until a listener is bound. `pid` and `start_time` are None in the instant before a new holder
    has written them.
    """

    pid: int | None = None
    start_time: int | None = None
    address: str | None = None
    control_socket: str = ""

    @classmethod
    def of_this_process(cls, *, control_socket: Path, address: str | None = None) -> LockInfo:
        pid = os.getpid()
        return cls(pid=pid, start_time=process_start_time(pid), address=address, control_socket=str(control_socket))


class ControllerLock:
    """The exclusive lock, held until `release` or the end of the process, however it ends.

    Owns:  the descriptors of file and directory, which no child inherits across exec. The file itself stays for the
           next controller. The directory is locked too, so that whoever deletes the file lets nobody in.
    """

    def __init__(self, path: Path, fd: int, directory_fd: int, info: LockInfo) -> None:
        self.path, self.info = path, info
        self._fd: int | None = fd
        self._directory_fd = directory_fd

    @classmethod
    def acquire(cls, state_dir: Path, info: LockInfo) -> ControllerLock:
        """Takes the lock of an existing state directory and writes `info` into it.

        Raises: ControllerRunning if another process holds it, before anything is changed; ConfigurationInvalid if the
        file cannot be used; StorageFull.
        """
        path = state_dir / LOCK_NAME
        with ExitStack() as opened:
            fd = _open(path, os.O_RDWR | os.O_CREAT)
            opened.callback(os.close, fd)
            _lock_exclusively(fd, path)
            directory_fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory_fd)
            if not _try_lock(directory_fd, fcntl.LOCK_EX):
                raise ControllerRunning(path, pid=None)
            lock = cls(path, fd, directory_fd, info)
            lock._write(info)
            opened.pop_all()
        return lock

    def update(self, *, address: str) -> None:
        """Tells others where the controller listens, once that is known."""
        self.info = msgspec.structs.replace(self.info, address=address)
        self._write(self.info)

    def release(self) -> None:
        """Empties the file and lets the next controller in. Twice is harmless."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.ftruncate(fd, 0)
        finally:
            os.close(self._directory_fd)
            os.close(fd)  # frees the lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def _write(self, info: LockInfo) -> None:
        assert self._fd is not None, "the lock was released"
        content = msgspec.json.encode(info)
        # One write, then the cut: a reader sees the old text, the new one, or the new one with a tail that it skips.
        try:
            os.pwrite(self._fd, content + b"\n", 0)
            os.ftruncate(self._fd, len(content) + 1)
        except OSError as exc:
            failure = StorageFull if exc.errno in (errno.ENOSPC, errno.EDQUOT) else StorageFailed
            raise failure(str(self.path), str(exc.strerror)) from exc


def read_lock(state_dir: Path) -> LockInfo | None:
    """Who holds the lock now; None if nobody does. What a dead controller left in the file does not count.

    Raises: ConfigurationInvalid if the file cannot be used.
    """
    path = state_dir / LOCK_NAME
    try:
        fd = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(fd, fcntl.LOCK_SH):
            return None
        return _read(fd)
    finally:
        os.close(fd)


def process_start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Field 22, counted behind the name, which stands in parentheses and may hold anything.
    return int(content.rpartition(b")")[2].split()[19])


def _open(path: Path, flags: int) -> int:
    """The lock file, checked. Raises: ConfigurationInvalid; FileNotFoundError if it is missing and not to be made."""
    try:
        # O_NONBLOCK: a FIFO in its place must not make us wait.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise _unusable(path, "the state directory does not exist") from None
        raise
    except OSError as exc:
        raise _unusable(path, str(exc.strerror)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _unusable(path, "it is not a regular file")
    return fd


def _unusable(path: Path, problem: str) -> ConfigurationInvalid:
    return ConfigurationInvalid("PEEN_STATE_DIR", f"{path} cannot be used: {problem}", example="/var/lib/peen")


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_exclusively(fd: int, path: Path) -> None:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        if _try_lock(fd, fcntl.LOCK_EX):
            return
        holder = _read(fd)
        if holder.pid is not None and process_start_time(holder.pid) == holder.start_time:
            raise ControllerRunning(path, pid=holder.pid)
    raise ControllerRunning(path, pid=None)


def _read(fd: int) -> LockInfo:
    """What the file says; an empty `LockInfo` while it says nothing that makes sense."""
    content = os.pread(fd, _MAX_BYTES, 0).partition(b"\n")[0]
    try:
        return msgspec.json.decode(content, type=LockInfo)
    except msgspec.DecodeError:
        return LockInfo()
