"""One output stream of a job: what comes is kept at both ends for the call, and stored whole."""

from __future__ import annotations

import trio

from peen.job.log import OutputLog
from peen.job.program import Printed
from peen.tool.output import OutputCapture
from peen.tool.process import CHUNK_BYTES


class JobReader:
    """Reads until the stream ends, or it is cancelled."""

    def __init__(self, stream: Printed, number: int, log: OutputLog, capture_bytes: int) -> None:
        self._stream, self._number, self._log = stream, number, log
        self._is_waiting = False
        self.capture, self.ended = OutputCapture(capture_bytes), trio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was printed so far has been taken in."""
        return self.ended.is_set() or (self._is_waiting and self._stream.unread() == 0)

    async def run(self) -> None:
        """Raises: LinkLost."""
        while True:
            self._is_waiting = True
            chunk = await self._stream.receive_some(CHUNK_BYTES)
            self._is_waiting = False
            if not chunk:
                self.ended.set()
                return
            self.capture.feed(chunk)
            await self._log.take(self._number, chunk)
