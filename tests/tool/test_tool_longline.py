"""Long lines in diffs: what changed can be seen, and what is left out is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_world import World

from peen.tool.longline import LONG_BYTES, Span, changed_part, shortened

GAP = re.compile(r"\[\.\.\. (\d+) characters left out(?:, (\d+) of the changes among them)? \.\.\.\]")


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300), st.sampled_from([b"", b"x" * 70_000]))
def test_what_changed_is_what_is_left_without_both_ends(begin: bytes, one: bytes, other: bytes, more: bytes) -> None:
    old, new = more + begin + one + begin + more, more + begin + other + begin + more

    before, after = changed_part(old, new)

    assert old[: before.start] == new[: after.start]
    assert old[before.end :] == new[after.end :]
    left, right = old[before.start : before.end], new[after.start : after.end]
    assert not (left and right) or (left[0] != right[0] and left[-1] != right[-1])
    assert old[: before.start] + right + old[before.end :] == new


@st.composite
def long_lines(draw: st.DrawFn) -> tuple[bytes, list[Span]]:
    """A line of at least 1200 characters of all lengths, and sorted changes anywhere in it."""
    runs = draw(st.lists(st.tuples(st.sampled_from("aé中\U0001f600"), st.integers(300, 700)), min_size=4, max_size=20))
    line = ("".join(character * count for character, count in runs) + draw(st.sampled_from(["", "\r\n"]))).encode()
    places = draw(st.lists(st.tuples(st.integers(0, len(line)), st.integers(0, 500)), max_size=24))
    return line, [Span(at, min(at + size, len(line))) for at, size in sorted(places)]


@given(long_lines())
def test_every_character_is_shown_or_counted_and_so_is_every_change(drawn: tuple[bytes, list[Span]]) -> None:
    line, spans = drawn

    shown = shortened(line, spans)

    text = line.decode()
    pieces = GAP.split(shown)
    kept, left_out = (
        pieces[::3],
        [(int(size), int(changes or 0)) for size, changes in zip(pieces[1::3], pieces[2::3], strict=True)],
    )
    at, seen = 0, set[int]()
    for piece, (gap, _) in zip(kept, [*left_out, (0, 0)], strict=True):
        assert text.startswith(piece, at)
        begins = len(text[:at].encode())
        seen |= set(range(begins, begins + len(piece.encode())))
        at += len(piece) + gap
    assert at == len(text)
    assert shown.endswith(text[-2:])
    for span in spans[:16]:
        assert seen.issuperset(range(max(span.start - 100, 0), min(span.start + 100, len(line))))
        assert seen.issuperset(range(max(span.end - 100, 0), min(span.end + 100, len(line))))
    hidden = [span for span in spans if span.start < len(line) and span.start not in seen]
    assert sum(changes for _, changes in left_out) == len(hidden)
    assert len(shown.encode()) <= 800 * (min(len(spans), 16) + 1)


@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut(shift: int) -> None:
    line = b"a" * shift + "\U0001f600".encode() * 2000

    shown = shortened(line, [Span(4000, 4001)])

    assert set(GAP.sub("", shown)) <= set("a\U0001f600")


@pytest.mark.parametrize(
    ("changes", "told"), [(16, ""), (17, ", 1 of the changes among them"), (90, ", 74 of the changes among them")]
)
def test_of_many_changes_in_one_line_sixteen_are_shown_and_the_rest_is_counted(changes: int, told: str) -> None:
    line = b"".join(b"%03d" % number + b"q" * 2000 for number in range(100))

    shown = shortened(line, [Span(2003 * number, 2003 * number + 3) for number in range(changes)])

    assert [number for number in range(100) if f"{number:03}" in GAP.sub("", shown)] == list(range(16))
    assert shown.count("of the changes") == bool(told)
    assert re.search(rf"q\[\.\.\. \d+ characters left out{told} \.\.\.\]q+$", shown)


def test_a_change_just_behind_what_is_shown_is_counted() -> None:
    line = b"q" * 5000
    near = [Span(number, number) for number in range(16)]
    size = len(shortened(line, near).split("[", 1)[0])

    assert "left out ..." in shortened(line, [*near, Span(size - 1, size)])
    assert "left out, 1 of the changes" in shortened(line, [*near, Span(size, size + 1)])


LONG = b"q" * 300_000
MARKER = r"\[\.\.\. \d+ characters left out \.\.\.\]"


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", "*** Update File: f", "@@", *lines, "*** End Patch"])


async def diff_of(world: World, content: bytes, tool: str, arguments: dict[str, object]) -> str:
    world.file("f", content)
    await world.call("readFile", path="f")  # refused where it is large, and noted all the same
    result = await world.ok(tool, path="f", **arguments) if tool == "editFile" else await world.ok(tool, **arguments)
    assert result["diffTruncated"] is False
    diff: str = result["diff"]
    return diff.split(" @@\n", 1)[1]


async def test_a_change_in_the_middle_of_a_long_line_is_shown(tmp_path: Path) -> None:
    content = b"start\n" + LONG + b" old " + LONG + b"\nend\n"

    diff = await diff_of(World(tmp_path), content, "editFile", {"edits": [{"old": " old ", "new": " new words "}]})

    before, removed, added, after = diff.splitlines()
    assert (before, after) == (" start", " end")
    assert re.fullmatch(f"-q+{MARKER}q+ old q+{MARKER}q+", removed)
    assert re.fullmatch(rf"\+q+{MARKER}q+ new words q+{MARKER}q+", added)
    assert len(diff) < 1500


async def test_several_changes_in_one_long_line_are_all_shown(tmp_path: Path) -> None:
    content = b"one" + LONG + b"two" + LONG + b"three"
    edits = [{"old": word, "new": word.upper()} for word in ("one", "two", "three")]

    diff = await diff_of(World(tmp_path), content, "editFile", {"edits": edits})

    removed, _, added, _ = diff.splitlines()
    assert re.fullmatch(f"-oneq+{MARKER}q+twoq+{MARKER}q+three", removed)
    assert re.fullmatch(rf"\+ONEq+{MARKER}q+TWOq+{MARKER}q+THREE", added)


async def test_a_patch_of_several_long_lines_shows_what_changed_in_each(tmp_path: Path) -> None:
    lines = ["x" * 20_000 + f" word {number} " + "z" * 20_000 for number in range(3)]
    changed = [line.replace("word", "change") for line in lines]
    arguments: dict[str, object] = {"patch": patch(*("-" + line for line in lines), *("+" + line for line in changed))}
    world = World(tmp_path, max_write_bytes=1_000_000)

    diff = await diff_of(world, "\n".join([*lines, ""]).encode(), "applyPatch", arguments)

    for number, (removed, added) in enumerate(zip(diff.splitlines()[:3], diff.splitlines()[3:], strict=True)):
        assert re.fullmatch(f"-x+{MARKER}x+ word {number} z+{MARKER}z+", removed)
        assert re.fullmatch(rf"\+x+{MARKER}x+ change {number} z+{MARKER}z+", added)
        assert len(removed) < 1000


async def test_changes_that_are_not_shown_are_counted_in_the_diff(tmp_path: Path) -> None:
    content = b"".join(b"<%d>" % number + b"q" * 2000 for number in range(20))
    edits = [{"old": f"<{number}>", "new": f"[{number}]"} for number in range(20)]

    diff = await diff_of(World(tmp_path), content, "editFile", {"edits": edits})

    removed, _, added, _ = diff.splitlines()
    assert ("<15>" in removed, "[15]" in added, "16" in GAP.sub("", diff)) == (True, True, False)
    assert [line.count(" characters left out, 4 of the changes among them ...]q") for line in (removed, added)] == [
        1,
        1,
    ]


async def test_long_lines_around_a_change_are_shortened_and_the_change_is_whole(tmp_path: Path) -> None:
    content = LONG + b"\r\nold\r\n" + LONG

    diff = await diff_of(World(tmp_path), content, "editFile", {"edits": [{"old": "old\n", "new": "new\nmore\n"}]})

    assert re.fullmatch(
        f" q+{MARKER}q+\r\n-old\r\n\\+new\r\n\\+more\r\n q+{MARKER}q+\n\\\\ No newline at end of file\n", diff
    )


async def test_a_patch_names_a_whole_line_and_its_diff_shows_what_changed_in_it(tmp_path: Path) -> None:
    lines = ["é" * 20_000 + f" word {number} " + "中" * 20_000 for number in range(2)]
    content = "\n".join(["a", *lines, "z", ""]).encode()
    changed = [line.replace("word", "change") for line in lines]
    arguments: dict[str, object] = {"patch": patch(*("-" + line for line in lines), *("+" + line for line in changed))}

    diff = await diff_of(World(tmp_path, max_write_bytes=1_000_000), content, "applyPatch", arguments)

    for number, (removed, added) in enumerate(zip(diff.splitlines()[1:3], diff.splitlines()[3:5], strict=True)):
        assert re.fullmatch(f"-é+{MARKER}é+ word {number} 中+{MARKER}中+", removed)
        assert re.fullmatch(rf"\+é+{MARKER}é+ change {number} 中+{MARKER}中+", added)


async def test_a_change_in_a_file_with_bare_carriage_returns_is_shown(tmp_path: Path) -> None:
    content = b"line\r" * 50_000 + b"old\r" + b"line\r" * 50_000

    diff = await diff_of(World(tmp_path), content, "editFile", {"edits": [{"old": "old\n", "new": "new\n"}]})

    assert "\rold\r" in diff
    assert "\rnew\r" in diff
    assert len(diff) < 2000


@pytest.mark.parametrize("size", [LONG_BYTES - 10, LONG_BYTES + 10])
async def test_only_long_lines_are_shortened(tmp_path: Path, size: int) -> None:
    content = b"x" * size + b"old\n"

    diff = await diff_of(World(tmp_path), content, "editFile", {"edits": [{"old": "old", "new": "new"}]})

    assert ("characters left out" in diff) is (size > LONG_BYTES)
    assert "old\n" in diff
    assert "new\n" in diff
