"""Output of commands: bounded memory, both ends kept, and nothing in it that only a terminal understands."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.tool.bounds import fit_head, fit_tail, json_bytes
from peen.tool.output import OutputCapture, Shown, clean, show


def left_out(count: int) -> str:
    return f"[... {count} bytes of redrawn lines left out; peen job output and the REST API have them ...]\n"


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("\x1b[1;31merror\x1b[0m: x", "error: x"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2\x1b\\after", "after"),
        ("\x1b(Bplain\x1b7\x1b=", "plain"),
        ("\x9b31mred", "red"),
        ("10%\r50%\r100%\ndone\n", "100%\ndone\n" + left_out(6)),
        ("10%\r\x1b[K100%\x1b[K\r\ndone\r\n", "100%\ndone\n" + left_out(3)),
        ("get a 10%\rget a 100%\r\nget b  5%\rget b 100%\r\n", "get a 100%\nget b 100%\n" + left_out(18)),
        ("\r|=> | 1/3 é\r|==>| 2/3 é", "|==>| 2/3 é\n" + left_out(12)),
        ("fetch left-pad\r\x1b[2Kfetch qs\r\x1b[2Klink\x1b[0K", "link\n" + left_out(22)),
        ("same\rsame\r  \rsame\n", "same\n"),
        ("1\r2\r3\r", "3\n" + left_out(2)),
        ("|\r/\r-\rdone\n", "done\n" + left_out(3)),
        ("first line\rsecond\rthird one\r", "first line\nsecond\nthird one"),
        ("a\rb\rc\rdone\n", "a\nb\nc\ndone\n"),
        ("x=1\r\ry=2\r\nz\n", "x=1\ny=2\nz\n"),
        ("working\r", "working"),
        ("A\r    \rB\r    \rdone\n", "done\n" + left_out(2)),
        ("work\r    \r\ndone\n", "work\ndone\n"),
        ("A\r\r \rB\n", "B\n" + left_out(1)),
        ("first:\r  \r  second\r\r  third\r", "first:\n  \n  second\n  third"),
        ("  \rfirst\rsecond\r", "  \nfirst\nsecond"),
        ("|\b/\b-\bok", "ok"),
        ("\b\bx", "x"),
        ("a\0b\x07c\td", "abc\td"),
        ("\x1b[", ""),
        ("\x1b", ""),
        ("unfinished \x1b]0;no end\nnext", "unfinished 0;no end\nnext"),
        ("é中\u2028", "é中\u2028"),
    ],
)
def test_what_a_person_would_see_in_the_end_is_kept(raw: str, seen: str) -> None:
    assert clean(raw) == seen


PIECES = ["1\r", " \r", "a\r", "\x18\r", "\x18 \r", "\r\x1b[K", "\b", "a\b", "1\r\b"]
LAST = ["", "x" * 4000, " " * 4000, f" {'x' * 4000} ", "\x18 1" + " " * 4000]


def characters_looked_at(text: str) -> int:
    """The lengths of all strings together whose methods `clean` calls."""
    count = 0

    def look(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal count
        if event == "c_call" and isinstance(owner := getattr(called, "__self__", None), str):
            count += len(owner)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        clean(text)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_every_character_is_looked_at_a_few_times_whatever_is_drawn(piece: str) -> None:
    for last in LAST:
        text = piece * 2000 + last

        assert len(text) <= characters_looked_at(text) <= 12 * len(text), last[:3]


@pytest.mark.parametrize("piece", ["\x1b]", "\x1b[", "\x1b[1", "\x1bP\x1b", "\x1b]0", "\x9b1 "], ids=repr)
def test_escape_sequences_that_do_not_end_take_linear_time(piece: str) -> None:
    # What an expression looks at cannot be counted. Sixteen times as much text would take 256 times as long.
    assert least_cpu_s(piece * 8000) < 80 * least_cpu_s(piece * 500)


def least_cpu_s(text: str) -> float:
    taken = []
    for _ in range(5):
        began = time.thread_time()
        clean(text)
        taken.append(time.thread_time() - began)
    return min(taken)


LETTERS = st.text(st.sampled_from("abcdefgh "), min_size=1, max_size=8).filter(str.strip)


@given(st.lists(LETTERS, min_size=1, max_size=6))
def test_no_line_is_left_out_without_being_counted(row: list[str]) -> None:
    seen = clean("\r".join(row) + "\n")

    hidden = sum(len(state.strip()) for state in row if state.strip() != row[-1].strip())
    if hidden and seen != "\n".join(row) + "\n":
        assert seen == f"{row[-1]}\n" + left_out(hidden)
    else:
        assert seen in ("\n".join(row) + "\n", f"{row[-1]}\n")


@given(st.lists(st.binary(max_size=40)), st.integers(2, 64))
def test_the_first_and_the_last_bytes_are_kept_however_they_come(chunks: list[bytes], limit: int) -> None:
    whole, capture, half = b"".join(chunks), OutputCapture(limit), limit // 2
    for chunk in chunks:
        capture.feed(chunk)

    head, tail = capture.parts()

    assert capture.total == len(whole)
    assert head == whole[:half]
    assert tail == whole[half:][-half:]


def test_memory_stays_small_however_much_comes() -> None:
    capture = OutputCapture(65536)
    for _ in range(1000):
        capture.feed(b"\0" * 65536)

    assert capture.total == 65_536_000
    assert sum(map(len, capture.parts())) == 65536
    assert len(capture._head) + len(capture._tail) < 4 * 65536


def test_a_cut_falls_between_lines_and_every_byte_is_shown_or_counted() -> None:
    lines = [f"line {number}\n" for number in range(10_000)]
    capture = OutputCapture(2000)
    capture.feed("".join(lines).encode())

    shown = show(capture)

    assert shown.head == "".join(lines)[: len(shown.head)]
    assert lines[shown.head.count("\n")] == shown.head.rsplit("\n", 1)[1] + "\n"
    assert shown.tail in "".join(lines)
    assert shown.tail.split("\n", 1)[0] + "\n" in lines
    assert shown.tail.endswith("line 9999\n")
    assert len(shown.head) + shown.omitted + len(shown.tail) == len("".join(lines))
    assert f"\n[... {shown.omitted} bytes left out ...]\n" in shown.text


def test_a_cut_inside_a_long_line_splits_no_character() -> None:
    capture = OutputCapture(5001)
    capture.feed("é中".encode() * 2000)

    shown = show(capture)

    assert set(shown.head + shown.tail) == {"é", "中"}
    assert len((shown.head + shown.tail).encode()) + shown.omitted == 10_000


TEXT = st.text(st.sampled_from('ab"\n\\é中\x01'), max_size=200)


@given(TEXT, TEXT, st.integers(0, 10_000), st.integers(0, 400))
def test_what_does_not_fit_is_cut_in_the_middle_and_counted(head: str, tail: str, omitted: int, limit: int) -> None:
    shown = Shown(head, tail if omitted else "", omitted)

    fitted = shown.fitted(limit)

    assert fitted.size <= max(limit, 60)
    if shown.size > limit:
        assert head.startswith(fitted.head)
        assert (shown.tail or head).endswith(fitted.tail)
    lost = len((shown.head + shown.tail).encode()) - len((fitted.head + fitted.tail).encode())
    assert fitted.omitted == omitted + lost


@given(TEXT, st.integers(-5, 500))
def test_the_longest_part_that_fits_is_taken(text: str, limit: int) -> None:
    head, tail = fit_head(text, limit), fit_tail(text, limit)

    assert text.startswith(head)
    assert text.endswith(tail)
    for part, longer in ((head, text[: len(head) + 1]), (tail, text[len(text) - len(tail) - 1 :])):
        assert json_bytes(part) <= max(limit, 0)
        assert part == text or json_bytes(longer) > limit
