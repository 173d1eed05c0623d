from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.store import keys
from peen.store.keys import MAX_ROUND, MAX_SEQUENCE, MAX_TOOL

OPENING = ["preUserMessage", "sessionStart", "postUserMessage", "turnStart"]
ROUND = ["prepare", "preCompact", "compact", "postCompact", "model", "turnStop", "final"]
TOOL = ["pre", "gate", "deliver", "handler", "outcome", "post", "projection"]

# A step as (round, tool, place of its phase): tuples sort as the workflow runs. -1 stands before all others.
STEPS = st.one_of(
    st.tuples(st.just(-1), st.just(-1), st.integers(0, len(OPENING) - 1)),
    st.tuples(st.integers(0, MAX_ROUND - 1), st.just(-1), st.integers(0, len(ROUND) - 1)),
    st.tuples(st.integers(0, MAX_ROUND - 1), st.integers(0, MAX_TOOL - 1), st.integers(0, len(TOOL) - 1)),
)


def spelled(step: tuple[int, int, int]) -> str:
    turn_round, tool, phase = step
    if turn_round < 0:
        return f"open.{OPENING[phase]}"
    return f"r{turn_round}.{ROUND[phase]}" if tool < 0 else f"r{turn_round}.t{tool}.{TOOL[phase]}"


@given(STEPS)
def test_a_step_id_comes_back_from_its_position(step: tuple[int, int, int]) -> None:
    position = keys.step_position(spelled(step))

    assert keys.step_id(position) == spelled(step)
    assert 0 < position <= MAX_SEQUENCE


@given(STEPS, STEPS)
def test_positions_are_ordered_by_round_then_tool_then_phase(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert (keys.step_position(spelled(one)) < keys.step_position(spelled(other))) == (one < other)


@pytest.mark.parametrize(
    "step",
    [
        "",
        "r0",
        "r0.",
        "open",
        "open.model",
        "open.t0.handler",
        "r0.handler",
        "r0.t0.model",
        "r0.turnStart",
        "r-1.model",
        "r0.t0.t1.handler",
        "r0.model ",
        "r0.model\n",
        "R0.model",
        "r00.model",
        "r0.t01.handler",
        "r٣.model",
        f"r{MAX_ROUND}.model",
        f"r0.t{MAX_TOOL}.handler",
        "r99999999999.model",
    ],
)
def test_what_is_no_step_id_is_refused(step: str) -> None:
    with pytest.raises(ValueError, match="step id"):
        keys.step_position(step)


@given(st.integers(0, 2**31 - 1), st.integers(0, MAX_SEQUENCE))
def test_owner_and_sequence_come_back_from_their_key(owner: int, sequence: int) -> None:
    key = keys.join(owner, sequence)

    assert (keys.owner_of(key), keys.sequence_of(key)) == (owner, sequence)
    assert 0 <= key < 2**63


@given(st.integers(0, 2**31 - 2), st.integers(0, MAX_SEQUENCE))
def test_all_keys_of_an_owner_lie_before_those_of_the_next(owner: int, sequence: int) -> None:
    assert keys.join(owner, 0) <= keys.join(owner, sequence) < keys.join(owner + 1, 0)
