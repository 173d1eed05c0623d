"""The daily audit files: one JSON object a line, one file a UTC day, old ones deleted."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from peen.errors import ConfigurationInvalid

DAY_MS: Final = 86_400_000
FLUSH_BYTES: Final = 16 * 1024
FLUSH_AFTER_MS: Final = 1000

_NAME: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})-000000\.log")
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AuditFile:
    """Appends lines to the file of the day on which they happened.

    Owns:  the descriptor and the buffer. Not locked: one caller at a time.
    Fails: never. A line that cannot be written is dropped and counted, and the file says so once it can be written
           again. Lines wait in memory until an urgent one, 16 KiB, or the first line that comes a second later.
    Ends:  `close`, which writes what waits.
    """

    def __init__(self, directory: Path, retention_days: int) -> None:
        self.dropped = 0
        self._directory, self._retention = directory, timedelta(days=retention_days)
        self._day: int | None = None
        self._fd: int | None = None
        self._buffer = bytearray()
        self._waiting = 0  # lines in the buffer
        self._oldest_ms = 0  # when the first of them came
        self._unreported = 0  # dropped since the file last said so
        self._torn = False  # the file ends in the middle of a line

    def write(self, line: bytes, at_ms: int, *, urgent: bool) -> None:
        """One line without its newline, that happened at `at_ms` (wall clock)."""
        day = at_ms // DAY_MS
        if day != self._day:
            self.flush()
            self._turn_to(day)
        if self._waiting == 0:
            self._oldest_ms = at_ms
        self._buffer += line
        self._buffer += b"\n"
        self._waiting += 1
        # A clock that was set back must not keep the lines for longer.
        age_ms = abs(at_ms - self._oldest_ms)
        if urgent or len(self._buffer) >= FLUSH_BYTES or age_ms >= FLUSH_AFTER_MS:
            self.flush()

    def flush(self) -> None:
        """Hands what waits to the operating system."""
        if self._waiting == 0:
            return
        try:
            self._write_out()
        except OSError:
            self.dropped += self._waiting
            self._unreported += self._waiting
        self._buffer.clear()
        self._waiting = 0

    def close(self) -> None:
        self.flush()
        self._close_file()
        self._day = None

    def _write_out(self) -> None:
        if self._fd is None:
            assert self._day is not None
            self._fd = os.open(self._directory / f"{_date(self._day):%Y%m%d}-000000.log", _FLAGS, 0o600)
            # A process that met a full disk may have left half a line.
            size = os.fstat(self._fd).st_size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        report = b""
        if self._unreported:
            report = msgspec.json.encode({
                "timestamp": rfc3339_ms(self._oldest_ms), "level": "warn", "logger": "peen.log",
                "event": "log lines dropped", "lines": self._unreported,
            }) + b"\n"  # fmt: skip
        self._write_all((b"\n" if self._torn else b"") + report + self._buffer)
        self._unreported = 0

    def _write_all(self, data: bytes) -> None:
        assert self._fd is not None
        left = memoryview(data)
        while left:
            written = os.write(self._fd, left)
            self._torn = left[written - 1] != ord("\n")
            left = left[written:]

    def _turn_to(self, day: int) -> None:
        self._close_file()
        self._day = day
        with contextlib.suppress(OSError):  # if the directory is gone, the write that follows finds out and counts
            self._delete_before(_date(day) - self._retention)

    def _delete_before(self, oldest: date) -> None:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                written = _day_of(entry.name)
                if written is not None and written < oldest and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def open_audit_directory(directory: Path) -> None:
    """Makes the directory with mode 0700 if it is missing.

    Raises: ConfigurationInvalid if it is not a directory, cannot be made, or if others could change the files in it.
    """
    example = "/var/log/peen"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(directory.stat().st_mode)
    except FileExistsError:
        raise ConfigurationInvalid("PEEN_LOG_DIRECTORY", f"{directory} is not a directory", example=example) from None
    except OSError as exc:
        problem = f"{directory} cannot be created: {exc.strerror}"
        raise ConfigurationInvalid("PEEN_LOG_DIRECTORY", problem, example=example) from None
    if mode & 0o022:
        problem = f"other users can write to {directory} (mode {mode:04o}); mend it with: chmod go-w {directory}"
        raise ConfigurationInvalid("PEEN_LOG_DIRECTORY", problem, example=example)


def rfc3339_ms(at_ms: int) -> str:
    """`2023-11-14T22:13:20.000Z`."""
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def _date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


def _day_of(name: str) -> date | None:
    """The day that a file name stands for; None if it is not one of ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        return date(*map(int, found.groups()))
    except ValueError:
        return None
