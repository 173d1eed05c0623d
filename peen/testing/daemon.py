"""A real controller in a process of its own, for tests and measurements: `peen run` in directories that it owns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, Self

from peen.control.lock import LockInfo, read_lock

READY_S: Final = 30.0
STOP_S: Final = 40.0
_POLL_S: Final = 0.01


class DaemonFailed(Exception):
    """The process ended or did not get ready; the message holds its output."""


class Daemon:
    """`peen run` below one directory: `home` holds configuration, state, workspace root and the log of the process.

    `environment` adds to or replaces what the process gets; PEEN_* variables of the caller are never inherited.
    Starting it again after `kill` or `stop` uses the same state.
    """

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.config_dir, self.state_dir = home / "config", home / "state"
        self.workspace_root = home / "work"
        self.workspace_root.mkdir(parents=True, exist_ok=True)
        self.log = home / "daemon.log"
        self._extra = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the process is given; a command line tool with the same finds this controller."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PEEN_")}
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
            inherited.pop(name, None)
        return {
            **inherited,
            "HOME": str(self.home),
            "PEEN_CONFIG_DIR": str(self.config_dir),
            "PEEN_STATE_DIR": str(self.state_dir),
            "PEEN_WORKSPACE_ROOT": str(self.workspace_root),
            "PEEN_HTTP_LISTEN_ADDRESS": "127.0.0.1:0",
            **self._extra,
        }

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon was not started"
        return self._process.pid

    @property
    def address(self) -> str:
        """Base URL of the running controller."""
        info = self._lock_info()
        assert info is not None
        assert info.address is not None
        return info.address

    @property
    def socket_url(self) -> str:
        return self.address.replace("http://", "ws://") + "/ws/v1"

    def start(self) -> Self:
        """Start the process and wait until it reports ready. Raises: DaemonFailed."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start the process without waiting."""
        self._output = self.log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peen", "run"],
            env=self.environment,
            cwd=self.workspace_root,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def launch_and_fail(self) -> None:
        """Start a process that must not get ready. Raises: DaemonFailed with its exit code and output."""
        self.launch()
        assert self._process is not None
        try:
            code = self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        self._close()
        raise DaemonFailed(f"exit code {code}\n{self.output()}")

    def wait_ready(self) -> None:
        """Raises: DaemonFailed."""
        assert self._process is not None
        give_up = time.monotonic() + READY_S
        while (info := self._lock_info()) is None or info.address is None:
            if self._process.poll() is not None:
                self._close()
                raise DaemonFailed(f"exit code {self._process.returncode}\n{self.output()}")
            if time.monotonic() > give_up:
                self.kill()
                raise DaemonFailed(f"not ready within {READY_S:g} s\n{self.output()}")
            time.sleep(_POLL_S)

    def stop(self) -> int:
        """Orderly stop; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL; minus the signal."""
        return self._end(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for an end that somebody else caused; the exit code."""
        assert self._process is not None
        code = self._process.wait(STOP_S)
        self._close()
        return code

    def output(self) -> str:
        """Everything that the process printed, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Self:
        is_running = self._process is not None and self._process.poll() is None
        return self if is_running else self.start()

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._close()
            raise DaemonFailed(f"did not end within {STOP_S:g} s\n{self.output()}") from None

    def _close(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None

    def _lock_info(self) -> LockInfo | None:
        if not self.state_dir.exists():
            return None
        info = read_lock(self.state_dir)
        # The file may still hold what an earlier run wrote: only our own process counts.
        return info if info is not None and self._process is not None and info.pid == self._process.pid else None
