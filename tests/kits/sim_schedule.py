"""One seed, one run: Trio's own choices drawn from a seed, with a clock that leaps to the next deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


def run_seeded(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run `main` in virtual time; the order in which ready tasks run follows from `seed` alone.

    Trio shuffles what is ready and offers no public way to seed that, so this reaches into it: the flag makes each
    batch start from one order, the generator shuffles it. Both are Trio's internals, which is why its version has an
    upper bound, and `tests/sim/test_sim_determinism.py` notices when they no longer do that.
    """
    internals = trio._core._run
    before = internals._ALLOW_DETERMINISTIC_SCHEDULING
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    internals._r.seed(seed)
    try:
        return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        internals._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
