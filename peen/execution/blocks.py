"""Content blocks of one turn: indexes that count up from zero, and pieces that wait to be shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
import trio
from msgspec import Raw

from peen.model.stream import CallDelta, CallStarted, CallStopped, StreamEvent, TextDelta, ThinkingDelta
from peen.wire.records import EventRecord

INTERVAL_S: Final = 0.030
ENOUGH_BYTES: Final = 1024
MOST_BYTES: Final = 256 * 1024
"""What may wait to be shown; a model that is faster than the store is read no further meanwhile."""

_Kind = Literal["text", "thinking", "call"]
_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}
_encode: Final = msgspec.json.encode


def event(event_type: str, data: dict[str, object]) -> EventRecord:
    """A protocol event with `data` as its payload."""
    return EventRecord(type=event_type, data=Raw(_encode(data)))


class Blocks:
    """Turns stream events into block frames. Pieces of one block that wait together become one frame."""

    def __init__(self, first_index: int = 0) -> None:
        self._next_index = first_index
        self._open: tuple[_Kind, int] | None = None  # text or thinking, which have no id of their own
        self._calls: dict[int, int] = {}  # provider's call index -> block index, while open
        self._ready: list[EventRecord] = []
        self._piece: tuple[_Kind, int, list[str]] | None = None
        self._bytes = 0
        self._has_news = False

    @property
    def is_urgent(self) -> bool:
        """Whether what waits should be shown at once: a block began, or there is enough of it."""
        return self._has_news or self._bytes >= ENOUGH_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Size of the pieces that wait."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        return not self._ready and self._piece is None

    def feed(self, item: StreamEvent) -> None:
        """Take one event of the model's stream."""
        match item:
            case TextDelta(text=text):
                self._add("text", self._plain("text"), text)
            case ThinkingDelta(text=text):
                self._add("thinking", self._plain("thinking"), text)
            case CallStarted(index=call, id=call_id, name=name):
                self._stop_plain()
                self._calls[call] = self._start({"type": "tool_use", "id": call_id, "name": name})
            case CallDelta(index=call, json=text):
                self._add("call", self._calls[call], text)
            case CallStopped(index=call):
                self._stop(self._calls.pop(call))
            case _:
                pass  # usage and the end are not shown as blocks

    def note(self, record: EventRecord) -> None:
        """Put a protocol event in its place between the pieces."""
        self._flush_piece()
        self._ready.append(record)
        self._has_news = True

    def close(self) -> None:
        """Stop every block that is still open: the attempt that opened them is over."""
        self._stop_plain()
        for index in self._calls.values():
            self._stop(index)
        self._calls.clear()

    def tool_result(self, call_id: str, content: str, *, is_error: bool) -> list[EventRecord]:
        """A whole result block."""
        index = self._next_index
        self._next_index += 1
        block = {"type": "tool_result", "tool_use_id": call_id, "is_error": is_error}
        delta = {"type": "json_partial", "text": content}
        return [
            event("content_block_start", {"type": "content_block_start", "index": index, "content_block": block}),
            event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}),
            event("content_block_stop", {"type": "content_block_stop", "index": index}),
        ]

    def take(self) -> list[EventRecord]:
        """Everything that waits; afterwards nothing does."""
        self._flush_piece()
        taken, self._ready = self._ready, []
        self._bytes, self._has_news = 0, False
        return taken

    def _plain(self, kind: _Kind) -> int:
        if self._open is not None and self._open[0] == kind:
            return self._open[1]
        self._stop_plain()
        index = self._start({"type": kind})
        self._open = (kind, index)
        return index

    def _start(self, block: dict[str, object]) -> int:
        self._flush_piece()
        index = self._next_index
        self._next_index += 1
        data = {"type": "content_block_start", "index": index, "content_block": block}
        self._ready.append(event("content_block_start", data))
        self._has_news = True
        return index

    def _stop_plain(self) -> None:
        if self._open is not None:
            self._stop(self._open[1])
            self._open = None

    def _stop(self, index: int) -> None:
        self._flush_piece()
        self._ready.append(event("content_block_stop", {"type": "content_block_stop", "index": index}))

    def _add(self, kind: _Kind, index: int, text: str) -> None:
        if self._piece is not None and self._piece[1] == index:
            self._piece[2].append(text)
        else:
            self._flush_piece()
            self._piece = (kind, index, [text])
        self._bytes += len(text.encode())

    def _flush_piece(self) -> None:
        if self._piece is None:
            return
        kind, index, texts = self._piece
        self._piece = None
        name, field = _DELTAS[kind]
        data = {"type": "content_block_delta", "index": index, "delta": {"type": name, field: "".join(texts)}}
        self._ready.append(event("content_block_delta", data))


class Streaming:
    """Shows the pieces of a running step: the first of a block at once, then what has gathered every 30 ms or 1 KiB.

    Runs beside the step. What still waits when the step ends is taken by the step's own commit, so that an answer
    that comes all at once costs no transaction of its own.
    """

    def __init__(self, blocks: Blocks, emit: Callable[[list[EventRecord]], Awaitable[None]]) -> None:
        self._blocks, self._emit = blocks, emit
        self._wake = trio.Event()
        self._shown = trio.Event()
        self._is_gathering = False

    async def room(self) -> None:
        """Return once little enough waits; the caller's deadline does not run meanwhile, since it is ours."""
        while self._blocks.waiting_bytes > MOST_BYTES:
            await self._shown.wait()  # bounded by the store: a piece is stored, or the streaming fails

    def poke(self) -> None:
        """Something was fed to the blocks."""
        if not self._is_gathering or self._blocks.is_urgent:  # else the clock wakes it, not every piece
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled by its owner. Ends early, with the failure, if pieces cannot be handed over."""
        shown_at = -INTERVAL_S
        while True:
            # No deadline: the owner cancels this task when the step ends.
            await self._wake.wait()
            self._wake = trio.Event()
            due_at = shown_at + INTERVAL_S
            while not self._blocks.is_urgent and trio.current_time() < due_at:
                self._is_gathering = True
                with trio.move_on_at(due_at):
                    await self._wake.wait()
                    self._wake = trio.Event()
                self._is_gathering = False
            # Where the answer has ended in the meantime, its owner cancels us here, and nothing has been taken.
            await trio.lowlevel.checkpoint()
            if pieces := self._blocks.take():
                await self._emit(pieces)
                shown_at = trio.current_time()
                self._shown.set()
                self._shown = trio.Event()
