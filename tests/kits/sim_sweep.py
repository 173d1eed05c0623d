"""One scenario under the same kind of fault at every place where it can strike."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from sim_check import check
from sim_plan import Plan
from sim_play import Scenario

NIGHT: Final = int(os.environ.get("PEEN_SIM_SEEDS", "0"))
"""How many seeds a long run tries; 0 is the short run of every day, which also skips some of the statements."""
MOST: Final = 5000


def sweep(scenario: Scenario, at: Callable[[int], Plan], *, step: int = 1, seed: int = 0) -> int:
    """Run with the fault at place 1, 1 + step, ... until there is no such place; how many worlds that were.

    Every one is checked. Raises: Broken, naming the first that broke.
    """
    for number in range(1, MOST, step):
        world = scenario.run(seed=seed, plan=at(number), checked=False)
        if not world.faults.fired:
            return (number - 1) // step
        check(world)
    raise AssertionError(f"{scenario.name!r} has no end")


def seeds(few: int) -> range:
    """Seeds of this run: `few`, or those of a long one."""
    return range(NIGHT or few)
