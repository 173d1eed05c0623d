"""Hunks in the bytes of a file: whole lines, found once, and nothing else changes."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.tool.base import ToolError
from peen.tool.hunks import place_hunks
from peen.tool.patch import UpdateFile, parse_patch
from peen.tool.splice import apply_splices

MARK = b"\xef\xbb\xbf"


def patched(data: bytes, *lines: str) -> bytes:
    [action] = parse_patch("\n".join(["*** Begin Patch", "*** Update File: f", *lines, "*** End Patch"]))
    assert isinstance(action, UpdateFile)
    return apply_splices(data, place_hunks(data, action.hunks, path="f"))


def refusal(data: bytes, *lines: str) -> str:
    with pytest.raises(ToolError) as caught:
        patched(data, *lines)
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        # each kind of line end is kept, and new lines get it
        (b"a\nb\nc\n", ["@@", " a", "-b", "+x", "+y"], b"a\nx\ny\nc\n"),
        (b"a\r\nb\r\nc\r\n", ["@@", " a", "-b", "+x", "+y"], b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\rb\rc\r", ["@@", " a", "-b", "+x", "+y"], b"a\rx\ry\rc\r"),
        # in a mixed file each line that stays keeps its own, new ones get the usual one
        (b"a\r\nb\nc\r\nd\n", ["@@", " a", " b", "-c", "+x", " d"], b"a\r\nb\nx\r\nd\n"),
        (b"a\nb\r\nc\n", ["@@", " a", "+x", " b"], b"a\nx\nb\r\nc\n"),
        # no final line end: the last line still has none
        (b"a\nb", ["@@", "-b", "+x"], b"a\nx"),
        (b"a\nb", ["@@", " b", "+x", "+y"], b"a\nb\nx\ny"),
        (b"a\r\nb", ["@@", " b", "+x"], b"a\r\nb\r\nx"),
        (b"a\nb\nc", ["@@", "-b", "-c"], b"a"),
        (b"a\r\nb", ["@@", "-b"], b"a"),
        (b"a\nb", ["@@", "-a", "@@", "-b", "+x"], b"x"),
        (b"a\nb", ["@@", "-a", "+x", "@@", "-b"], b"x"),
        (b"a", ["@@", "-a"], b""),
        (b"a", ["@@", "+x"], b"x\na"),
        # the byte order mark stays, whether the patch shows it or not
        (MARK + b"a\nb\n", ["@@", "-a", "+x"], MARK + b"x\nb\n"),
        (MARK + b"a\nb\n", ["@@", "-\ufeffa", "+\ufeffx"], MARK + b"x\nb\n"),
        (MARK + b"a\nb\n", ["@@", "+x", " a"], MARK + b"x\na\nb\n"),
        (MARK + b"a\nb\nc\n", ["@@", " \ufeffb", "-c"], MARK + b"a\nb\n"),
        (b"a\n", ["@@", "+\ufeffx"], MARK + b"x\na\n"),
        # where lines are only inserted: at the cursor, behind the anchor, at the end
        (b"a\nb\n", ["@@", "+x"], b"x\na\nb\n"),
        (b"a\nb\n", ["@@ a", "+x"], b"a\nx\nb\n"),
        (b"a\nb\n", ["@@", "+x", "*** End of File"], b"a\nb\nx\n"),
        (b"a\nb", ["@@", "+x", "*** End of File"], b"a\nb\nx"),
        (b"a\nb", ["@@ b", "+x"], b"a\nb\nx"),
        (b"", ["@@", "+x"], b"x\n"),
        (b"a\nb\n", ["@@", " a", "-b", "+x", "@@", "+y"], b"a\nx\ny\n"),
        # an anchor makes the place unique, and so does the end
        (b"f\nx\ng\nx\n", ["@@ g", "-x", "+y"], b"f\nx\ng\ny\n"),
        (b"x\na\nx\n", ["@@", "-x", "+y", "*** End of File"], b"x\na\ny\n"),
        # behind the cursor, what was before it does not count
        (b"x\na\nx\n", ["@@", " x", "-a", "@@", "-x", "+y"], b"x\ny\n"),
        # lines are compared as wholes
        (b"aa\na\n", ["@@", "-a", "+x"], b"aa\nx\n"),
        # several changes in one hunk, empty lines and lines without a mark
        (b"a\n\nb\n\tc\n", ["@@", "-a", "+1", "", "-b", "+2", "\tc"], b"1\n\n2\n\tc\n"),
        # other encodings, where the lines named are ASCII
        (
            "größe\nsize = 1\n".encode("latin-1"),
            ["@@", "-size = 1", "+size = 2"],
            "größe\nsize = 2\n".encode("latin-1"),
        ),
        ("中文\r\nsize\r\n".encode("gbk"), ["@@", "-size", "+new"], "中文\r\nnew\r\n".encode("gbk")),
        # a file that ends inside a character
        (b"a\nb\n\xe4\xb8", ["@@", "-a", "+x"], b"x\nb\n\xe4\xb8"),
        (b"a\n\xe4\xb8", ["@@", " a", "+x"], b"a\nx\n\xe4\xb8"),
        # a lone carriage return among line feeds belongs to its line
        (b"50%\r100%\nend\n", ["@@", "-end", "+x"], b"50%\r100%\nx\n"),
    ],
)
def test_bytes_outside_of_the_changed_lines_stay(before: bytes, lines: list[str], after: bytes) -> None:
    assert patched(before, *lines) == after


@pytest.mark.parametrize(
    ("data", "lines", "told"),
    [
        (
            b"a\nx\nb\nx\n",
            ["@@", "-x"],
            "context not unique: hunk 1 of f (line 3 of the patch): its context occurs 2 times (at lines 2, 4); "
            'add context lines, or an anchor: "@@ " and a line before it that occurs once',
        ),
        (
            b"a\nb\n",
            ["@@", "-b", "@@", "-a"],
            "context not found: hunk 2 of f (line 5 of the patch): its context does not occur from line 3 on, "
            "but at line 1; put the hunks in the order of the file",
        ),
        (
            b"def f():\n\treturn 1\n",
            ["@@", " def f():", "-    return 1", "+    return 2"],
            "context not found: hunk 1 of f (line 3 of the patch): its context does not occur; only white space "
            r'differs: line 2 is "\treturn 1", not "    return 1"',
        ),
        (
            b"one\ntwo\nthree\nfour\n",
            ["@@", " one", " two", "-thre", " four"],
            "context not found: hunk 1 of f (line 3 of the patch): its context does not occur; it is most like line 1 "
            'and on, but line 3 is "three", not "thre"',
        ),
        (
            b"a\nb\n",
            ["@@", "-a", "*** End of File"],
            "context not found: hunk 1 of f (line 3 of the patch): its context is at line 1 and not at the end; "
            'leave out "*** End of File"',
        ),
        (
            b"  def f():\na\n",
            ["@@ def f():", "-a"],
            "context not found: hunk 1 of f: its anchor is no whole line of it; only white space differs: "
            'line 1 is "  def f():", not "def f():"',
        ),
        (
            b"x\nx\na\n",
            ["@@ x", "-a"],
            "context not unique: hunk 1 of f: its anchor occurs 2 times (at lines 1, 2); choose a line that occurs "
            "once, or give context",
        ),
        (
            b"a\n",
            ["@@ -1,3 +1,4 @@", "-a"],
            "context not found: hunk 1 of f: its anchor is a range of line numbers; "
            'write "@@" alone or "@@ " and a line',
        ),
        (
            b"",
            ["@@", "-a"],
            "context not found: hunk 1 of f (line 3 of the patch): its context does not occur; nothing in it is like "
            "that: look with readFile and copy the text exactly",
        ),
        (
            "für\nx\n".encode("latin-1"),
            ["@@", " für", "-x"],
            "binary: f is not UTF-8 (byte 0xfc at offset 1); it looks like Latin-1 or another single-byte encoding. "
            'Hunk 1 holds other than ASCII characters ("für"), which cannot be matched or written safely. Leave such '
            "lines out of the context, or convert with runCommand (iconv)",
        ),
    ],
)
def test_what_does_not_apply_is_told_with_lines_and_the_remedy(data: bytes, lines: list[str], told: str) -> None:
    assert refusal(data, *lines) == told


def test_a_file_of_nothing_but_line_ends_takes_no_time() -> None:
    assert refusal(b"\n" * 4_000_000, "@@", "", "-").startswith(
        "context not unique: hunk 1 of f (line 3 of the patch): "
    )


LINES = st.lists(st.sampled_from(["a", "b", "", " c", "é", "-", "+", "@@", "*** End of File"]), max_size=8)
ENDS = st.sampled_from(["\n", "\r\n"])


@given(LINES, LINES, st.data(), st.booleans(), st.sampled_from([b"", MARK]))
def test_a_patch_of_all_lines_turns_one_file_into_the_other(
    old: list[str], new: list[str], data: st.DataObject, ended: bool, mark: bytes
) -> None:
    ends = [data.draw(ENDS) for _ in old]
    if old and not ended:
        ends[-1] = ""
    before = mark + "".join(map(str.__add__, old, ends)).encode()
    changes = list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes())
    lines = []
    for kind, a, b, c, d in changes:
        lines += [" " + line for line in old[a:b]] if kind == "equal" else []
        lines += ["-" + line for line in old[a:b]] + ["+" + line for line in new[c:d]] if kind != "equal" else []
    if all(kind == "equal" for kind, *_ in changes) or (old and not ended and old[-1] == ""):
        return  # nothing changes, or the last line is empty and has no end: then it is no line

    after = patched(before, "@@", *lines)

    assert after.startswith(mark)
    text = after[len(mark) :].decode()
    unified = text.replace("\r\n", "\n")
    assert unified == "\n".join(new) + ("\n" if new and (ended or not old) else "")
    # Lines that stay keep their own line end, but for one that has become the last or is no longer.
    kept = text.split("\n")
    for kind, a, b, c, _ in changes:
        if kind == "equal":
            for number in range(b - a):
                if ends[a + number] and c + number < len(new) - 1:
                    assert kept[c + number] + "\n" == old[a + number] + ends[a + number]


@given(
    st.lists(st.sampled_from(["keep", "drop", "replace", "add"]), max_size=30),
    st.integers(0, 3),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_what_difflib_says_of_two_files_turns_one_into_the_other(
    plan: list[str], context: int, end: str, ended: bool
) -> None:
    old = [f"line {number}" for number, kind in enumerate(plan) if kind != "add"]
    new = [f"{'line' if kind == 'keep' else kind} {number}" for number, kind in enumerate(plan) if kind != "drop"]
    hunks = [line.partition(" ")[0] if line.startswith("@@") else line for line in diffed(old, new, context)]
    before, after = joined(old, end, ended), joined(new, end, ended)
    if not hunks or (not context and "add" in plan) or b"\n" not in before:
        return  # nothing changes, or nothing would say where, or with which line end

    assert patched(before, *hunks) == after


def diffed(old: list[str], new: list[str], context: int) -> list[str]:
    return list(difflib.unified_diff(old, new, n=context, lineterm=""))[2:]


def joined(lines: list[str], end: str, ended: bool) -> bytes:
    return (end.join(lines) + (end if ended and lines else "")).encode()
