"""What a model costs on our side of the wire: a streamed piece, a round, a long history, a large context.

    python -m bench.models [--quick] [--json]

A provider in another process (`peen dev upstream`) plays the same script to each adapter; `scripted` plays it inside
this one and is the floor: what is left without requests, bytes and parsing. Per piece: an answer of 2,000 pieces,
from its first to its last event, read and folded. Per round: a turn of the real engine whose every answer is a call of
a tool that costs nothing; a sample lasts from one answer to the next, and stands for the rounds around the 10th, 100th
and 200th. Wall time holds the provider's own reading of the request, CPU time is that of this process alone; both ought
to be flat. Memory: what a process with a turn of three rounds needs at its peak, in a context of 200,000 tokens (of
four characters) and in an empty one; records go nowhere, so that no store is part of it.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from bench.common import SWITCH_INTERVAL_S, median, parser, report, table
from bench.oneturn import one_turn
from peen.model.fold import Fold
from peen.model.registry import Models
from peen.model.stream import ModelRequest
from peen.testing.upstream.process import UpstreamProcess
from peen.wire.launch import UpstreamConfig
from peen.wire.records import MessageRecord
from peen.wire.turncalls import HistoryMessage

PIECES: Final = 2_000
PIECE: Final = "word "
TALKS: Final = "talks"
GROWS: Final = "grows"
WORKS: Final = "works"
ROUNDS: Final = 206
AT: Final = (10, 100, 200)
AROUND: Final = 5
CONTEXT_TOKENS: Final = 200_000
CHARACTERS_PER_TOKEN: Final = 4
MESSAGE_CHARACTERS: Final = 4_000
NAME: Final = "bench"


def script() -> str:
    """Three models: one talks in pieces, one asks for many rounds, one for two."""
    call = {"calls": [{"name": "look", "arguments": {}}]}
    rounds = {
        TALKS: [{"text": PIECE * PIECES, "chunk": len(PIECE)}],
        GROWS: [{**call, "repeat": ROUNDS}, {"text": "done"}],
        WORKS: [{**call, "repeat": 2}, {"text": "done"}],
    }
    turns = {name: {"turns": [{"rounds": found}], "repeatLastTurn": True} for name, found in rounds.items()}
    return json.dumps({"models": {name: {**turn, "contextWindow": 1_000_000} for name, turn in turns.items()}})


@contextmanager
def providers(path: Path) -> Iterator[dict[str, UpstreamConfig]]:
    """Each adapter with a provider that plays the script at `path`."""
    with UpstreamProcess(path) as chat, UpstreamProcess(path, "--wire", "anthropic") as messages:
        yield {
            "scripted": UpstreamConfig(name=NAME, type="scripted", script=str(path)),
            "openai": UpstreamConfig(name=NAME, type="openai", base_url=chat.base_url),
            "anthropic": UpstreamConfig(name=NAME, type="anthropic", base_url=messages.base_url),
        }


async def pieces(upstream: UpstreamConfig, repeats: int) -> dict[str, float]:
    """Microseconds a piece, read and folded."""
    models = Models.build([upstream], {})
    await models.discover()
    client, info = models.resolve(f"{NAME}/{TALKS}")
    request = ModelRequest(
        model_id=info.model_id, system="", messages=[MessageRecord(role="user", content="go")], max_output_tokens=50_000
    )
    wall, cpu = list[float](), list[float]()
    for _ in range(repeats + 1):
        fold = Fold("call")
        began: tuple[float, float] | None = None
        async with client.stream(request) as events:
            async for event in events:
                began = began or (time.perf_counter(), time.process_time())
                fold.add(event)
        assert began is not None, "an answer has events"
        wall.append((time.perf_counter() - began[0]) * 1e6 / PIECES)
        cpu.append((time.process_time() - began[1]) * 1e6 / PIECES)
        if fold.finish().text != PIECE * PIECES:
            raise SystemExit("what was read is not what was sent")
    return {"us_per_piece": median(wall[1:]), "cpu_us_per_piece": median(cpu[1:])}


async def rounds(upstream: UpstreamConfig, repeats: int) -> dict[str, float]:
    """Milliseconds a round by how many came before it, and how much more the 200th takes than the 10th."""
    wall: dict[int, list[float]] = {at: [] for at in AT}
    cpu: dict[int, list[float]] = {at: [] for at in AT}
    for _ in range(repeats):
        moments = await one_turn(upstream, GROWS)
        steps = [(after.wall_s - one.wall_s, after.cpu_s - one.cpu_s) for one, after in itertools.pairwise(moments)]
        for at in AT:
            near = steps[at - AROUND : at + AROUND]
            wall[at] += [spent * 1000 for spent, _ in near]
            cpu[at] += [spent * 1000 for _, spent in near]
    found = {f"ms_per_round_at_{at}": median(wall[at]) for at in AT}
    found |= {f"cpu_ms_per_round_at_{at}": median(cpu[at]) for at in AT}
    first, last = AT[0], AT[-1]
    return found | {
        f"ratio_{last}_{first}": found[f"ms_per_round_at_{last}"] / found[f"ms_per_round_at_{first}"],
        f"cpu_ratio_{last}_{first}": found[f"cpu_ms_per_round_at_{last}"] / found[f"cpu_ms_per_round_at_{first}"],
    }


def long_history(tokens: int) -> list[HistoryMessage]:
    """Messages of Python source text, by turns of user and model."""
    count = tokens * CHARACTERS_PER_TOKEN // MESSAGE_CHARACTERS
    return [
        HistoryMessage(
            sequence=number + 1,
            turn=number // 2 + 2,
            message=MessageRecord(role="assistant" if number % 2 else "user", content=content),
        )
        for number, content in enumerate(itertools.islice(source_texts(), count))
    ]


def source_texts() -> Iterator[str]:
    """Pieces of Python's own library, one file in memory at a time."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        whole = len(text) - len(text) % MESSAGE_CHARACTERS
        yield from (text[at : at + MESSAGE_CHARACTERS] for at in range(0, whole, MESSAGE_CHARACTERS))


