"""Group commit against one commit a request, through the same writer thread: `python -m bench.store`.

A request inserts 900 B and updates a counter row, with `synchronous = FULL`. The variants take turns within one run,
so that a slow or busy disk slows both. The floor is APSW alone, one transaction after another in one thread.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from bench.common import SWITCH_INTERVAL_S, median, parser, percentile, report, table
from peen.entropy import SystemEntropy
from peen.store.batch import BATCH_LIMIT
from peen.store.connect import connect_writer
from peen.store.database import Database, Tx
from peen.store.opening import open_database

ACTORS: Final = (1, 8, 32)
BODY: Final = bytes(range(256)) * 4
SCHEMA: Final = """
CREATE TABLE item (no INTEGER PRIMARY KEY, actor INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE counter (actor INTEGER PRIMARY KEY, n INTEGER NOT NULL) STRICT;
WITH RECURSIVE actor (no) AS (SELECT 0 UNION ALL SELECT no + 1 FROM actor WHERE no < 255)
INSERT INTO counter SELECT no, 0 FROM actor;
"""
_INSERT: Final = "INSERT INTO item (actor, body) VALUES (?, ?)"
_COUNT: Final = "UPDATE counter SET n = n + 1 WHERE actor = ?"


@dataclass
class Cell:
    """Samples of one variant at one number of actors: requests per second of each run, seconds of each request."""

    rates: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)

    def figures(self) -> dict[str, float]:
        return {
            "tx_per_s": round(self.rate, 1),
            "p50_ms": round(percentile(self.waits_s, 50) * 1000, 3),
            "p99_ms": round(percentile(self.waits_s, 99) * 1000, 3),
        }


def change_of(actor: int) -> Callable[[Tx], None]:
    """What one request does."""

    def change(tx: Tx) -> None:
        tx.execute(_INSERT, (actor, BODY[:900]))
        tx.execute(_COUNT, (actor,))

    return change


async def _actor(db: Database, actor: int, until_s: float, waits_s: list[float]) -> None:
    change = change_of(actor)
    began_s = time.perf_counter()
    while began_s < until_s:
        await db.write(change)
        ended_s = time.perf_counter()
        waits_s.append(ended_s - began_s)
        began_s = ended_s


async def run_actors(directory: Path, *, actors: int, batch_limit: int, length_s: float, cell: Cell) -> None:
    """One run: so many actors, each writing again as soon as it has its answer."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        migrations = _write_schema(Path(name) / "migrations")
        opened = open_database(
            Path(name) / "bench.db",
            migrations=migrations,
            name="peen bench",
            entropy=SystemEntropy(),
            reserve_bytes=0,
            batch_limit=batch_limit,
        )
        async with opened as db:
            waits_s: list[float] = []
            began_s = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for actor in range(actors):
                    nursery.start_soon(_actor, db, actor, began_s + length_s, waits_s)
            cell.rates.append(len(waits_s) / (time.perf_counter() - began_s))
            cell.waits_s += waits_s


def run_floor(directory: Path, *, length_s: float, cell: Cell) -> None:
    """One run of APSW alone: no trio, no thread, one transaction a request."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        path = Path(name) / "floor.db"
        path.touch()
        connection = connect_writer(str(path), synchronous="FULL", vfs=None)
        connection.execute(SCHEMA)
        waits_s: list[float] = []
        first_s = began_s = time.perf_counter()
        while began_s < first_s + length_s:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_INSERT, (0, BODY[:900]))
            connection.execute(_COUNT, (0,))
            connection.execute("COMMIT")
            ended_s = time.perf_counter()
            waits_s.append(ended_s - began_s)
            began_s = ended_s
        connection.close()
        cell.rates.append(len(waits_s) / (began_s - first_s))
        cell.waits_s += waits_s


def _write_schema(directory: Path) -> Path:
    directory.mkdir()
    (directory / "0001_bench.sql").write_text(SCHEMA)
    return directory


async def measure(directory: Path, *, rounds: int, length_s: float) -> tuple[Cell, dict[tuple[str, int], Cell]]:
    """The floor, and a cell for ("group" or "single", actors)."""
    floor = Cell()
    cells = {(variant, actors): Cell() for actors in ACTORS for variant in ("group", "single")}
    for _ in range(rounds):
        run_floor(directory, length_s=length_s, cell=floor)
        for (variant, actors), cell in cells.items():
            limit = BATCH_LIMIT if variant == "group" else 1
            await run_actors(directory, actors=actors, batch_limit=limit, length_s=length_s, cell=cell)
    return floor, cells


def main() -> None:
    made = parser("Group commit against one commit a request.")
    made.add_argument("--directory", type=Path, help="where to write (default: the temporary directory)")
    arguments = made.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rounds, length_s = (5, 0.3) if arguments.quick else (7, 2.0)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        # One floor and two variants at three numbers of actors a round: about 11 s in all, 100 s without --quick.
        floor, cells = trio.run(lambda: measure(Path(name), rounds=rounds, length_s=length_s))
    gain = {actors: cells["group", actors].rate / cells["single", actors].rate for actors in ACTORS}
    data = {
        "group_gain": {str(actors): round(value, 2) for actors, value in gain.items()},
        "floor_tx_per_s": round(floor.rate, 1),
        "floor": floor.figures(),
        "group": {str(actors): cells["group", actors].figures() for actors in ACTORS},
        "single": {str(actors): cells["single", actors].figures() for actors in ACTORS},
        "rounds": rounds,
        "seconds_per_run": length_s,
    }
    report(arguments, data, table(["", "tx/s", "p50 ms", "p99 ms", "gain"], _rows(floor, cells, gain)))


def _rows(floor: Cell, cells: dict[tuple[str, int], Cell], gain: dict[int, float]) -> Iterator[tuple[str | float, ...]]:
    yield ("APSW alone, one thread", *floor.figures().values(), "")
    for actors in ACTORS:
        yield (f"one commit a request, {actors} actors", *cells["single", actors].figures().values(), "")
        yield (f"group commit, {actors} actors", *cells["group", actors].figures().values(), gain[actors])


if __name__ == "__main__":
    main()
