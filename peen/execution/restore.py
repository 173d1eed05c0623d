"""Where a resumed execution goes on. Pure: saved steps in, a starting point out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from peen.execution.decide import CompactGiven, ModelOutput, ReadImage, ToolOutput
from peen.wire.turncalls import SavedStep

_decode_answer: Final = msgspec.json.Decoder(ModelOutput).decode
_decode_result: Final = msgspec.json.Decoder(ToolOutput).decode
_decode_compaction: Final = msgspec.json.Decoder(CompactGiven).decode


@dataclass(frozen=True, slots=True)
class Start:
    """The point from which the loop goes on.

    `turn_round` is the round to work on. With `answer` its model has answered and `results` (by position of the call)
    are there already; without it, the model is asked. `is_begun` says that the round was begun before, so that only
    its model or compaction step is claimed. `compaction` is one that was cut off: it is done as it was begun.
    `is_compacted` says that the round has had its compaction, whatever came of that. `unshown` are images of the round
    before it that have not been shown yet.
    """

    turn_round: int = 0
    answer: ModelOutput | None = None
    results: dict[int, ToolOutput] = field(default_factory=dict)
    is_begun: bool = False
    compaction: CompactGiven | None = None
    is_compacted: bool = False
    unshown: list[ReadImage] = field(default_factory=list)


BEGINNING: Final = Start()


def starting_point(steps: Iterable[SavedStep]) -> Start:
    """Where to go on after the steps that were saved.

    Completed steps are never done again; a round whose calls all have results is over.
    """
    answers: dict[int, ModelOutput] = {}
    results: dict[int, dict[int, ToolOutput]] = {}
    begun: set[int] = set()
    compactions: dict[int, SavedStep] = {}
    for saved in steps:
        number, _, rest = saved.step.removeprefix("r").partition(".")
        if not number.isdecimal():
            continue
        turn_round = int(number)
        if rest == "prepare":
            begun.add(turn_round)  # perhaps no more than that: a used-up budget keeps its model step from beginning
        elif rest == "model":
            begun.add(turn_round)
            if saved.state == "completed":
                answers[turn_round] = _decode_answer(saved.output)
        elif rest == "compact":
            begun.add(turn_round)
            compactions[turn_round] = saved
        elif rest.endswith(".handler") and saved.state == "completed":
            index = int(rest.removeprefix("t").partition(".")[0])
            results.setdefault(turn_round, {})[index] = _decode_result(saved.output)
    done: dict[int, ToolOutput] = {}
    if answers:
        last = max(answers)
        done = results.get(last, {})
        if len(done) < len(answers[last].calls):
            return Start(last, answers[last], done)
    upcoming = max(answers) + 1 if answers else 0
    compaction = compactions.get(upcoming)
    is_over = compaction is not None and compaction.state in ("completed", "failed")
    return Start(
        upcoming,
        is_begun=upcoming in begun,
        compaction=_decode_compaction(compaction.given) if compaction is not None and not is_over else None,
        is_compacted=is_over,
        unshown=[] if upcoming in begun else read_images(done),
    )


def read_images(results: Mapping[int, ToolOutput]) -> list[ReadImage]:
    """What the calls of a round have read, in the order of the calls."""
    return [image for index in sorted(results) if (image := results[index].image) is not None]
