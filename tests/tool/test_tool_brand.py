"""A brand goes on through everything by which a process hides, and nothing else changes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tool_world import ordinary_user

from peen.brand import Brand, brand_number, brand_of, worn

ROOT = str(Path(__file__).parents[2])
HIDDEN = ("sh", "-c", "(env -i setsid sh -c 'echo $$; exec >&-; read x' &)")


@contextmanager
def hidden() -> Iterator[int]:
    """Pid of a process without parent, environment, session and output of its own."""
    with subprocess.Popen(HIDDEN, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@pytest.mark.parametrize("brand", list(Brand))
def test_a_brand_is_inherited_by_whatever_hides(brand: Brand) -> None:
    before = resource.getrlimit(brand.limit)

    with worn(brand, brand_number("one")), hidden() as pid:
        others = [brand_of(pid, other) for other in Brand if other is not brand]
        assert (brand_of(pid, brand), others) == (brand_number("one"), [None])

    assert resource.getrlimit(brand.limit) == before
    with hidden() as pid:
        assert brand_of(pid, brand) != brand_number("one")


@pytest.mark.parametrize("brand", list(Brand))
def test_other_accounts_may_read_it(brand: Brand) -> None:
    with worn(brand, brand_number("one")), hidden() as pid, ordinary_user():
        assert brand_of(pid, brand) == brand_number("one")
        assert brand_of(1, brand) is None


def test_a_brand_is_replaced_by_one_that_is_put_on_inside() -> None:
    with worn(Brand.STATE, brand_number("one")):
        with worn(Brand.STATE, brand_number("other")):
            assert brand_of(os.getpid(), Brand.STATE) == brand_number("other")
        assert brand_of(os.getpid(), Brand.STATE) == brand_number("one")


@pytest.mark.parametrize("limits", [(1000, resource.RLIM_INFINITY), (2**40, 2**40)])
def test_a_real_limit_stays(limits: tuple[int, int]) -> None:
    code = (
        "import resource; from peen.brand import Brand, brand_number, wear, worn\n"
        f"resource.setrlimit(Brand.COMMAND.limit, {limits})\n"
        "before = resource.getrlimit(Brand.COMMAND.limit)\n"
        "with worn(Brand.COMMAND, brand_number('one')): print(resource.getrlimit(Brand.COMMAND.limit) == before)\n"
        "print(wear(Brand.COMMAND, brand_number('one')), resource.getrlimit(Brand.COMMAND.limit) == before)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ROOT}, capture_output=True, text=True, check=True
    )

    assert shown.stdout.split() == ["True", "False", "True"]


def test_a_process_that_is_gone_has_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert brand_of(process.pid, Brand.STATE) is None


def test_numbers_differ_and_are_no_real_limits() -> None:
    numbers = {brand_number(f"{number:032x}") for number in range(10_000)}

    assert len(numbers) == 10_000
    assert min(numbers) >= 2**62
    assert max(numbers) < 2**63 - 1
