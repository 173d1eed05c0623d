"""A worker's link breaks at a frame, between two or inside one; or its worker is replaced and does not know."""

from __future__ import annotations

import pytest
from sim_plan import Plan
from sim_scenarios import SCENARIOS
from sim_sweep import NIGHT, seeds, sweep

FEWEST = 8
"""Hello, a beat, admission, steps and the answer to a command, or what answers them."""


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_link_that_breaks_at_any_frame_to_the_controller(name: str, half: int) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(cut_up=n, half=half), step=1 + half) >= FEWEST // 2


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_link_that_breaks_at_any_frame_to_the_worker(name: str, half: int) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(cut_down=n, half=half), step=1 + half) >= FEWEST // 2


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_replaced_worker_that_goes_on_writes_nothing(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(replace=n)) >= FEWEST


def test_a_replaced_worker_is_refused_in_each_kind_of_call() -> None:
    refused: set[str] = set()
    for seed in range(3):
        for number in range(1, 13):
            world = SCENARIOS["late"].run(seed=seed, plan=Plan(replace=number))
            refused.update(call for ghost in world.ghosts for call in ghost.refused)

    assert refused == {"turn.open", "steps.commit", "events.emit"}


@pytest.mark.skipif(not NIGHT, reason="set PEEN_SIM_SEEDS for a long run")
@pytest.mark.parametrize("seed", seeds(1))
def test_cuts_and_replacements_under_many_schedules(seed: int) -> None:
    for scenario in SCENARIOS.values():
        sweep(scenario, lambda n: Plan(cut_up=n), seed=seed)
        sweep(scenario, lambda n: Plan(cut_down=n), seed=seed)
        sweep(scenario, lambda n: Plan(replace=n), seed=seed)
