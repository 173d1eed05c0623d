"""How two small numbers share one integer key, so that neighbours in a session are neighbours on disk."""

from __future__ import annotations

import re
from typing import Final

SEQUENCE_BITS: Final = 32
MAX_SEQUENCE: Final = (1 << SEQUENCE_BITS) - 1

_NUMBER: Final = "0|[1-9][0-9]*"  # one spelling a number: an id and its position name each other
_STEP = re.compile(rf"(?:open|r(?P<round>{_NUMBER}))(?:\.t(?P<tool>{_NUMBER}))?\.(?P<phase>[A-Za-z]+)")
_ROUND_PHASES: Final = ("prepare", "preCompact", "compact", "postCompact", "model", "turnStop", "final")
_TOOL_PHASES: Final = ("pre", "gate", "deliver", "handler", "outcome", "post", "projection")
_OPEN_PHASES: Final = ("preUserMessage", "sessionStart", "postUserMessage", "turnStart")
MAX_ROUND: Final = (1 << 16) - 2
MAX_TOOL: Final = (1 << 10) - 2


def join(owner_no: int, sequence: int) -> int:
    """Key of number `sequence` (0 .. 2**32 - 1) of one session, execution or model run."""
    return owner_no << SEQUENCE_BITS | sequence


def sequence_of(key: int) -> int:
    return key & MAX_SEQUENCE


def owner_of(key: int) -> int:
    return key >> SEQUENCE_BITS


def step_position(step: str) -> int:
    """Position of a step id: 16 bits of round (0 = opening), 10 of tool (0 = the round itself), 6 of phase.

    Ids look like `open.turnStart`, `r3.model` and `r3.t0.handler`; rounds and tools count from 0.
    Raises: ValueError if `step` is none of these.
    """
    match = _STEP.fullmatch(step)
    if match is None:
        raise ValueError(f"not a step id: {step!r}")
    phase, tool, turn_round = match["phase"], match["tool"], match["round"]
    phases = _OPEN_PHASES if turn_round is None else _ROUND_PHASES if tool is None else _TOOL_PHASES
    if phase not in phases or (turn_round is None and tool is not None):
        raise ValueError(f"not a step id: {step!r}")
    number, slot = 0 if turn_round is None else int(turn_round) + 1, 0 if tool is None else int(tool) + 1
    if number > MAX_ROUND or slot > MAX_TOOL:
        raise ValueError(f"step id out of range: {step!r}")
    return number << 16 | slot << 6 | phases.index(phase) + 1


def step_id(position: int) -> str:
    """The step id at `position`: the inverse of `step_position`."""
    number, slot, phase = position >> 16, position >> 6 & 0x3FF, (position & 0x3F) - 1
    if number == 0:
        return f"open.{_OPEN_PHASES[phase]}"
    if slot == 0:
        return f"r{number - 1}.{_ROUND_PHASES[phase]}"
    return f"r{number - 1}.t{slot - 1}.{_TOOL_PHASES[phase]}"
