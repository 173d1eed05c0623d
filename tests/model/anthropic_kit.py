"""A provider of the Messages API that answers what a test gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from peen.entropy import SeededEntropy
from peen.errors import ModelError
from peen.model.anthropic import AnthropicUpstream
from peen.model.fold import Answer, Fold
from peen.model.stream import ModelRequest
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, ToolCallRecord

USER = MessageRecord(role="user", content="go")
TOOL = ToolDefinition(name="readFile", description="Read.", parameters=msgspec.Raw(b'{"type":"object"}'))
KEY = "sk-ant-very-secret"


class Broken:
    """In the place of a piece: the connection breaks."""


class Silence:
    """In the place of a piece: nothing comes any more."""


Piece = bytes | Broken | Silence


class FakeReply:
    def __init__(self, *pieces: Piece, status: int = 200, **headers: str) -> None:
        self.status = status
        self.headers = {"content-type": "text/event-stream"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self._pieces = iter(pieces)

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        piece = next(self._pieces, b"")
        if isinstance(piece, Silence):
            await trio.sleep_forever()
        if isinstance(piece, Broken):
            raise ModelError("the connection broke", kind="transport", retryable=True)
        assert isinstance(piece, bytes)
        return piece


class FakeTransport:
    """Answers every request with the next of its answers, and remembers what was asked, as bytes and as JSON."""

    def __init__(self, *answers: FakeReply) -> None:
        self._answers: Iterator[FakeReply] = iter(answers)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.open = 0
        self.closed = 0

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[FakeReply]:
        self.asked.append((method, url, dict(headers)))
        self.bodies.append(body)
        self.open += 1
        try:
            await trio.lowlevel.checkpoint()
            yield next(self._answers)
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1

    def body(self, index: int = -1) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.bodies[index])
        return decoded


def sse(*events: Mapping[str, Any] | bytes, end: bytes = b"\n") -> bytes:
    """Events as the provider writes them; bytes stand for themselves."""
    written = bytearray()
    for event in events:
        if isinstance(event, bytes):
            written += event
        else:
            data = msgspec.json.encode(event)
            written += b"event: %b%bdata: %b%b%b" % (str(event["type"]).encode(), end, data, end, end)
    return bytes(written)


def begun(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"type": "message", "model": "m-1", "content": [], "usage": usage}}


def block(index: int, kind: str, *pieces: Mapping[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """A whole block: its start with `fields`, a delta for each piece, its stop."""
    start = {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}
    deltas = [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
    return [start, *deltas, {"type": "content_block_stop", "index": index}]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, "text", *({"type": "text_delta", "text": piece} for piece in pieces), text="")


def thinking(index: int, *pieces: str, signature: Sequence[str] = ("sig",)) -> list[dict[str, Any]]:
    said = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed = [{"type": "signature_delta", "signature": piece} for piece in signature]
    return block(index, "thinking", *said, *signed, thinking="", signature="")


def tool_use(
    index: int, *pieces: str, call_id: str = "toolu_1", name: str = "readFile", given: Any = None
) -> list[Any]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, "tool_use", *deltas, id=call_id, name=name, input={} if given is None else given)


def ended(reason: str | None = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


STOP: dict[str, Any] = {"type": "message_stop"}


def whole(*events: Any) -> bytes:
    """A stream that begins and ends as it should."""
    return sse(begun(input_tokens=3), *events, ended(output_tokens=1), STOP)


def upstream(
    transport: FakeTransport, *, key: str | None = None, base_url: str = "http://p:1", **fields: Any
) -> AnthropicUpstream:
    config = UpstreamConfig(name="up", type="anthropic", base_url=base_url, **fields)
    return AnthropicUpstream(config, key, transport, SeededEntropy(1))


def request(*messages: MessageRecord, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"model_id": "m", "system": "be good", "messages": messages or (USER,), **fields})


async def ask(source: AnthropicUpstream, asked: ModelRequest | None = None, *, fold: Fold | None = None) -> Answer:
    fold = fold or Fold("made")
    async with source.stream(asked or request()) as events:
        async for event in events:
            fold.add(event)
    return fold.finish()


async def answer(*pieces: Piece, **fields: Any) -> Answer:
    return await ask(upstream(FakeTransport(FakeReply(*pieces, **fields))))


async def failure(*pieces: Piece, key: str | None = None, **fields: Any) -> ModelError:
    transport = FakeTransport(FakeReply(*pieces, **fields))
    with pytest.raises(ModelError) as caught:
        await ask(upstream(transport, key=key))
    assert transport.open == 0
    return caught.value


def called(call_id: str, arguments: bytes = b'{"path":"a"}', name: str = "readFile") -> ToolCallRecord:
    return ToolCallRecord(id=call_id, name=name, arguments=msgspec.Raw(arguments))


def reply(text: str = "", *calls: ToolCallRecord, **fields: Any) -> MessageRecord:
    return MessageRecord(role="assistant", content=text, tool_calls=list(calls) or None, **fields)


def result(call_id: str, content: str = "out", **fields: Any) -> MessageRecord:
    return MessageRecord(role="tool", content=content, tool_call_id=call_id, **fields)


def user(content: str, **fields: Any) -> MessageRecord:
    return MessageRecord(role="user", content=content, **fields)
