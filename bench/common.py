"""What every measurement needs: arguments, medians, a table, one JSON object, and where it was measured."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

SWITCH_INTERVAL_S: Final = 0.0002
"""What `peen run` sets at start. A measurement with a writer thread means little without it."""


def parser(description: str) -> argparse.ArgumentParser:
    """An argument parser with `--quick` (fewer and shorter runs) and `--json` (one object on standard output)."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="fewer and shorter runs, for a look or for CI")
    made.add_argument("--json", action="store_true", help="print exactly one JSON object instead of a table")
    return made


def environment() -> dict[str, str | int]:
    """Where this was measured: figures of two machines are not comparable."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 0,
        "cpus_usable": len(os.sched_getaffinity(0)),
    }


def median(samples: Iterable[float]) -> float:
    """The middle one; of an even number the mean of the two in the middle. `samples` is not empty."""
    return statistics.median(samples)


def percentile(samples: Iterable[float], percent: float) -> float:
    """The smallest sample that at least `percent` (0 to 100) of all samples do not exceed. `samples` is not empty."""
    ordered = sorted(samples)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Text in columns: the first to the left, the others to the right. Floats get three digits that count."""
    lines = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def report(arguments: argparse.Namespace, data: Mapping[str, object], text: str) -> None:
    """Print `data` as one JSON object, with the environment added, if `--json` was given; else `text`."""
    where = environment()
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode({**data, "environment": where}) + b"\n")
        sys.stdout.buffer.flush()
    else:
        print(text)
        print("\n" + ", ".join(f"{name} {value}" for name, value in where.items()))


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
