"""Replacing pieces of a file: outside of what an edit names, no byte changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from peen.tool.base import ToolError
from peen.tool.diff import unified_diff
from peen.tool.splice import Replacement, Splice, apply_splices, plan_splices


def edit(data: bytes, *edits: tuple[str, str]) -> bytes:
    return apply_splices(data, plan_splices(data, [Replacement(old, new) for old, new in edits], path="f"))


def planned(data: bytes, *edits: Replacement) -> list[Splice] | ToolError:
    try:
        return plan_splices(data, edits, path="f")
    except ToolError as exc:
        return exc


def refusal(data: bytes, *edits: tuple[str, str]) -> str:
    with pytest.raises(ToolError) as caught:
        edit(data, *edits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        # one kind of line end: \n stands for it, in old and in new
        (b"a\nb\nc\n", "a\nb", "a\nx\nb", b"a\nx\nb\nc\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\rb\rc\r", "a\nb", "a\nx\nb", b"a\rx\rb\rc\r"),
        (b"a\r\nb\r\n", "a\r\nb", "a\r\nx", b"a\r\nx\r\n"),
        (b"a\nb\n", "a\r\nb", "ab", b"ab\n"),
        # mixed: what stays keeps its own line end
        (b"a\r\nb\nc\r\n", "a\nb\nc", "a\nB\nc", b"a\r\nB\nc\r\n"),
        (b"a\nb\r\nc\n", "a\nb\nc", "a\nnew\nb\nc", b"a\nnew\nb\r\nc\n"),
        (b"a\nb\r\nc\n", "b\nc", "b\nnew\nc", b"a\nb\r\nnew\r\nc\n"),
        # a line end that is inserted where none was follows the nearest one
        (b"a\r\nb c\r\nd\n", "b c", "b\nc", b"a\r\nb\r\nc\r\nd\n"),
        (b"a b\r\nc\n", "a b", "a\nb", b"a\r\nb\r\nc\n"),
        (b"a b", "a b", "a\nb", b"a\nb"),
        # no final line end, byte order mark, an explicit line end in new
        (b"a\nb", "b", "c", b"a\nc"),
        (b"\xef\xbb\xbfa\nb\n", "a\nb", "x", b"\xef\xbb\xbfx\n"),
        (b"a\nb\n", "a\nb", "a\r\nb", b"a\r\nb\n"),
        (b"a\r\nb\r\n", "\nb", "\nc", b"a\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\n", "", b"b\r\n"),
        # a lone carriage return in a file with line feeds is an ordinary character
        (b"50%\r100%\nend\n", "100%\nend", "done", b"50%\rdone\n"),
        (b"a\r\r\nb\n", "a\r\nb", "x", b"a\r\r\nb\n"),
        # several edits refer to the file as it was
        (b"one two three", "two", "one", b"one one three"),
    ],
)
def test_line_ends_follow_the_file(before: bytes, old: str, new: str, after: bytes) -> None:
    if before == after:
        assert "match not found" in refusal(before, (old, new))
    else:
        assert edit(before, (old, new)) == after


def test_edits_are_made_together_whatever_their_order() -> None:
    assert edit(b"a b c d", ("c", "C1"), ("a", ""), ("d", "a")) == b" b C1 a"
    assert edit(b"ab", ("b", "2"), ("a", "1")) == b"12"


def test_what_does_not_occur_is_not_found_and_a_hint_is_given() -> None:
    data = b"def f():\n    return 1\n"

    assert refusal(data, ("return 2", "x")).startswith("match not found: edits[0].old does not occur in f")
    assert 'line 2 is "    return 1", not "   return  1"' in refusal(data, ("def f():\n   return  1", "x"))
    assert "its new text does at line 2" in refusal(data, ("return 0", "return 1"))


def test_what_occurs_twice_is_not_unique_even_if_the_two_overlap() -> None:
    assert refusal(b"x\na\nx\n", ("x", "y")) == (
        "match not unique: edits[0].old occurs 2 times in f (at lines 1, 3); add surrounding text until it occurs once"
    )
    assert "occurs 2 times" in refusal(b"aaa", ("aa", "b"))
    assert "occurs 2 times" in refusal(b"a\r\nb a\nb", ("a\nb", "b"))
    assert "at lines 1, 2, 3, 4, 5, …" in refusal(b"x\n" * 9, ("x", "y"))


def test_a_line_end_is_found_once_although_it_has_two_bytes() -> None:
    assert edit(b"a\r\nb", ("\n", " ")) == b"a b"


def test_overlapping_edits_are_refused_and_touching_ones_are_not() -> None:
    assert refusal(b"abcd", ("cd", "x"), ("bc", "y")).startswith("overlap: edits[0] and edits[1] touch")
    assert edit(b"abcd", ("cd", "x"), ("ab", "y")) == b"yx"


LATIN = "größe = 1\nname = été\n".encode("latin-1")


def test_a_file_that_is_not_utf8_is_edited_where_the_edit_is_ascii() -> None:
    assert edit(LATIN, ("= 1", "= 2")) == LATIN.replace(b"1", b"2")
    assert edit(LATIN, (" = 1\n", " = 1\nx\n")) == LATIN.replace(b"1\n", b"1\nx\n")


@pytest.mark.parametrize("change", [("größe", "size"), ("name", "größe")])
def test_a_file_that_is_not_utf8_is_not_edited_with_other_characters(change: tuple[str, str]) -> None:
    text = refusal(LATIN, change)

    assert text.startswith("binary: f is not UTF-8 (byte 0xf6 at offset 2); it looks like Latin-1")
    assert "nothing was changed" in text


def test_half_a_double_byte_character_is_never_matched() -> None:
    data = "中a".encode("gbk") + "乗".encode("gbk")  # the second half of the last character is an ASCII "\\"
    assert data.endswith(b"\\")

    assert "may begin inside" in refusal(data, ("\\", "/"))


def test_many_line_ends_take_no_more_than_linear_time() -> None:
    data = b"\r\n" * 500_000 + b"x\n" * 10

    assert "match not found" in refusal(data, ("\n" * 50_000 + "y", ""))


PIECES = st.lists(st.sampled_from(["a", "b", "é", "中", " ", "\t", "\n", "\r\n", "\ufeff", "\x00", "xy"]), max_size=30)


@given(PIECES, PIECES, PIECES, st.lists(st.sampled_from(["a", "é", "\n", "中b", ""]), max_size=8))
@example(["a", "\r\n"], ["\r\n"], [], ["\n", "\n"])
def test_outside_the_span_every_byte_is_the_same(
    before: list[str], old: list[str], after: list[str], new: list[str]
) -> None:
    head, span, tail = ("".join(part).encode() for part in (before, old, after))
    assume(span)
    data = head + span + tail
    named = "".join(old).replace("\r\n", "\n")

    unified = data.replace(b"\r\n", b"\n")
    if unified.find(named.encode()) != unified.rfind(named.encode()):
        assert "match not unique" in refusal(data, (named, "".join(new)))
        return
    result = edit(data, (named, "".join(new)))

    assert result.startswith(head)
    assert result[len(head) :].endswith(tail)
    written = result[len(head) : len(result) - len(tail)]
    assert written.replace(b"\r\n", b"\n") == "".join(new).encode()


@given(PIECES, PIECES, PIECES)
def test_an_edit_that_changes_nothing_changes_no_byte(before: list[str], old: list[str], after: list[str]) -> None:
    data = "".join([*before, *old, *after]).encode()
    named = "".join(old).replace("\r\n", "\n")
    unified = data.replace(b"\r\n", b"\n")
    assume(named and unified.find(named.encode()) == unified.rfind(named.encode()))

    assert edit(data, (named, named)) == data


@given(st.binary(max_size=60), st.text("ab =\n", min_size=1, max_size=4), st.text("xy\n", max_size=4), st.binary())
def test_of_any_bytes_at_all_only_the_span_changes_or_nothing(head: bytes, old: str, new: str, tail: bytes) -> None:
    data = head + old.encode() + tail
    splices = planned(data, Replacement(old, new))
    if isinstance(splices, ToolError):
        assert splices.kind in ("match not unique", "match not found", "binary")
        return
    [splice] = splices
    result = apply_splices(data, splices)

    assert result == data[: splice.start] + splice.new + data[splice.end :]
    matched = data[splice.start : splice.end]
    assert old.encode() in (matched, matched.replace(b"\r\n", b"\n"), matched.replace(b"\r", b"\n"))


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "d\r"]), max_size=40)


@settings(deadline=None)  # starts a program for each example
@given(LINES, st.data())
def test_the_diff_turns_the_old_file_into_the_new_one(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject
) -> None:
    before = "".join(f"{number}{line}\n" for number, line in enumerate(lines)).encode()
    before = before[: len(before) - data.draw(st.integers(0, 1))]
    chosen = data.draw(st.lists(st.sampled_from(range(len(lines))), unique=True, max_size=6)) if lines else []
    edits = []
    for number in chosen:
        old = f"\n{number}{lines[number]}" if number else f"0{lines[0]}\n"
        if before.replace(b"\r\n", b"\n").count(old.replace("\r", "").encode()) == 1:
            new = data.draw(st.sampled_from(["", "x", "\nx", "x\n", "\ny\n\n"]))
            edits.append(Replacement(old.replace("\r", ""), new))
    splices = planned(before, *edits)
    if isinstance(splices, ToolError):
        assert splices.kind in ("overlap", "match not unique", "match not found")
        return
    after = apply_splices(before, splices)

    diff = unified_diff("f", before, splices)

    assert patched(tmp_path_factory.getbasetemp(), before, diff) == after


def patched(directory: Path, before: bytes, diff: str) -> bytes:
    """What `patch` makes of it: a program that others wrote."""
    if not diff:
        return before
    file = directory / "patched"
    file.write_bytes(before)
    subprocess.run(["patch", "--quiet", "--binary", "--fuzz=0", str(file)], input=diff.encode(), check=True)
    return file.read_bytes() if file.exists() else b""


def test_a_diff_shows_three_lines_of_context_and_joins_near_changes() -> None:
    before = "".join(f"line {number}\n" for number in range(1, 31)).encode()
    edits = [Replacement("line 5\n", "five\n"), Replacement("line 9\n", ""), Replacement("line 30\n", "thirty")]

    assert unified_diff("f", before, plan_splices(before, edits, path="f")) == (
        "--- f\n+++ f\n"
        "@@ -2,11 +2,10 @@\n line 2\n line 3\n line 4\n-line 5\n+five\n line 6\n line 7\n line 8\n-line 9\n"
        " line 10\n line 11\n line 12\n"
        "@@ -27,4 +26,4 @@\n line 27\n line 28\n line 29\n-line 30\n+thirty\n\\ No newline at end of file\n"
    )
