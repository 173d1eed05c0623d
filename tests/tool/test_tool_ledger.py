"""The ledger: what an agent knows of files, put together from calls that ran at the same time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.tool.ledger import Ledger, LedgerConflict, LedgerDelta, Observation

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


OBSERVATIONS = st.builds(
    lambda path, revision, hashed: Observation(path, f"{revision:064x}" if hashed else None, revision),
    st.sampled_from(["/a", "/b", "/c"]),
    st.integers(min_value=1, max_value=6),
    st.booleans(),
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
