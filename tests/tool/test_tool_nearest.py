"""Why a text does not occur: always an answer, in no time, and true."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from peen.tool.nearest import shown_line, why_absent
from peen.tool.outline import Outline

PIECES = st.lists(
    st.sampled_from(["foo", "bar();", " ", "\t", "\n", "é", "\\n", '"', "12\t", "&lt;", "\u00a0"]), max_size=12
)
LINES = st.lists(st.sampled_from([b"a", b"b", b"c", b""]), max_size=8)


@given(PIECES, PIECES, st.integers(1, 5))
def test_every_near_miss_has_an_answer_that_names_an_existing_line(
    text: list[str], old: list[str], first_line: int
) -> None:
    content = "".join(text).encode()

    told = why_absent(content, "".join(old).encode(), first_line=first_line)

    assert told.startswith("; ")
    last = first_line + content.count(b"\n")
    assert all(first_line <= int(number) <= last for number in re.findall(r"\bline (\d+)", re.sub('".*', "", told)))


def test_it_takes_no_time_however_long_lines_and_files_are() -> None:
    for text in (
        b"x" * 4_000_000,
        b"x\n" * 2_000_000,
        b"some line of a file\n" * 49_000,
        (b"y" * 400_000 + b"\n") * 10,
    ):
        for old in (b"z" * 4_000_000, b"z\n" * 500_000, b"some line of a fine\n" * 1000, b"x y\nz"):
            assert why_absent(text, old).startswith("; ")


def test_a_long_line_is_shown_around_its_first_difference() -> None:
    line, other = b"a" * 500 + b"b" + b"c" * 500, b"a" * 500 + b"X" + b"c" * 500

    assert shown_line(line, other) == '…"' + "a" * 30 + "b" + "c" * 49 + '"…'
    assert shown_line(b"\ttab \xff") == '"\\ttab \ufffd"'


@given(LINES, LINES, st.booleans(), st.booleans())
def test_the_named_range_holds_every_difference(
    old: list[bytes], new: list[bytes], old_ended: bool, new_ended: bool
) -> None:
    before, after = ended(old, old_ended), ended(new, new_ended)
    outline = Outline.of(before)
    assert outline is not None

    told = outline.compared_with(after)

    assert (told == "") == (before == after)
    gone, come = before.splitlines(keepends=True), after.splitlines(keepends=True)
    ranges = [(int(first), int(last or first)) for first, last in re.findall(r"lines? (\d+)(?:-(\d+))?", told)]
    match told.split()[-1] if told else "":
        case "changed":
            (first, last) = ranges[0]
            assert gone[: first - 1] + come[first - 1 : last] + gone[last:] == come
        case "new":
            (first, last) = ranges[0]
            assert come[: first - 1] + come[last:] == gone
        case "gone":
            (first, last) = ranges[0]
            assert gone[: first - 1] + gone[last:] == come
        case "":
            pass
        case _:
            ((first, last), (start, end)) = ranges
            assert gone[: first - 1] + come[start - 1 : end] + gone[last:] == come


def ended(lines: list[bytes], final: bool) -> bytes:
    text = b"".join(line + b"\n" for line in lines)
    return text if final else text.rstrip(b"\n")
