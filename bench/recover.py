"""From the death of the controller to a session that answers: `python -m bench.recover [--quick] [--json]`.

A session with some history is in the middle of a turn, its model streaming, when the controller gets SIGKILL. It is
started again at once, and a message goes to that session. Milliseconds from the kill to the `turn.completed` of that
message, and of that the part until the new process was ready. The floor is the start of a daemon with nothing to do.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.client import FeedClient, api
from bench.common import median, parser, report, table
from peen.testing.daemon import Daemon

UPSTREAM: Final = "bench"
TOOL: Final = {"name": "readFile", "arguments": {"path": "notes.txt"}}
HISTORY_TURNS: Final = 20
HISTORY_ROUNDS: Final = 5
STREAM_S: Final = 60  # longer than any run waits: the kill always finds the turn at work

MODELS: Final = {
    "work": [{"calls": [TOOL], "repeat": HISTORY_ROUNDS}, {"text": "done"}],
    "talk": [{"calls": [TOOL]}, {"text": "x" * STREAM_S * 20, "chunk": 1, "pieceDelayMs": 50}],
    "answer": [{"text": "here"}],
}


def script() -> str:
    models = {name: {"repeatLastTurn": True, "turns": [{"rounds": rounds}]} for name, rounds in MODELS.items()}
    return json.dumps({"models": models})


def daemon_in(directory: Path) -> Daemon:
    path = directory / "script.yaml"
    path.write_text(script())
    upstreams = json.dumps([{"name": UPSTREAM, "type": "scripted", "script": str(path)}])
    return Daemon(directory, {"PEEN_UPSTREAMS": upstreams})


def open_session(daemon: Daemon) -> str:
    """Id of a session with a history."""
    (daemon.workspace_root / "notes.txt").write_text("a line\n" * 20)
    opened = api(daemon.address, "/api/v1/sessions/open", body={"workspace": str(daemon.workspace_root)})
    session: str = opened["session"]["id"]
    client = FeedClient(daemon.address)
    for number in range(HISTORY_TURNS):
        client.wait(client.send(session, f"task {number}", f"{UPSTREAM}/work"))
    client.close()
    return session


def begin_turn(daemon: Daemon, session: str) -> None:
    """Start a turn and return once its last answer streams."""
    client = FeedClient(daemon.address)
    client.send(session, "talk", f"{UPSTREAM}/talk")
    wait_for(client, "content_block_delta")
    client.close()


def wait_for(client: FeedClient, frame_type: str) -> None:
    """Read up to the first frame of this type. Raises: AssertionError if the turn ends otherwise."""
    wanted = b'"type":"' + frame_type.encode() + b'"'
    for frame in client.frames():
        if wanted in frame:
            return
        assert b'"type":"turn.failed"' not in frame, frame.decode()
    raise AssertionError("the server closed the socket")


def recover_once(daemon: Daemon, session: str) -> tuple[float, float]:
    """Milliseconds from the kill to ready, and to the end of the next turn."""
    begin_turn(daemon, session)
    began = time.perf_counter()
    daemon.kill()
    daemon.start()
    ready = time.perf_counter()
    client = FeedClient(daemon.address)
    client.send(session, "are you there?", f"{UPSTREAM}/answer")
    wait_for(client, "turn.completed")
    answered = time.perf_counter()
    client.close()
    return (ready - began) * 1000, (answered - began) * 1000


def start_ms() -> float:
    """Milliseconds to ready with an empty state directory."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        daemon = daemon_in(Path(name))
        began = time.perf_counter()
        with daemon:
            return (time.perf_counter() - began) * 1000


def main() -> None:
    arguments = parser("From the death of the controller to a session that answers.").parse_args()
    repeats = 5 if arguments.quick else 15
    floors, readies, answers = [], [], []
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name, daemon_in(Path(name)) as daemon:
        session = open_session(daemon)
        for _ in range(repeats):
            ready, answered = recover_once(daemon, session)
            readies.append(ready)
            answers.append(answered)
            floors.append(start_ms())
    found = {
        "recover_ms": median(answers),
        "ready_ms": median(readies),
        "start_floor_ms": median(floors),
        "longest_ms": max(answers),
    }
    report(arguments, {**found, "repeats": repeats}, table(["figure", "ms"], list(found.items())))


if __name__ == "__main__":
    main()
