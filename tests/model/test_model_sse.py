from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import ModelError
from peen.model.sse import MAX_EVENT_BYTES, SseEvent, SseParser

LINES = st.sampled_from(
    [b"data: {}", b"data:no space", b"data:  two", b"data", b"event: ping", b":", b": comment", b"id: 7", b"retry: 1",
     b"", b"", "data: größer 🙂".encode(), b"nonsense", b"data: [DONE]"]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def parse(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def feed_again_and_again(parser: SseParser, piece: bytes) -> None:
    for _ in range(200):
        parser.feed(piece)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [("", b"a"), ("", b"b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [("", b"a"), ("", b"b")]),
        (b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
        (b"data:a\n\ndata:  b\n\n", [("", b"a"), ("", b" b")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data: a\ndata\n\n", [("", b"a\n")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b": ping\n\n: ping\ndata: a\nid: 3\nretry: 5\n\n", [("", b"a")]),
        (b"event: error\ndata: a\n\ndata: b\n\n", [("error", b"a"), ("", b"b")]),
        (b"event: nothing\n\ndata: a\n\n", [("", b"a")]),
        (b"data: a\n\ndata: [DONE]\n", [("", b"a"), ("", b"[DONE]")]),
        (b"data: a\n\ndata: [DONE]", [("", b"a"), ("", b"[DONE]")]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_a_stream_has_its_events(stream: bytes, events: list[tuple[str, bytes]]) -> None:
    assert parse(stream) == events


def test_a_cr_and_its_lf_may_come_apart() -> None:
    parser = SseParser()

    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\n\r") == [("", b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [("", b"b")]


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    assert SseParser().feed(b"data: a\n\ndata: b") == [("", b"a")]


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.lists(st.integers(0, 1000), max_size=30), st.booleans())
def test_every_split_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int], ended: bool) -> None:
    stream = b"".join(line + end for line, end in lines)
    if not ended:
        stream = stream.rstrip(b"\r\n")

    assert parse(*split(stream, cuts)) == parse(stream) == parse(*(bytes([byte]) for byte in stream))


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_read_to_their_end(pieces: list[bytes]) -> None:
    events = parse(*pieces)

    assert sum(len(event.data) for event in events) <= sum(len(piece) for piece in pieces)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 900, b"x" * 900, b"data: " + b"x" * 90 + b"\n"])
def test_what_never_ends_is_an_error_before_it_fills_the_memory(piece: bytes) -> None:
    parser = SseParser(max_event_bytes=10_000)

    with pytest.raises(ModelError, match="more than 10000 bytes") as caught:
        feed_again_and_again(parser, piece)

    assert (caught.value.kind, caught.value.retryable) == ("bad_stream", True)


def test_the_limit_is_eight_mebibytes_of_one_line() -> None:
    whole = SseParser().feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 1) + b"\n\n")

    assert len(whole[0].data) == 8 * 1024 * 1024 - 1
    with pytest.raises(ModelError):
        SseParser().feed(b"data: " + b"x" * MAX_EVENT_BYTES + b"\n")
