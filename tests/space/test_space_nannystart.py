"""Waiting for a process without polling."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from peen.space.nannystart import wait_for_exit


@pytest.fixture
def cat() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its input does."""
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with process:
        yield process


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_a_process_that_goes_on_is_waited_for_no_longer_than_allowed(cat: subprocess.Popen[bytes]) -> None:
    assert wait_for_exit(cat, 0.01) is False
    assert cat.returncode is None


def test_a_process_that_ends_is_reaped(cat: subprocess.Popen[bytes]) -> None:
    end(cat)

    assert wait_for_exit(cat, 10.0) is True
    assert cat.returncode == 0


def test_one_that_was_reaped_before_is_no_error(cat: subprocess.Popen[bytes]) -> None:
    end(cat)
    cat.wait()

    assert wait_for_exit(cat, 10.0) is True
