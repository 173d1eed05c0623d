"""Rounds a second through the whole program: one socket, a worker a session, every step durable.

    python -m bench.turns [--quick] [--json] [--embedded]

A real `peen run`, a provider in another process (`peen dev upstream`, chat completions over HTTP), and one client
that sends messages and reads the global feed. With `--embedded` the scripted model plays inside the workers instead.
A round is one tool call and its result: `true` in a shell, or reading a small file. The floor does the least that
such a round needs, in one process: it runs the same tool and writes two synced rows. Medians of several turns.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from bench.client import FeedClient, api
from bench.common import median, parser, report, table
from bench.memory import pss_mib
from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

SHELL: Final = {"name": "runCommand", "arguments": {"command": "true", "purpose": "measure"}}
READ: Final = {"name": "readFile", "arguments": {"path": "notes.txt"}}
LENGTHS: Final = (1, 10, 50)
GROWTH: Final = (10, 200)
CROWDS: Final = (8, 32)


def script() -> str:
    """Models named `<tool>-<rounds>`."""
    models = {
        f"{name}-{length}": {
            "repeatLastTurn": True,
            "turns": [{"rounds": [{"calls": [call], "repeat": length}, {"text": "done"}]}],
        }
        for name, call in (("shell", SHELL), ("read", READ))
        for length in {*LENGTHS, *GROWTH}
    }
    return json.dumps({"models": models})


def open_sessions(daemon: Daemon, count: int) -> list[str]:
    ids = []
    for number in range(count):
        workspace = daemon.workspace_root / f"w{number}"
        workspace.mkdir(exist_ok=True)
        (workspace / "notes.txt").write_text("a line\n" * 20)
        opened = api(daemon.address, "/api/v1/sessions/open", body={"workspace": str(workspace)})
        ids.append(opened["session"]["id"])
    return ids


UPSTREAM: Final = "bench"


def turn_ms(client: FeedClient, session: str, model: str) -> float:
    """One turn, from sending to its acknowledgement, in milliseconds."""
    began = time.perf_counter()
    client.wait(client.send(session, "go", f"{UPSTREAM}/{model}"))
    return (time.perf_counter() - began) * 1000


def per_round(client: FeedClient, session: str, tool: str, repeats: int) -> dict[str, float]:
    """Milliseconds a round by length; `slope` is what one more round costs in a warm session."""
    turn_ms(client, session, f"{tool}-1")
    whole = {n: median(turn_ms(client, session, f"{tool}-{n}") for _ in range(repeats)) for n in LENGTHS}
    slope = (whole[LENGTHS[-1]] - whole[LENGTHS[0]]) / (LENGTHS[-1] - LENGTHS[0])
    return {**{str(n): value / n for n, value in whole.items()}, "slope": slope}


def crowd_rounds_per_s(daemon: Daemon, client: FeedClient, count: int, rounds: int) -> float:
    """Rounds a second over `count` sessions at work at once, workers started before."""
    sessions = open_sessions(daemon, count)
    for length in (1, rounds):
        began = time.perf_counter()
        waiting = {client.send(session, "go", f"{UPSTREAM}/shell-{length}") for session in sessions}
        for frame in client.frames():
            if b'"triggeredBy":null' in frame[-30:]:
                continue
            answered = json.loads(frame)
            assert answered["type"] == "message.completed", answered
            waiting.discard(answered["triggeredBy"])
            if not waiting:
                break
    return count * rounds / (time.perf_counter() - began)


def growth(daemon: Daemon, client: FeedClient) -> tuple[float, float]:
    """Bytes that one more round adds to the database, and the exponent of the growth from 10 to 200 rounds."""
    sessions = open_sessions(daemon, 2 + 64)[-2:]
    sizes = []
    for session, length in zip(sessions, GROWTH, strict=True):
        before = database_bytes(daemon)
        turn_ms(client, session, f"shell-{length}")
        sizes.append(database_bytes(daemon) - before)
    few, many = GROWTH
    return (sizes[1] - sizes[0]) / (many - few), math.log(sizes[1] / sizes[0]) / math.log(many / few)


def database_bytes(daemon: Daemon) -> int:
    """Bytes of all pages in use, the write-ahead log included."""
    connection = apsw.Connection(str(daemon.state_dir / "peen.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        pages, free, size = (connection.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * size)
    finally:
        connection.close()


def floor_ms(directory: Path, work: Callable[[], object], rounds: int) -> float:
    """A round without Peen: the tool, and two synced rows in one process."""
    connection = apsw.Connection(str(directory / "floor.db"))
    connection.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS step (id INTEGER PRIMARY KEY, data BLOB)")
    began = time.perf_counter()
    for _ in range(rounds):
        connection.execute("INSERT INTO step (data) VALUES (zeroblob(400))")
        work()
        connection.execute("INSERT INTO step (data) VALUES (zeroblob(400))")
    spent = time.perf_counter() - began
    connection.close()
    return spent * 1000 / rounds


def run_true() -> None:
    subprocess.run(["/bin/sh", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=True)


@contextmanager
def provider(path: Path, *, embedded: bool) -> Iterator[str]:
    """PEEN_UPSTREAMS for the script at `path`."""
    if embedded:
        yield json.dumps([{"name": UPSTREAM, "type": "scripted", "script": str(path)}])
        return
    with UpstreamProcess(path) as upstream:
        yield json.dumps([{"name": UPSTREAM, "type": "openai", "baseUrl": upstream.base_url}])


def measure(directory: Path, *, quick: bool, embedded: bool) -> dict[str, object]:
    path = directory / "script.yaml"
    path.write_text(script())
    with provider(path, embedded=embedded) as upstreams:
        return measure_with(upstreams, directory, quick=quick)


def measure_with(upstreams: str, directory: Path, *, quick: bool) -> dict[str, object]:
    notes = directory / "notes.txt"
    notes.write_text("a line\n" * 20)
    repeats, crowd_rounds = (3, 10) if quick else (9, 50)
    with Daemon(directory, {"PEEN_UPSTREAMS": upstreams, "PEEN_MAX_TOOL_ROUNDS": "300"}) as daemon:
        client = FeedClient(daemon.address)
        session = open_sessions(daemon, 1)[0]
        rounds = {tool: per_round(client, session, tool, repeats) for tool in ("shell", "read")}
        floors = {
            "shell": floor_ms(directory, run_true, 20 * repeats),
            "read": floor_ms(directory, notes.read_bytes, 100 * repeats),
        }
        bytes_per_round, exponent = growth(daemon, client)
        crowds = {str(count): crowd_rounds_per_s(daemon, client, count, crowd_rounds) for count in CROWDS}
        memory = pss_mib(daemon.pid)
        client.close()
    return {
        "ms_per_round": {tool: found["slope"] for tool, found in rounds.items()},
        "ms_per_round_by_length": rounds,
        "floor_ms_per_round": floors,
        "rounds_per_s": crowds,
        "pss_mib_32": memory,
        "bytes_per_round": bytes_per_round,
        "growth_exponent": exponent,
    }


def describe(found: Mapping[str, object]) -> str:
    by_length, floors, crowds = found["ms_per_round_by_length"], found["floor_ms_per_round"], found["rounds_per_s"]
    assert isinstance(by_length, dict)
    assert isinstance(floors, dict)
    assert isinstance(crowds, dict)
    head = ["tool", *(f"{n} rounds" for n in LENGTHS), "one more", "floor", "ratio"]
    rows = [
        [tool, *(values[str(n)] for n in LENGTHS), values["slope"], floors[tool], values["slope"] / floors[tool]]
        for tool, values in by_length.items()
    ]
    return "\n".join(
        [
            "Milliseconds a round, by the length of the turn:",
            table(head, rows),
            "",
            table(["sessions at once", "rounds/s"], [[count, rate] for count, rate in crowds.items()]),
            "",
            f"memory of all processes after 32 busy sessions: {found['pss_mib_32']:.0f} MiB (PSS)",
            f"one more round on disk: {found['bytes_per_round']:.0f} bytes, "
            f"growing as N^{found['growth_exponent']:.2f}",
        ]
    )


def main() -> int:
    options = parser("Rounds through the whole program.")
    options.add_argument("--embedded", action="store_true", help="play the model inside the workers, without HTTP")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        found = measure(Path(name), quick=arguments.quick, embedded=arguments.embedded)
    report(arguments, found, describe(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
