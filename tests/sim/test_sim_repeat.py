"""Runs one world again: `PEEN_SIM='stop seed=3 crash_before=7'`, as a failing one prints it."""

from __future__ import annotations

import os

from sim_plan import Plan
from sim_scenarios import SCENARIOS

DEFAULT = "stop seed=0 failed_commit=11"


def test_the_named_world_keeps_its_promises() -> None:
    name, seed, *words = os.environ.get("PEEN_SIM", DEFAULT).split()

    world = SCENARIOS[name].run(seed=int(seed.removeprefix("seed=")), plan=Plan.parse(words))

    assert world.repeat == f"PEEN_SIM='{' '.join([name, seed, *words])}' python -m pytest tests/sim/test_sim_repeat.py"
