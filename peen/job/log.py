"""What a job prints, on its way to the store: in numbered pieces and bounded chunks, no faster than they are stored."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

import structlog
import trio

from peen.errors import LinkLost, PeenError, StorageFull
from peen.job.calls import Calls, Pending
from peen.tool.output import whole_characters
from peen.wire.jobcalls import AppendJobOutput, JobOutputAppended
from peen.wire.joboutput import MAX_CHUNK_BYTES, MAX_CHUNK_PIECES, MAX_PIECE_BYTES, OutputChunk

log = structlog.get_logger(__name__)

FLUSH_S: Final = 0.05
"""How long complete lines wait for more, and an incomplete one for its end."""
WINDOW: Final = 8
"""Chunks that may be on their way unanswered: whoever prints faster than the disk writes has to wait."""
TELL_S: Final = 1.0
"""How often it is told how much is not stored, while more of it comes."""
DISCARD_S: Final = 0.001
"""A pause behind each read of what is not stored: about as fast as a disk, so that `yes` leaves the worker its time."""
_FULL: Final = "the disk of PEEN_STATE_DIR was full"


class _Sent(NamedTuple):
    answer: Pending[JobOutputAppended]
    first: int
    size: int


class OutputLog:
    """The output of one job.

    Owns: what was not sent yet, at most one chunk and the beginning of a line of each stream.

    `missing` says why what came later is not stored, because of a limit or a full disk, and `unstored_bytes` how much
    that is; `failure` that the store failed. Then output is taken in all the same, so that nobody who prints has to
    wait for ever.
    """

    def __init__(self, job_id: str, calls: Calls) -> None:
        self._job_id, self._calls = job_id, calls
        self._words: list[int] = []
        self._data = bytearray()
        self._first = 1
        self._tails = (bytearray(), bytearray())
        self._fresh = [False, False]
        self._waiting = trio.Event()
        self._sent: deque[_Sent] = deque()
        self._lost = trio.Event()
        self.missing = self.failure = ""
        self.unstored_bytes = 0

    @property
    def trouble(self) -> str:
        """Why not all of it is stored; empty if it is."""
        return self.failure or self.missing

    @property
    def last(self) -> int:
        """Number of the last piece so far."""
        return self._first + len(self._words) - 1

    async def take(self, stream: int, data: bytes) -> None:
        """Take in what one stream gave. Returns when more may come. Raises: LinkLost."""
        if self.trouble:
            self._lose(len(data))
            await trio.sleep(DISCARD_S)
            return
        tail = self._tails[stream]
        tail += data
        self._fresh[stream] = True
        if (end := tail.rfind(b"\n") + 1) > 0:
            complete = bytes(tail[:end])
            del tail[:end]
            self._add_lines(stream, complete)
        while len(tail) > MAX_PIECE_BYTES:
            length = whole_characters(bytes(tail[:MAX_PIECE_BYTES]))
            self._add(stream, bytes(tail[:length]), goes_on=True)
            del tail[:length]
        self._waiting.set()
        await self._settle(WINDOW)

    async def run(self) -> None:
        """Send what waits, in time. Never returns: it is cancelled when the job has ended. Raises: LinkLost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            await self._flush()

    async def _tell(self) -> None:
        """While the job runs, tell what is missing already; the rest is told with its end."""
        while True:
            await self._lost.wait()
            self._lost = trio.Event()
            missing, count = self.missing, self.unstored_bytes
            request = AppendJobOutput(job_id=self._job_id, chunks=[], unstored_bytes=count, output_missing=missing)
            try:
                await self._calls.call(request, JobOutputAppended)
            except LinkLost:
                raise
            except PeenError:  # a full disk, for one
                self._lost.set()  # it is told again, and with the end
                log.info("what is missing of a job's output could not be recorded yet", job_id=self._job_id)
            await trio.sleep(TELL_S)

    async def _flush(self) -> None:
        while True:
            await self._waiting.wait()
            self._waiting = trio.Event()
            await trio.sleep(FLUSH_S)
            for stream, tail in enumerate(self._tails):
                if self._fresh[stream]:
                    self._fresh[stream] = False
                    if tail:
                        self._waiting.set()  # looked at once more: its end may be about to come
                else:
                    self._add_tail(stream)
            self._send()
            await self._settle(WINDOW)

    def cut(self) -> int:
        """Number everything that has come so far, incomplete lines included; the last number. Raises: LinkLost."""
        for stream in range(len(self._tails)):
            self._add_tail(stream)
        self._send()
        return self.last

    async def stored(self) -> None:
        """Return when everything that was sent is stored, or known not to be; not to be cancelled."""
        with trio.CancelScope(shield=True):  # the answers or the loss of the link end it
            await self._settle(0)

    async def rest(self) -> list[OutputChunk]:
        """What is left to store when both streams are over, and everything else is. Not to be cancelled."""
        for stream in range(len(self._tails)):
            self._add_tail(stream, goes_on=False)
        await self.stored()
        if not self._words:
            return []
        chunk = self._taken()
        if self.trouble:
            self._lose(len(chunk.data))
            return []
        return [chunk]

    def _add_lines(self, stream: int, complete: bytes) -> None:
        """Add whole lines, the last line end included."""
        lengths = [len(line) + 1 for line in complete[:-1].split(b"\n")]
        if max(lengths) > MAX_PIECE_BYTES:
            self._add_long_lines(stream, complete, lengths)
            return
        begin = at = 0
        words, room = self._words, MAX_CHUNK_BYTES - len(self._data)
        for length in lengths:
            if at + length - begin > room or len(words) == MAX_CHUNK_PIECES:
                self._data += complete[begin:at]
                self._send()
                words, begin, room = self._words, at, MAX_CHUNK_BYTES
            words.append(length << 2 | stream)
            at += length
        self._data += complete[begin:at]

    def _add_long_lines(self, stream: int, complete: bytes, lengths: list[int]) -> None:
        at = 0
        for length in lengths:
            end = at + length
            while end - at > MAX_PIECE_BYTES:
                size = whole_characters(complete[at : at + MAX_PIECE_BYTES])
                self._add(stream, complete[at : at + size], goes_on=True)
                at += size
            self._add(stream, complete[at:end], goes_on=False)
            at = end

    def _add_tail(self, stream: int, *, goes_on: bool = True) -> None:
        tail = self._tails[stream]
        if tail:
            self._add(stream, bytes(tail), goes_on=goes_on)
            tail.clear()

    def _add(self, stream: int, data: bytes, *, goes_on: bool) -> None:
        if len(self._data) + len(data) > MAX_CHUNK_BYTES or len(self._words) == MAX_CHUNK_PIECES:
            self._send()
        self._words.append(len(data) << 2 | goes_on << 1 | stream)
        self._data += data

    def _send(self) -> None:
        if not self._words:
            return
        chunk = self._taken()
        if self.trouble:
            self._lose(len(chunk.data))
            return
        request = AppendJobOutput(job_id=self._job_id, chunks=[chunk])
        answer = self._calls.call_soon(request, JobOutputAppended)
        self._sent.append(_Sent(answer, chunk.first, len(chunk.data)))

    def _taken(self) -> OutputChunk:
        index = struct.pack(f"<{len(self._words)}I", *self._words)
        chunk = OutputChunk(first=self._first, index=index, data=bytes(self._data))
        self._first += len(self._words)
        self._words, self._data = [], bytearray()
        return chunk

    async def _settle(self, most: int) -> None:
        """Wait until no more than `most` chunks are unanswered. Raises: LinkLost."""
        while len(self._sent) > most:
            sent = self._sent[0]
            await sent.answer.done.wait()
            if not self._sent or self._sent[0] is not sent:
                continue  # another task has seen to it
            self._sent.popleft()
            self._hear(sent)

    def _hear(self, sent: _Sent) -> None:
        """What became of one chunk. The first reason counts: chunks behind a gap are refused as well."""
        why = ""
        try:
            stored = sent.answer.result()
        except LinkLost:
            raise
        except PeenError as refused:
            if isinstance(refused, StorageFull):
                why = f"what it printed behind number {sent.first - 1} is not stored: {_FULL}"
            elif not self.trouble:
                self.failure = f"its output was stored in part only: {refused}"
            self._lose(sent.size, why)
        else:
            if stored.output_missing:
                self._lose(stored.unstored_bytes, stored.output_missing)

    def _lose(self, size: int, why: str = "") -> None:
        self.missing = self.missing or why
        self.unstored_bytes += size
        if self.missing:
            self._lost.set()
