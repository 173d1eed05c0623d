"""Stored bytes grow with what is new, not with what was there before."""

from __future__ import annotations

from engine_kit import asks, says, work
from sim_play import Play, Scenario

ROUGHLY = 1.25
"""Pages are whole and trees have levels; history that is stored again with each turn would give far more."""


def stored_bytes(turn_count: int) -> int:
    """Size of the database after so many turns of equal size in one session."""
    script = {f"turn {n}": [[asks(("look", work(f"look.{n}")))], [says(f"done {n}")]] for n in range(turn_count)}

    async def body(play: Play) -> None:
        for number in range(turn_count):
            await play.send(f"turn {number}")
            await play.wait_idle()

    return len(Scenario("growth", script, body).run().disk.image)


def test_as_many_turns_again_take_as_many_bytes_again() -> None:
    sizes = [stored_bytes(count) for count in (20, 40, 80)]

    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert second <= 2 * first * ROUGHLY
