"""What one streamed piece costs, from the provider's socket to the client's.

    python -m bench.stream [--quick] [--json]

A provider in another process sends one answer in 2,000 pieces over HTTP; the worker takes each, merges what gathers,
and the controller stores and shows it. The figure is the time from the first to the last piece at the client, a
piece. The floor is a bare HTTP client that reads the same stream from the same provider.
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
from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

PIECES: Final = 2_000
PIECE: Final = "word "


def turn_us_per_piece(client: FeedClient, session: str) -> float:
    """Microseconds a piece of one turn, and a check that the whole answer came."""
    frame_id = client.send(session, "go", "bench/talker")
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


def floor_us_per_piece(base_url: str) -> float:
    body = {"model": "talker", "stream": True, "messages": [{"role": "user", "content": "go"}]}
    request = urllib.request.Request(
        base_url + "/chat/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        while answer.readline():
            pass
    return (time.perf_counter() - began) * 1e6 / PIECES


def main() -> int:
    arguments = parser("One streamed piece, end to end.").parse_args()
    repeats = 3 if arguments.quick else 9
    answer = {"text": PIECE * PIECES, "chunk": len(PIECE)}
    script = {"models": {"talker": {"repeatLastTurn": True, "turns": [{"rounds": [answer]}]}}}
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        directory = Path(name)
        (directory / "script.yaml").write_text(json.dumps(script))
        with UpstreamProcess(directory / "script.yaml") as upstream:
            upstreams = json.dumps([{"name": "bench", "type": "openai", "baseUrl": upstream.base_url}])
            with Daemon(directory, {"PEEN_UPSTREAMS": upstreams}) as daemon:
                client = FeedClient(daemon.address)
                opened = api(daemon.address, "/api/v1/sessions/open", body={"workspace": str(daemon.workspace_root)})
                session = opened["session"]["id"]
                turn_us_per_piece(client, session)
                pieces = [turn_us_per_piece(client, session) for _ in range(repeats)]
                floors = [floor_us_per_piece(upstream.base_url) for _ in range(repeats)]
                client.close()
    found = {"us_per_piece": median(pieces), "floor_us_per_piece": median(floors)}
    report(arguments, found, table(["figure", "us"], list(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
