"""One seed is one run, in this process or another: without that no failure could be looked at twice."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_plan import Plan
from sim_scenarios import SCENARIOS

NAMES = ["tools", "late", "sessions", "resume", "command_stop"]
PLANS = [Plan(), Plan(crash_before=9), Plan(cut_up=9)]


def trace(seed: int) -> str:
    """A hash of everything that some worlds did: the disk to the last byte, frames in order, requests and tools."""
    whole = hashlib.sha256()
    for name in NAMES:
        for plan in PLANS:
            world = SCENARIOS[name].run(seed=seed, plan=plan, checked=False)
            whole.update(world.disk.image)
            for client in world.clients:
                for frames in client.connections:
                    whole.update(b"".join(frames))
            whole.update(repr([(asked.at_s, asked.turn_text) for asked in world.ledger.asked]).encode())
            whole.update(repr(world.ledger.runs).encode())
    return whole.hexdigest()


def test_one_seed_gives_one_trace_and_another_seed_another() -> None:
    traces = [trace(seed) for seed in range(4)]

    assert traces == [trace(seed) for seed in range(4)]
    assert len(set(traces)) == 4


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_a_fresh_process_with_another_hash_seed_gives_the_same_trace(hash_seed: str) -> None:
    program = "from test_sim_determinism import trace; print(trace(7))"
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / part) for part in (".", "tests/kits", "tests/sim"))

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == trace(7)
