"""What one streamed piece costs, from the provider's socket to the client's.

    python -m bench.stream [--quick] [--json]

A provider in another process sends one answer in 2,000 pieces over HTTP; the worker takes each, merges what gathers,
and the controller stores and shows it. `us_per_piece` is the time from the first to the last piece at the client, a
piece, when the provider sends as fast as it can. The floor is a bare HTTP client that reads the same stream from the
same provider. `cpu_us_per_piece_single` is what a piece costs that comes alone, as real models send them: the CPU time
of the controller and its workers, a piece, when the provider pauses for a millisecond before each.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from bench.client import FeedClient, api
from bench.common import median, parser, report, table
from bench.memory import family
from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

PIECES: Final = 2_000
PIECE: Final = "word "
PAUSE_MS: Final = 1
BURST: Final = "talker"
SINGLE: Final = "thinker"


def script() -> str:
    """A model that answers in a burst, and one that pauses before each piece."""
    answer = {"text": PIECE * PIECES, "chunk": len(PIECE)}
    rounds = {BURST: answer, SINGLE: {**answer, "pieceDelayMs": PAUSE_MS}}
    models = {name: {"repeatLastTurn": True, "turns": [{"rounds": [found]}]} for name, found in rounds.items()}
    return json.dumps({"models": models})


def turn_us_per_piece(client: FeedClient, session: str, model: str) -> float:
    """Microseconds a piece of one turn, and a check that the whole answer came."""
    frame_id = client.send(session, "go", f"bench/{model}")
    began = 0.0
    text: list[str] = []
    for raw in client.frames():
        if b'"content_block_delta"' in raw:
            began = began or time.perf_counter()
            text.append(json.loads(raw)["data"]["delta"]["text"])
        elif raw.endswith(frame_id.encode() + b'"}'):
            assert b'"message.completed"' in raw, raw.decode()
            break
    spent = time.perf_counter() - began
    assert "".join(text) == PIECE * PIECES
    return spent * 1e6 / PIECES


def turn_cpu_us_per_piece(client: FeedClient, session: str, pid: int) -> float:
    """CPU microseconds a piece of one turn whose pieces come one by one; `pid` is the controller's."""
    pids = family(pid)
    before = cpu_s(pids)
    turn_us_per_piece(client, session, SINGLE)
    assert family(pid) == pids, "a process came or went, so that its time is not known"
    return (cpu_s(pids) - before) * 1e6 / PIECES


def cpu_s(pids: list[int]) -> float:
    """User and system time that processes have used so far, all their threads included."""
    # The clock of another process: what clock_getcpuclockid(3) computes. /proc knows only hundredths of a second.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def floor_us_per_piece(base_url: str) -> float:
    body = {"model": BURST, "stream": True, "messages": [{"role": "user", "content": "go"}]}
    request = urllib.request.Request(
        base_url + "/chat/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        while answer.readline():
            pass
    return (time.perf_counter() - began) * 1e6 / PIECES


def measure(directory: Path, repeats: int) -> dict[str, float]:
    """Every figure, as the median of `repeats` turns."""
    (directory / "script.yaml").write_text(script())
    with UpstreamProcess(directory / "script.yaml") as upstream:
        upstreams = json.dumps([{"name": "bench", "type": "openai", "baseUrl": upstream.base_url}])
        with Daemon(directory, {"PEEN_UPSTREAMS": upstreams}) as daemon:
            client = FeedClient(daemon.address)
            opened = api(daemon.address, "/api/v1/sessions/open", body={"workspace": str(daemon.workspace_root)})
            session = opened["session"]["id"]
            for model in (BURST, SINGLE):
                turn_us_per_piece(client, session, model)  # the first of each also waits for the spare worker
            pieces = [turn_us_per_piece(client, session, BURST) for _ in range(repeats)]
            floors = [floor_us_per_piece(upstream.base_url) for _ in range(repeats)]
            single = [turn_cpu_us_per_piece(client, session, daemon.pid) for _ in range(repeats)]
            client.close()
    return {
        "us_per_piece": median(pieces),
        "floor_us_per_piece": median(floors),
        "cpu_us_per_piece_single": median(single),
    }


def main() -> int:
    arguments = parser("One streamed piece, end to end.").parse_args()
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        found = measure(Path(name), repeats=3 if arguments.quick else 9)
    report(arguments, found, table(["figure", "us"], list(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