def peak_mib(upstream: UpstreamConfig, tokens: int) -> float:
    """Most memory of a process of its own that carries out a turn behind so much history."""
    where = upstream.script or upstream.base_url or ""
    command = [sys.executable, "-m", "bench.models", "--turn", upstream.type, where, str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"a turn of {upstream.type} failed: {done.stdout}{done.stderr}")
    return float(done.stdout)


def turn_alone(wire: str, where: str, tokens: int) -> float:
    """Carry out a turn; the peak of this process in MiB."""
    is_scripted = wire == "scripted"
    upstream = UpstreamConfig(
        name=NAME, type=wire, script=where if is_scripted else None, base_url=None if is_scripted else where
    )
    trio.run(partial(one_turn, upstream, WORKS, long_history(tokens)))
    # Not getrusage: its figure may be that of the parent, from before the program was replaced.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def memory(upstream: UpstreamConfig, repeats: int) -> dict[str, float]:
    """MiB of a process with a large context and with none; the difference is what the context costs."""
    large = median(peak_mib(upstream, CONTEXT_TOKENS) for _ in range(repeats))
    small = median(peak_mib(upstream, 0) for _ in range(repeats))
    return {"peak_mib_at_200k": large, "peak_mib_empty": small, "context_mib": large - small}


def measure(directory: Path, *, quick: bool) -> dict[str, dict[str, float]]:
    """Every figure by adapter."""
    path = directory / "script.yaml"
    path.write_text(script())
    found: dict[str, dict[str, float]] = {}
    with providers(path) as upstreams:
        for wire, upstream in upstreams.items():
            found[wire] = {
                **trio.run(pieces, upstream, 3 if quick else 15),
                **trio.run(rounds, upstream, 1 if quick else 5),
                **memory(upstream, 1 if quick else 3),
            }
    return found


def main() -> int:
    taking = parser("What a model costs on our side of the wire.")
    taking.add_argument("--turn", nargs=3, metavar=("WIRE", "WHERE", "TOKENS"), help=SUPPRESS)
    arguments = taking.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if arguments.turn:
        wire, where, tokens = arguments.turn
        print(turn_alone(wire, where, int(tokens)))
        return 0
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        found = measure(Path(name), quick=arguments.quick)
    figures = list(found["scripted"])
    rows = [[figure.replace("_", " "), *(found[wire][figure] for wire in found)] for figure in figures]
    report(arguments, dict(found), table(["figure", *found], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
