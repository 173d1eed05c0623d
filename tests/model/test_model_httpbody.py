"""Bodies cut out of any split of bytes, compared with what h11 makes of them."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.model.httpbody import MAX_LINE_BYTES, Body, ChunkedBody, OpenBody, SizedBody, body_of, keeps_open

CHUNKED = [("transfer-encoding", "chunked")]


def head(*fields: tuple[str, str], status: int = 200, version: str = "1.1") -> h11.Response:
    return h11.Response(status_code=status, headers=list(fields), http_version=version)


def play(body: Body, pieces: list[bytes]) -> bytes:
    """Feed `pieces` for as long as a connection would, and its end behind them; what came out."""
    found = b""
    for piece in pieces:
        if body.over or body.fault:
            break
        found += body.feed(piece) if piece else b""
    if not (body.over or body.fault):
        body.end()
    return found


def judge(fields: list[tuple[str, str]], pieces: list[bytes]) -> tuple[bytes, bool]:
    """What h11 finds in the same bytes, and whether it finds them whole, the fields behind them not regarded."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    reader.send(h11.EndOfMessage())
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    reader.receive_data(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode())
    assert isinstance(reader.next_event(), h11.Response)
    found = b""
    try:
        for piece in [*(piece for piece in pieces if piece), b""]:
            reader.receive_data(piece)
            while (event := reader.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    return found, True
                assert isinstance(event, h11.Data)
                found += event.data
    except h11.RemoteProtocolError as exc:
        return found, "header" in str(exc) and "chunk" not in str(exc)
    raise AssertionError("neither whole nor broken")


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)
CONTENT = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@st.composite
def chunked(draw: st.DrawFn) -> bytes:
    """A chunked body; one in two has something wrong with it somewhere."""
    made = b""
    for piece in draw(CONTENT):
        extension = draw(st.sampled_from([b"", b";a=b", b' ; a="b;c"', b"  "]))
        made += b"%x%s\r\n%s\r\n" % (len(piece), extension, piece)
    made += draw(st.sampled_from([b"0\r\n\r\n", b"000\r\n\r\n", b"0\r\nx-a: b\r\ny: z\r\n\r\n", b"0;q\r\n\r\nmore"]))
    if draw(st.booleans()):
        at = draw(st.integers(min_value=0, max_value=len(made)))
        wrong = draw(st.sampled_from([b"", b"\r\n", b"x", b"-1", b"_", b" ", b"\n", b"\0"]))
        made = made[:at] + wrong + made[at + draw(st.integers(min_value=0, max_value=3)) :]
    return made


@given(data=chunked(), cuts=CUTS)
def test_chunks_are_read_as_h11_reads_them(data: bytes, cuts: list[int]) -> None:
    body = ChunkedBody()

    found = play(body, split(data, cuts))

    assert (found, body.over) == judge(CHUNKED, [data])
    assert bool(body.fault) is not body.over


@given(content=CONTENT, cuts=CUTS, more=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
def test_the_split_of_the_bytes_makes_no_difference(content: list[bytes], cuts: list[int], more: bytes) -> None:
    whole = b"".join(b"%X\r\n%s\r\n" % (len(piece), piece) for piece in content) + b"0\r\n\r\n"
    body = ChunkedBody()

    pieces = [piece for piece in split(whole, cuts) if piece]
    pieces[-1] += more
    found = play(body, pieces)

    assert (found, body.over, body.fault, body.surplus) == (b"".join(content), True, "", bool(more))


@given(data=st.binary(max_size=60), size=st.integers(min_value=0, max_value=60), cuts=CUTS)
def test_a_body_of_known_length_is_read_as_h11_reads_it(data: bytes, size: int, cuts: list[int]) -> None:
    body = SizedBody(size)

    found = play(body, split(data, cuts))

    assert (found, body.over) == judge([("content-length", str(size))], [data])
    assert found == data[:size]


def test_a_body_of_known_length_notices_what_comes_behind_it() -> None:
    body = SizedBody(2)

    assert body.feed(b"hi!") == b"hi"
    assert (body.over, body.surplus) == (True, True)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    body = OpenBody()

    assert [body.feed(b"a"), body.feed(b"b")] == [b"a", b"b"]
    assert not body.over
    body.end()
    assert (body.over, body.fault) == (True, "")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"2\r\nhi", "it ended in the middle of the answer"),
        (b"2\r\nhi\r\n0\r\n", "it ended in the middle of the answer"),
        (b"2\r\nhi!!", "a chunk is longer than it says"),
        (b"\r\n", "a chunk does not begin with its size"),
        (b"+2\r\nhi\r\n", "a chunk does not begin with its size"),
        (b"1" * 16 + b"\r\n", "a chunk does not begin with its size"),
        (b"1;" + b"x" * MAX_LINE_BYTES, "a line between two chunks is too long"),
        (b"0\r\n" + b"x: 3456789\r\n" * 7000, "the fields behind the answer are too long"),
    ],
)
def test_a_fault_is_told_without_the_bytes(data: bytes, fault: str) -> None:
    body = ChunkedBody()

    play(body, [data])

    assert (body.fault, body.over) == (fault, False)


def test_a_line_without_end_is_not_gathered_for_ever() -> None:
    body = ChunkedBody()

    fed = 0
    while not body.fault:
        body.feed(b"1")
        fed += 1

    assert fed == MAX_LINE_BYTES + 1


@pytest.mark.parametrize(
    ("method", "answer", "kind", "is_over"),
    [
        ("GET", head(*CHUNKED, ("content-length", "3")), ChunkedBody, False),
        ("GET", head(("content-length", "3")), SizedBody, False),
        ("GET", head(("content-length", "0")), SizedBody, True),
        ("GET", head(), OpenBody, False),
        ("HEAD", head(("content-length", "3")), SizedBody, True),
        ("GET", head(*CHUNKED, status=204), SizedBody, True),
        ("GET", head(("content-length", "3"), status=304), SizedBody, True),
    ],
)
def test_the_head_says_how_the_body_is_framed(method: str, answer: h11.Response, kind: type, is_over: bool) -> None:
    body = body_of(method, answer)

    assert (type(body), body.over) == (kind, is_over)


@pytest.mark.parametrize(
    ("fields", "version", "stays"),
    [
        ([], "1.1", True),
        ([], "1.0", False),
        ([("connection", "keep-alive")], "1.0", False),
        ([("connection", "Close")], "1.1", False),
        ([("connection", "x"), ("connection", "y , close")], "1.1", False),
        ([("connection", "closed")], "1.1", True),
    ],
)
def test_the_head_says_whether_the_connection_stays(fields: list[tuple[str, str]], version: str, stays: bool) -> None:
    assert keeps_open(head(*fields, version=version)) is stays
