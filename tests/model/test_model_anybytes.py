"""The reader of streams under any split and any bytes: the same result, or one error of ours, never anything else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.chatstream import ChatTranslator
from peen.model.fold import Answer, Fold
from peen.model.reader import AnswerReader, Translator
from peen.model.responsesstream import ResponsesTranslator
from peen.model.stream import CallDelta, Finished, StreamEvent, TextDelta, ThinkingDelta
from peen.model.surrogates import Mender

MODEL: Final = "m"
PATIENCE_S: Final = 60.0

TEXTS = st.text(st.characters(), max_size=6)  # lone halves included
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
NOISE = st.sampled_from([": ping", ":", "event: message", "id: 3", "retry: 10", "event: ping\ndata: {}\n"])
FINISHES = st.sampled_from(["stop", "tool_calls", "length", "eos", "", None])


class Bytes:
    """A reply that has all come already, in pieces."""

    status = 200
    headers: Final = {"content-type": "text/event-stream"}

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return next((piece for piece in self._pieces if piece), b"")


def result(pieces: list[bytes], translator: Translator | None = None) -> Answer | tuple[str, bool]:
    """The answer, or the kind of the error and whether it is tried again."""

    async def main() -> Answer | tuple[str, bool]:
        fold = Fold("made")
        try:
            with trio.fail_after(PATIENCE_S):
                async for event in AnswerReader(Bytes(pieces), translator or ChatTranslator(MODEL), "http://p"):
                    fold.add(event)
            return fold.finish()
        except ModelError as error:
            return error.kind, error.retryable

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@st.composite
def chunks(draw: st.DrawFn) -> dict[str, Any]:
    """One chunk of an answer that makes sense, or nearly."""
    delta: dict[str, Any] = {}
    for field in draw(st.lists(st.sampled_from(["content", "reasoning_content", "reasoning", "thinking"]), max_size=2)):
        delta[field] = draw(TEXTS)
    if draw(st.booleans()):
        delta["tool_calls"] = draw(st.lists(calls(), min_size=1, max_size=2))
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": delta}]}
    if draw(st.booleans()):
        chunk["usage"] = {"prompt_tokens": draw(st.integers(0, 9))}
    return chunk


def calls() -> st.SearchStrategy[dict[str, Any]]:
    function = st.fixed_dictionaries(
        {},
        optional={"name": st.sampled_from(["read", "File", "", "t"]), "arguments": TEXTS | st.just("{}") | st.none()},
    )
    return st.fixed_dictionaries(
        {"function": function}, optional={"index": st.integers(0, 2) | st.none(), "id": st.sampled_from(["a", "b", ""])}
    )


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of chunks with noise between them, every kind of line end, and most kinds of end."""
    lines: list[str] = []
    found = draw(st.lists(chunks(), max_size=5))
    for chunk in [*found, {"choices": [{"delta": {}, "finish_reason": draw(FINISHES)}]}]:
        text = json.dumps(chunk, ensure_ascii=draw(st.booleans()) or any_half(chunk))
        at = draw(st.integers(0, len(text)))
        if draw(st.booleans()) and text[:at].count('"') % 2 == 0 and "\\" not in text[:at]:
            lines += [f"data: {text[:at]}", f"data:{text[at:]}", ""]  # only between the tokens of its JSON
        else:
            lines += [f"data: {text}", ""]
        if draw(st.booleans()):
            lines += [draw(NOISE), ""]
    if draw(st.booleans()):
        lines += ["data: [DONE]", ""]
    end = draw(ENDS)
    bom = "\ufeff" if draw(st.booleans()) else ""
    return (bom + end.join(line.replace("\n", end) for line in lines) + end).encode()


def any_half(value: Any) -> bool:
    return "\\ud" in json.dumps(value)


@given(streams(), st.lists(st.integers(0, 5000), max_size=40))
def test_any_split_of_any_stream_gives_the_same_result(stream: bytes, cuts: list[int]) -> None:
    whole = result([stream])

    assert result(split(stream, cuts)) == whole
    assert result([bytes([byte]) for byte in stream]) == whole


@given(streams(), st.integers(0, 5000))
def test_a_stream_that_is_cut_anywhere_never_runs_a_call_that_the_whole_one_does_not(stream: bytes, at: int) -> None:
    whole, cut = result([stream]), result([stream[: at % (len(stream) + 1)]])

    if isinstance(cut, Answer) and isinstance(whole, Answer):
        assert cut.calls in ((), whole.calls)
        assert cut.text == whole.text
    elif isinstance(cut, Answer):  # the rest would have been an error behind the end
        assert cut.finish_reason or not cut.calls or b"[DONE]" in stream


