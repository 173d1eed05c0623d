"""Durable steps a second, alone and beside other engines.

    python -m bench.durable [--quick] [--json] [--peers [--peers-env DIR]] [--directory DIR]

A step receives a growing context and appends a message of about 600 B; it is saved before it begins and before the next
one does, with `synchronous=FULL`. 1 and 32 executions at once, with the engine in the store's process and over worker
sockets. The floor is APSW alone: the same message, one synced transaction a step. `--peers` installs DBOS and LangGraph
into an environment of their own and has them do the same with SQLite, one execution at a time; ratios are with 1
execution in the store's process. Each measurement is a process of its own, and they take turns, so that a slow disk
slows all of them. Medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from bench.common import median, parser, report, table
from bench.peers.install import install
from bench.peers.work import Clock, message
from peen.store.connect import connect_writer

REPOSITORY: Final = Path(__file__).parents[1]
EXECUTIONS: Final = (1, 32)
RUN_S: Final = 300.0
OURS: Final = {
    f"{place}{count}": ["bench.peers.peen_steps", "--executions", str(count), *more]
    for place, more in (("peen ", []), ("peen, sockets, ", ["--socket"]))
    for count in EXECUTIONS
}
BESIDE: Final = "peen 1"
ALONE: Final = (BESIDE, "peen, sockets, 1")
THEIRS: Final = {
    "dbos": {"dbos": [], "dbos, whole context": ["--whole"]},
    "langgraph": {"langgraph": [], "langgraph, whole context": ["--whole"]},
}
"""Of each engine two ways: the first saves what a step appended, and is the one that Peen is compared with."""


class Run(msgspec.Struct):
    """What one process measured."""

    steps_per_s: float
    version: str = ""


def run(python: Path, module: list[str], steps: int, directory: Path) -> Run:
    """One measurement in a process of its own. Raises: SystemExit with what it said if it failed."""
    done = subprocess.run(
        [python, "-m", *module, "--steps", str(steps)],
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_S,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(module)} failed:\n{done.stderr.decode()}")
    return msgspec.json.decode(done.stdout, type=Run)


def floor_rate(directory: Path, steps: int) -> float:
    """Steps a second of APSW alone."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        path = Path(name) / "floor.db"
        path.touch()
        connection = connect_writer(str(path), synchronous="FULL", vfs=None)
        connection.execute("CREATE TABLE step (no INTEGER PRIMARY KEY, message BLOB NOT NULL) STRICT")
        with Clock() as clock:
            for number in range(steps):
                connection.execute("INSERT INTO step VALUES (?, ?)", (number, msgspec.json.encode(message(number))))
        connection.close()
    return steps / clock.seconds


def measure(directory: Path, peers: Mapping[str, Path], *, ways: int, steps: int, rounds: int) -> dict[str, object]:
    """`steps` are those of one execution alone; of many at once each takes a quarter of them. `ways` of each peer."""
    commands = {
        name: (Path(sys.executable), what, steps if name in ALONE else steps // 4) for name, what in OURS.items()
    }
    for engine, python in peers.items():
        for name, more in list(THEIRS[engine].items())[:ways]:
            commands[name] = (python, [f"bench.peers.{engine}_steps", *more], steps)
    rates: dict[str, list[float]] = {name: [] for name in ("floor", *commands)}
    versions = {}
    for _ in range(rounds):
        rates["floor"].append(floor_rate(directory, steps))
        for name, (python, module, count) in commands.items():
            done = run(python, module, count, directory)
            rates[name].append(done.steps_per_s)
            if done.version:
                versions[module[0].removeprefix("bench.peers.").removesuffix("_steps")] = done.version
    return figures(rates, versions, peers)


def figures(
    rates: Mapping[str, list[float]], versions: Mapping[str, str], peers: Mapping[str, Path]
) -> dict[str, object]:
    """Medians of the rates, and of the ratios within each round."""
    middle = {name: round(median(found), 1) for name, found in rates.items()}
    data: dict[str, object] = {
        "steps_per_s": {str(count): middle[f"peen {count}"] for count in EXECUTIONS},
        "steps_per_s_socket": {str(count): middle[f"peen, sockets, {count}"] for count in EXECUTIONS},
        "floor_steps_per_s": middle["floor"],
    }
    for engine in peers:
        pairs = zip(rates[BESIDE], rates[engine], strict=True)
        data[f"vs_{engine}"] = round(median(ours / theirs for ours, theirs in pairs), 2)
    if peers:
        data["peers_steps_per_s"] = {
            name: middle[name] for engine in peers for name in THEIRS[engine] if name in middle
        }
        data["peers_versions"] = dict(versions)
    return data


def describe(data: Mapping[str, object]) -> str:
    floor = data["floor_steps_per_s"]
    assert isinstance(floor, float)
    rows: list[tuple[str, float]] = [("APSW alone", floor)]
    for key, where in (("steps_per_s", ""), ("steps_per_s_socket", " over sockets")):
        rates = data[key]
        assert isinstance(rates, dict)
        rows += [(f"Peen{where}, {count} at once", rate) for count, rate in rates.items()]
    peers = data.get("peers_steps_per_s", {})
    assert isinstance(peers, dict)
    rows += list(peers.items())
    lines = [table(["", "steps/s", "of the floor"], [(name, rate, rate / floor) for name, rate in rows])]
    lines += [
        f"Peen, 1 execution, against {engine}: {data[f'vs_{engine}']} times"
        for engine in THEIRS
        if f"vs_{engine}" in data
    ]
    return "\n".join(lines)


def arguments_of() -> argparse.Namespace:
    options = parser("Durable steps a second.")
    options.add_argument("--peers", action="store_true", help="compare with DBOS and LangGraph; installs them with pip")
    options.add_argument("--peers-env", type=Path, help="where they are or will be installed (default: for this run)")
    options.add_argument("--directory", type=Path, help="where to write (default: the temporary directory)")
    return options.parse_args()


def main() -> None:
    arguments = arguments_of()
    ways, steps, rounds = (1, 200, 3) if arguments.quick else (2, 400, 9)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory)))
        peers = install(arguments.peers_env or directory / "peers") if arguments.peers else {}
        data = measure(directory, peers, ways=ways, steps=steps, rounds=rounds)
    data |= {"steps": steps, "rounds": rounds}
    report(arguments, data, describe(data))


if __name__ == "__main__":
    main()
