"""The disk is full or broken at a statement, once or for a while."""

from __future__ import annotations

import pytest
from sim_plan import Plan
from sim_scenarios import SCENARIOS
from sim_sweep import NIGHT, sweep

STEP = 1 if NIGHT else 13
"""Statements of one transaction all lose the same, so the short run tries about one in each."""
A_WHILE_S = 20
FEWEST = 8


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_disk_that_is_full_at_any_statement(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(full=n), step=STEP) >= FEWEST


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_disk_that_is_full_from_any_statement_on_until_it_is_freed(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(full=n, lasting_s=A_WHILE_S), step=STEP) >= FEWEST


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_input_or_output_error_at_any_statement(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(ioerr=n), step=STEP) >= FEWEST


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_disk_that_fails_from_any_statement_on_for_a_while(name: str) -> None:
    assert sweep(SCENARIOS[name], lambda n: Plan(ioerr=n, lasting_s=A_WHILE_S), step=STEP) >= FEWEST