RESPONSES_TYPES = st.sampled_from([
    "response.output_text.delta", "response.reasoning_summary_text.delta", "response.function_call_arguments.delta",
    "response.function_call_arguments.done", "response.output_item.added", "response.output_item.done",
    "response.completed", "response.incomplete", "response.failed", "error", "response.created",
])  # fmt: skip
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "reasoning", "other"])},
    optional={
        "name": st.sampled_from(["t", ""]), "call_id": st.sampled_from(["a", "b", ""]), "arguments": TEXTS,
        "content": st.lists(st.fixed_dictionaries({}, optional={"text": TEXTS | st.integers()}), max_size=2),
        "encrypted_content": TEXTS, "status": st.sampled_from(["completed", "incomplete", None]),
    },
)  # fmt: skip
ENDINGS = st.fixed_dictionaries(
    {},
    optional={
        "output": st.lists(ITEMS, max_size=3),
        "status": st.sampled_from(["completed", "incomplete", "failed", "queued", None]),
    },
)
RESPONSES_EVENTS = st.fixed_dictionaries(
    {"type": RESPONSES_TYPES},
    optional={
        "delta": TEXTS | st.integers(), "output_index": st.integers(0, 3), "arguments": TEXTS, "item": ITEMS,
        "response": ENDINGS,
    },
)  # fmt: skip


@example([{"type": "response.output_item.added", "item": {"type": "function_call"}}, {"type": "error"}], False, [90])
@given(st.lists(RESPONSES_EVENTS, max_size=8), st.booleans(), st.lists(st.integers(0, 5000), max_size=20))
def test_any_events_of_the_responses_api_are_an_answer_or_an_error_however_they_are_split(
    events: list[dict[str, Any]], names: bool, cuts: list[int]
) -> None:
    stream = b"".join(
        (f"event: {event['type']}\n" if names else "").encode() + b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in events
    )

    found = result([stream], ResponsesTranslator(MODEL))

    assert result(split(stream, cuts), ResponsesTranslator(MODEL)) == found
    if isinstance(found, Answer):
        for text in (found.text, found.thinking, found.finish_reason, *(call.name for call in found.calls)):
            text.encode()  # what cannot be encoded could not be stored


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"data: ", b"data:{", b"\n\n", b'{"choices":[', b"<html>"])))
@example([b"data: [DONE]\n\n", b"\xff"])
@example(
    [b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"a","arguments":{"text":"\\ud800"}}}]}}]}\n\n']
)
@example([b'data: {"error":{"message":"\\ud800"}}\n\n'])
@example([b'data: {"model":"\\udfff","choices":[{"finish_reason":"\\ud83d"}]}\n\n'])
@example([b"data: " + b'{"a":' * 3000 + b'"\\ud800"' + b"}" * 3000 + b"\n\n"])
@example([b'data: {"a":"\\ud800",' + b'"b":' + b"9" * 5000 + b"}\n\n"])
@example([b"event: error\ndata: \xff\n\n"])
@example([b'{"choices":[{"message":{"content":"\\ud83d"},"finish_reason":"stop"}]}'])
def test_any_bytes_are_an_answer_or_an_error(pieces: list[bytes]) -> None:
    found = result(pieces)

    if isinstance(found, Answer):
        json.dumps([found.text, found.thinking, found.finish_reason]).encode()
        found.text.encode()  # what cannot be encoded could not be stored
        found.thinking.encode()
        found.finish_reason.encode()
        found.response_model.encode()


FIELDS = st.sampled_from([
    "choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "index", "usage",
    "finish_reason", "error", "model", "reasoning", "code", "type",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=4), max_size=4), st.booleans())
def test_any_json_is_an_answer_or_an_error(documents: list[dict[str, Any]], streamed: bool) -> None:
    head = b"data: " if streamed else b""
    found = result([head + json.dumps(document).encode() + b"\n\n" for document in documents])

    assert isinstance(found, Answer) or found[0] in {
        "stream_cut", "bad_stream", "bad_response", "server_error", "rate_limited", "invalid_request", "timeout",
        "quota_exhausted", "unauthorized", "context_length_exceeded",
    }  # fmt: skip


@given(st.text(max_size=20), st.data())
def test_characters_that_were_cut_anywhere_come_together_again(text: str, data: st.DataObject) -> None:
    halves = text.encode("utf-16-le", "surrogatepass")
    units = [halves[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(halves), 2)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units)), max_size=8)))
    pieces = ["".join(units[a:b]) for a, b in itertools.pairwise([0, *cuts, len(units)])]
    pieces = [piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") for piece in pieces]
    makers: list[Callable[[str], StreamEvent]] = [TextDelta, ThinkingDelta, lambda piece: CallDelta(1, piece)]
    make = data.draw(st.sampled_from(makers))
    mender, found = Mender(), list[StreamEvent]()

    for piece in pieces:
        found += mender.mend([make(piece)])
    found += mender.mend([Finished("stop", MODEL)])

    said = "".join(event.json if isinstance(event, CallDelta) else getattr(event, "text", "") for event in found)
    assert said == halves.decode("utf-16-le", "replace")
