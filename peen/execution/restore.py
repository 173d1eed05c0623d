"""Where a resumed execution goes on. Pure: saved steps in, a starting point out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from peen.execution.decide import ModelOutput, ReadImage, ToolOutput
from peen.wire.worker import SavedStep

_decode_answer: Final = msgspec.json.Decoder(ModelOutput).decode
_decode_result: Final = msgspec.json.Decoder(ToolOutput).decode


@dataclass(frozen=True, slots=True)
class Start:
    """The point from which the loop goes on.

    `turn_round` is the round to work on. With `answer` its model has answered and `results` (by position of the call)
    are there already; without it, the model is asked. `is_begun` says that the round's model step was begun before, so
    that only its claim is renewed. `unshown` are images of the round before it that have not been shown yet.
    """

    turn_round: int = 0
    answer: ModelOutput | None = None
    results: dict[int, ToolOutput] = field(default_factory=dict)
    is_begun: bool = False
    unshown: list[ReadImage] = field(default_factory=list)


def starting_point(steps: Iterable[SavedStep]) -> Start:
    """Where to go on after the steps that were saved.

    Completed steps are never done again; a round whose calls all have results is over.
    """
    answers: dict[int, ModelOutput] = {}
    results: dict[int, dict[int, ToolOutput]] = {}
    begun: set[int] = set()
    for saved in steps:
        number, _, rest = saved.step.removeprefix("r").partition(".")
        if not number.isdecimal():
            continue
        turn_round = int(number)
        if rest == "model":
            begun.add(turn_round)
            if saved.state == "completed":
                answers[turn_round] = _decode_answer(saved.output)
        elif rest.endswith(".handler") and saved.state == "completed":
            index = int(rest.removeprefix("t").partition(".")[0])
            results.setdefault(turn_round, {})[index] = _decode_result(saved.output)
    if not answers:
        return Start(is_begun=0 in begun)
    last = max(answers)
    done = results.get(last, {})
    if len(done) < len(answers[last].calls):
        return Start(last, answers[last], done)
    is_begun = last + 1 in begun
    return Start(last + 1, is_begun=is_begun, unshown=[] if is_begun else read_images(done))


def read_images(results: Mapping[int, ToolOutput]) -> list[ReadImage]:
    """What the calls of a round have read, in the order of the calls."""
    return [image for index in sorted(results) if (image := results[index].image) is not None]
