"""The ledger: what an agent knows of files, put together from calls that ran at the same time."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.tool.ledger import Ledger, LedgerConflict, LedgerDelta, Observation
from peen.tool.outline import Outline

OLD, NEW = "a" * 64, "b" * 64


def test_a_read_file_is_known_by_its_hash_and_a_listed_one_by_its_existence() -> None:
    ledger = Ledger()

    ledger.saw_content("/read", OLD)
    ledger.saw_paths(["/listed"])

    assert (ledger.knows("/read"), ledger.sha256_of("/read")) == (True, OLD)
    assert (ledger.knows("/listed"), ledger.sha256_of("/listed")) == (True, None)
    assert not ledger.knows("/other")


def test_listing_never_replaces_a_hash_and_a_later_read_does() -> None:
    ledger = Ledger()
    ledger.saw_content("/f", OLD)

    ledger.saw_paths(["/f"])
    assert ledger.sha256_of("/f") == OLD

    ledger.saw_content("/f", NEW)
    assert ledger.sha256_of("/f") == NEW


def test_what_one_call_saw_is_known_to_the_others_at_once_but_belongs_to_its_own_delta() -> None:
    ledger = Ledger()
    one, other = ledger.for_call(), ledger.for_call()

    one.saw_content("/f", OLD)

    assert other.sha256_of("/f") == ledger.sha256_of("/f") == OLD
    assert [seen.path for seen in one.delta().observations] == ["/f"]
    assert other.delta() == LedgerDelta()


def test_saved_deltas_rebuild_the_ledger_in_any_order_and_however_often() -> None:
    ledger = Ledger()
    calls = [ledger.for_call() for _ in range(3)]
    calls[0].saw_content("/f", OLD)
    calls[1].saw_paths(["/f", "/g"])
    calls[2].saw_content("/f", NEW)

    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0, 2, 1]):
        rebuilt = Ledger()
        for at in order:
            rebuilt.apply(calls[at].delta())
        assert rebuilt.snapshot() == ledger.snapshot()


def test_a_restored_ledger_goes_on_with_newer_revisions() -> None:
    ledger = Ledger()
    ledger.saw_content("/f", OLD)
    saved = msgspec.json.encode(ledger.snapshot())

    restored = Ledger.restore(msgspec.json.decode(saved, type=LedgerDelta))
    restored.saw_content("/f", NEW)

    assert restored.sha256_of("/f") == NEW
    ledger.apply(restored.snapshot())
    assert ledger.sha256_of("/f") == NEW


def test_two_contents_at_one_revision_are_refused_and_nothing_of_them_is_applied() -> None:
    ledger = Ledger.restore(LedgerDelta((Observation("/f", OLD, 3),)))

    with pytest.raises(LedgerConflict, match="/f"):
        ledger.apply(LedgerDelta((Observation("/new", NEW, 4), Observation("/f", NEW, 3))))

    assert not ledger.knows("/new")
    assert ledger.sha256_of("/f") == OLD


def test_what_was_removed_is_unknown_until_it_is_seen_again() -> None:
    ledger = Ledger()
    ledger.saw_content("/f", OLD)
    ledger.saw_paths(["/g"])

    ledger.removed(["/f", "/g", "/never-known"])
    assert [ledger.knows(path) for path in ("/f", "/g")] == [False, False]
    assert [seen.path for seen in ledger.delta().observations if seen.gone] == ["/f", "/g"]

    ledger.saw_paths(["/f"])
    assert (ledger.knows("/f"), ledger.sha256_of("/f")) == (True, None)


def test_a_move_takes_along_what_is_known_below_and_nothing_beside() -> None:
    ledger = Ledger()
    ledger.saw_content("/d/f", OLD)
    ledger.saw_paths(["/d", "/d/sub", "/dd"])
    ledger.saw_content("/e/leftover", NEW)

    ledger.moved("/d", "/e")

    assert ledger.at_or_below("/d") == []
    assert ledger.at_or_below("/e") == ["/e", "/e/f", "/e/sub"]
    assert (ledger.sha256_of("/e/f"), ledger.knows("/dd")) == (OLD, True)


def test_a_removal_counts_in_whatever_order_calls_are_put_together() -> None:
    """An older observation that comes late does not bring back what was removed after it."""
    ledger = Ledger()
    calls = [ledger.for_call() for _ in range(4)]
    calls[0].saw_content("/f", OLD)
    calls[1].removed(["/f"])
    calls[2].saw_paths(["/f"])
    calls[3].saw_content("/g", NEW)

    for order in itertools.permutations(range(4)):
        rebuilt = Ledger()
        for at in order:
            rebuilt.apply(calls[at].delta())
        assert rebuilt.snapshot() == ledger.snapshot()
        assert (rebuilt.knows("/f"), rebuilt.sha256_of("/f")) == (True, None)


def test_a_ledger_saved_before_removals_were_known_is_still_read() -> None:
    saved = msgspec.json.decode(b'{"observations":[["/f",null,3]]}', type=LedgerDelta)

    assert Ledger.restore(saved).knows("/f")


OBSERVATIONS = st.builds(
    lambda path, revision, kind: Observation(
        path, f"{revision:064x}" if kind == "content" else None, revision, kind == "gone"
    ),
    st.sampled_from(["/a", "/b", "/c"]),
    st.integers(min_value=1, max_value=6),
    st.sampled_from(["content", "existence", "gone"]),
)


@given(st.lists(OBSERVATIONS), st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_order_or_repetition(seen: list[Observation], chance: object) -> None:
    shuffled = seen + seen[::2]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    whole = Ledger.restore(LedgerDelta(tuple(seen)))
    piecewise = Ledger()
    for observation in shuffled:
        piecewise.apply(LedgerDelta((observation,)))

    assert piecewise.snapshot() == whole.snapshot()
    assert Ledger.restore(whole.snapshot()).snapshot() == whole.snapshot()


def test_outlines_are_forgotten_the_oldest_first_and_never_count_for_other_content() -> None:
    ledger = Ledger()
    outline = Outline.of(b"x\n" * 10_000)
    assert outline is not None
    for name in "abcd":
        ledger.for_call().saw_content(f"/{name}", OLD, outline)

    assert [ledger.outline_of(f"/{name}") is not None for name in "abcd"] == [False, True, True, True]
    ledger.saw_content("/b", NEW)
    ledger.saw_content("/c", NEW, outline)
    ledger.removed(["/d"])
    assert [ledger.outline_of(f"/{name}") is not None for name in "abcd"] == [False, False, True, False]


def test_an_outline_is_not_saved() -> None:
    ledger = Ledger()
    ledger.saw_content("/f", OLD, Outline.of(b"a\n"))

    restored = Ledger.restore(ledger.snapshot())

    assert (restored.sha256_of("/f"), restored.outline_of("/f")) == (OLD, None)
