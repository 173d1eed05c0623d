"""`peen dev upstream` in a process of its own, for tests and measurements."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

STOP_S: Final = 10.0
_BEGIN: Final = "listening on "


class UpstreamProcess:
    """A running provider. `base_url` is what a client of its dialect is given. Leaving the block stops it."""

    def __init__(self, script: Path, *options: str, port: int = 0) -> None:
        """`options` are further ones of the command; `port` 0 takes a free one."""
        self._arguments: Sequence[str] = ("--script", str(script), "--port", str(port), *options)
        self._process: subprocess.Popen[str] | None = None
        self.base_url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the provider was not started"
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.base_url.removesuffix("/v1").rpartition(":")[2])

    def start(self) -> Self:
        """Start it and wait until it listens. Raises: RuntimeError with what it said instead."""
        command = [sys.executable, "-m", "peen", "dev", "upstream", *self._arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_BEGIN):
            self._end(signal.SIGKILL)
            raise RuntimeError(f"the provider did not start: {line!r}")
        self.base_url = line.removeprefix(_BEGIN).strip()
        return self

    def log(self) -> dict[str, Any]:
        """What it was asked, as `GET /dev/requests` tells it."""
        with urllib.request.urlopen(self.base_url.removesuffix("/v1") + "/dev/requests", timeout=STOP_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stop(self) -> int:
        """Orderly stop; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL: connections break, the port refuses."""
        return self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None:
            self.stop()

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
