"""What every engine does at each step, and how it tells its rate. Imports the standard library only."""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
from pathlib import Path
from typing import Final

TEXT_CHARACTERS: Final = 545  # about 600 B once it is JSON
WARM_UP_STEPS: Final = 5
Message = dict[str, str]

_SOURCE: Final = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_text(encoding="utf-8")


def text(number: int) -> str:
    """The text of message `number`: a piece of source text, another one each time."""
    at = number * 389 % (len(_SOURCE) - TEXT_CHARACTERS)
    return _SOURCE[at : at + TEXT_CHARACTERS]


def message(number: int) -> Message:
    # Some engines take objects with a `role` for messages of their own kind and convert them: not part of the work.
    return {"author": "assistant", "text": text(number)}


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with `--steps`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--steps", type=int, default=400, help="steps of each execution")
    return made


def tell(steps: int, seconds: float, **others: str) -> None:
    """Print the rate, and whatever else is to be known, as one JSON object."""
    print(json.dumps({"steps_per_s": steps / seconds, **others}))


class Clock:
    """`with Clock() as clock: ...`, then `clock.seconds`."""

    def __enter__(self) -> Clock:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.seconds = time.perf_counter() - self._began


def check(found: int, wanted: int) -> None:
    """An engine that lost a step has no rate. Raises: SystemExit."""
    if found != wanted:
        raise SystemExit(f"{found} messages are there after {wanted} steps")
