"""The controller dies around a commit, or a commit fails: for each one there is."""

from __future__ import annotations

import pytest
from sim_plan import Plan
from sim_scenarios import SCENARIOS
from sim_sweep import NIGHT, seeds, sweep

FEWEST = 10
"""Acceptance, admission, a generation, a step and an end, twice over."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_before_any_commit_keeps_every_promise(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(crash_before=n)) >= FEWEST


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_commit_keeps_every_promise(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(crash_after=n)) >= FEWEST


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failure_of_any_commit_keeps_every_promise(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(failed_commit=n)) >= FEWEST


@pytest.mark.skipif(not NIGHT, reason="set PEEN_SIM_SEEDS for a long run")
@pytest.mark.parametrize("seed", seeds(1))
def test_crashes_under_many_schedules(seed: int) -> None:
    for scenario in SCENARIOS.values():
        sweep(scenario, lambda n: Plan(crash_before=n), seed=seed)
        sweep(scenario, lambda n: Plan(crash_after=n), seed=seed)
