"""Whoever waits for the end of a command waits longer than that may take."""

from __future__ import annotations

from peen import patience
from peen.space.terms import Limits


def test_a_worker_has_ended_its_commands_before_anybody_loses_patience_with_it() -> None:
    ending_s = patience.TERM_GRACE_S + patience.KILL_GRACE_S + patience.RECORD_S

    assert ending_s == patience.COMMAND_END_S
    assert patience.COMMAND_END_S + 0.5 <= patience.STOP_QUIET_S < patience.STOP_S
    assert patience.COMMAND_END_S < patience.CLEANUP_S < Limits().shutdown_s
