"""SIGINT waits for a place where it may be taken."""

from __future__ import annotations

import signal

import pytest
from cli_canned import press

from peen.cli.interrupts import Interrupts


def test_sigint_waits_for_the_next_work_that_may_be_broken_off() -> None:
    done: list[str] = []

    with Interrupts() as interrupts:
        press()
        done.append("not broken off")
        with pytest.raises(KeyboardInterrupt):
            interrupts.during(lambda: done.append("never begun"))
        interrupts.during(lambda: done.append("taken once"))

    assert done == ["not broken off", "taken once"]


def test_sigint_breaks_off_such_work_at_once() -> None:
    def work() -> None:
        press()
        raise AssertionError("it went on")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        interrupts.during(work)


def test_a_second_sigint_is_raised_anywhere() -> None:
    with Interrupts():
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_sigint_that_nobody_took_is_forgotten_at_the_end_and_the_former_handler_is_back() -> None:
    before = signal.getsignal(signal.SIGINT)

    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
        press()

    assert signal.getsignal(signal.SIGINT) == before


def test_an_ignored_sigint_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            press()
            assert interrupts.during(lambda: "went on") == "went on"
    finally:
        signal.signal(signal.SIGINT, before)
