"""No fault at all, and every order of events: what a scheduler and a slow link may do by themselves."""

from __future__ import annotations

import pytest
from sim_scenarios import SCENARIOS
from sim_sweep import seeds

FEW = 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_schedule_keeps_every_promise(name: str) -> None:
    for seed in seeds(FEW):
        SCENARIOS[name].run(seed=seed)
