"""The text of a patch: what it means, and what is said where it means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from peen.tool.base import ToolError
from peen.tool.patch import Action, AddFile, DeleteFile, Hunk, UpdateFile, parse_patch


def framed(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def refusal(text: str) -> str:
    with pytest.raises(ToolError) as caught:
        parse_patch(text)
    return str(caught.value)


def test_every_kind_of_action_is_read_in_order() -> None:
    patch = framed(
        "*** Add File: new dir/a.txt",
        "+first",
        "+",
        "++plus",
        "*** Delete File: gone",
        "*** Update File: old",
        "*** Move to: other",
        "@@ def f():",
        " context",
        "-out",
        "+in",
        "*** End of File",
        "*** Update File: just",
        "*** Move to: moved",
    )

    assert parse_patch(patch) == [
        AddFile("new dir/a.txt", "first\n\n+plus\n"),
        DeleteFile("gone"),
        UpdateFile("old", "other", (Hunk("def f():", ((" ", "context"), ("-", "out"), ("+", "in")), True, 9),)),
        UpdateFile("just", "moved", ()),
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # carriage returns before line feeds are no part of a line
        (["@@\r", "-a\r", "+b\r"], ((("-", "a"), ("+", "b")),)),
        # a line without a mark, and an empty one, are context
        (["@@", "plain", "", "-a", "\tb"], (((" ", "plain"), (" ", ""), ("-", "a"), (" ", "\tb")),)),
        # several hunks, with and without an anchor
        (["@@", "-a", "@@ b", "+c"], ((("-", "a"),), (("+", "c"),))),
        # a bare @@ with nothing behind it
        (["@@", "-a", "@@"], ((("-", "a"),),)),
        # empty lines between the actions
        (["@@", "-a", "", ""], ((("-", "a"),),)),
        # what looks like the head of a unified diff is a line to take out
        (["@@", "--- a"], ((("-", "-- a"),),)),
    ],
)
def test_the_lines_of_hunks(lines: list[str], expected: tuple[tuple[tuple[str, str], ...], ...]) -> None:
    [action] = parse_patch(framed("*** Update File: f", *lines))

    assert isinstance(action, UpdateFile)
    assert tuple(hunk.lines for hunk in action.hunks) == expected


def test_an_added_file_may_be_empty() -> None:
    assert parse_patch(framed("*** Add File: a", "", "*** Add File: b")) == [AddFile("a", ""), AddFile("b", "")]


def test_white_space_around_the_frame_does_not_matter() -> None:
    expected: list[Action] = [DeleteFile("a")]

    assert parse_patch("\n\n" + framed("*** Delete File: a ") + " \n\n") == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", 'its first line must be "*** Begin Patch"'),
        (
            "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
            'its first line must be "*** Begin Patch"; a unified diff is not understood',
        ),
        ("*** Begin Patch\n*** Delete File: a\n", 'its last line must be "*** End Patch"; was it cut off?'),
        ("*** Begin Patch", 'its last line must be "*** End Patch"; was it cut off?'),
        (framed(), "it changes no file"),
        (framed("*** Delete File: a\0"), "it holds a NUL character"),
        (framed("*** Delete File:"), 'line 2 of the patch: "*** Delete File:" names no path'),
        (
            framed("*** Delete File: a", "-x"),
            'line 3 of the patch: "-x" begins no action; "*** Delete File" has no lines',
        ),
        (
            framed("*** Remove File: a"),
            'line 2 of the patch: "*** Remove File: a" begins no action; expected "*** Add File: PATH", '
            '"*** Delete File: PATH" or "*** Update File: PATH"',
        ),
        (
            framed("*** Add File: a", "+x", "y"),
            'line 4 of the patch: every line of an added file begins with "+", not "y"',
        ),
        (framed("*** Update File: a"), "line 2 of the patch: an update without a move needs hunks"),
        (framed("*** Update File: a", "@@"), "line 2 of the patch: an update without a move needs hunks"),
        (framed("*** Update File: a", "-x"), 'line 3 of the patch: a hunk begins with "@@", not with "-x"'),
        (framed("*** Update File: a", "@@x", "-x"), 'line 3 of the patch: a hunk begins with "@@", not with "@@x"'),
        (
            framed("*** Update File: a", "@@", " x"),
            'line 3 of the patch: the hunk changes nothing; it needs lines with "-" or "+"',
        ),
        (
            framed("*** Update File: a", "@@ x", "@@ y", "-z"),
            'line 3 of the patch: the hunk changes nothing; it needs lines with "-" or "+"',
        ),
        (
            framed("*** Update File: a", "@@", "-x", "*** Rename to: b"),
            'line 5 of the patch: "*** Rename to: b" is unknown; begin a line of the file with a space',
        ),
    ],
)
def test_what_is_no_patch_is_refused_with_the_line_and_the_remedy(text: str, told: str) -> None:
    assert refusal(text) == f"invalid patch: {told}"


def test_the_numbers_of_files_and_hunks_are_limited() -> None:
    parse_patch(framed(*(f"*** Delete File: {number}" for number in range(64))))
    parse_patch(framed("*** Update File: f", *["@@", "+x"] * 256))

    assert refusal(framed(*(f"*** Delete File: {number}" for number in range(65)))) == (
        "limit exceeded: a patch may change 64 files; split it up"
    )
    assert refusal(framed("*** Update File: f", *["@@", "+x"] * 257)) == (
        "limit exceeded: a patch may have 256 hunks; split it up"
    )


def test_the_documented_patch_is_one() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/tools.md").read_text()
    [example] = [part.partition("```")[0] for part in page.split("```text\n")[1:]]

    add, update, delete = parse_patch(example)

    assert (add, delete) == (AddFile("docs/new.md", "# New\n"), DeleteFile("old.txt"))
    assert isinstance(update, UpdateFile)
    assert update.move_to == "src/main.py"
    assert [hunk.anchor for hunk in update.hunks] == ["def main():"]
