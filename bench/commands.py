"""What a command costs in the whole program: its row is stored before it starts, its output and end before they count.

The measurements of `bench.tools` that need a controller. A scripted model has a real `peen run` carry out commands one
after the other; what each took is the `durationMs` of its result, from the call to the end of the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from bench.client import FeedClient, api
from bench.common import median
from peen.testing.daemon import Daemon

SPAWNS: Final = 48
PRINTED_LINE: Final = b"an ordinary line of output, as long as such lines are in a build\n"
PRINTED_BYTES: Final = 64_000_000
PRINTS: Final = {"print_64mb": False, "print_64mb_synced": True}
UPSTREAM: Final = "bench"


def measure(directory: Path, *, quick: bool) -> dict[str, dict[str, float]]:
    """`spawn` is for each command, `print_64mb` for the whole output; of that there is a second, synced floor.

    Figures of output also have `mb_per_s`: megabytes (10^6 bytes) that were stored in a second.
    """
    printed = directory / "printed"
    printed.write_bytes(PRINTED_LINE * (PRINTED_BYTES // len(PRINTED_LINE)))
    size = printed.stat().st_size
    repeats = 3 if quick else 9
    script = directory / "script.yaml"
    script.write_text(
        json.dumps({"models": {"true": _repeated("true", SPAWNS), "cat": _repeated(f"cat {printed}", 1)}})
    )
    upstreams = json.dumps([{"name": UPSTREAM, "type": "scripted", "script": str(script)}])
    found: dict[str, dict[str, list[float]]] = {name: {"ms": [], "floor_ms": []} for name in ("spawn", *PRINTS)}
    with Daemon(directory, {"PEEN_UPSTREAMS": upstreams, "PEEN_MAX_TOOL_ROUNDS": str(2 * SPAWNS)}) as daemon:
        client = FeedClient(daemon.address)
        workspace = daemon.workspace_root / "commands"
        workspace.mkdir()
        session = api(daemon.address, "/api/v1/sessions/open", body={"workspace": str(workspace)})["session"]["id"]
        _command_ms(daemon, client, session, "true")  # the worker starts
        for _ in range(repeats):
            found["spawn"]["ms"].append(_command_ms(daemon, client, session, "true"))
            found["spawn"]["floor_ms"].append(_spawn_floor_ms())
            taken = _command_ms(daemon, client, session, "cat")
            for name, synced in PRINTS.items():
                found[name]["ms"].append(taken)
                found[name]["floor_ms"].append(_print_floor_ms(printed, daemon.state_dir / "floor", synced=synced))
        _check_stored(daemon, session, printed)
        client.close()
    figures = {name: _figure(samples) for name, samples in found.items()}
    return figures | {name: figures[name] | {"mb_per_s": size / 1000 / figures[name]["ms"]} for name in PRINTS}


def _repeated(command: str, count: int) -> dict[str, Any]:
    call = {"name": "runCommand", "arguments": {"command": command, "purpose": "measure"}}
    return {"repeatLastTurn": True, "turns": [{"rounds": [{"calls": [call], "repeat": count}, {"text": "done"}]}]}


def _command_ms(daemon: Daemon, client: FeedClient, session: str, model: str) -> float:
    """What a command of one turn took, the mean of all: each is told in whole milliseconds."""
    client.wait(client.send(session, "go", f"{UPSTREAM}/{model}"))
    turn = _get(daemon, "/api/v1/session/turns?limit=1", session)["turns"][0]["id"]
    page = _get(daemon, f"/api/v1/messages?order=desc&limit={2 * SPAWNS + 2}", session)["items"]
    results = [json.loads(each["content"]) for each in page if each["role"] == "tool" and each["turnId"] == turn]
    assert all(result["exitCode"] == 0 for result in results), results
    return float(sum(result["durationMs"] for result in results)) / len(results)


def _check_stored(daemon: Daemon, session: str, printed: Path) -> None:
    """What was measured was stored: the last job holds all that was printed."""
    job = _get(daemon, "/api/v1/session/jobs?limit=1", session)["jobs"][0]
    assert job["state"] == "exited", job
    last = printed.stat().st_size // len(PRINTED_LINE)
    page = _get(daemon, f"/api/v1/session/jobs/{job['jobId']}/output?cursor={last - 1}", session)
    assert [line["content"] for line in page["lines"]] == [PRINTED_LINE.decode().rstrip("\n")], page
    assert not page["hasMore"]


def _spawn_floor_ms() -> float:
    """Starting `true` in a shell, reading what it prints and collecting its end, without anything else."""
    began = time.perf_counter()
    for _ in range(SPAWNS):
        reading, writing = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_DUP2, writing, 2)]
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "true"], os.environ, file_actions=actions)
        os.close(writing)
        while os.read(reading, 65536):
            pass
        os.close(reading)
        os.waitpid(pid, 0)
    return (time.perf_counter() - began) * 1000 / SPAWNS


def _print_floor_ms(printed: Path, target: Path, *, synced: bool) -> float:
    """`cat printed > target`; if `synced`, until it is on the disk, as what a command printed is."""
    began = time.perf_counter()
    with open(target, "wb") as file:
        subprocess.run(["cat", str(printed)], stdout=file, stdin=subprocess.DEVNULL, check=True)
        if synced:
            os.fsync(file.fileno())
    taken = (time.perf_counter() - began) * 1000
    target.unlink()
    return taken


def _get(daemon: Daemon, path: str, session: str) -> Any:
    return api(daemon.address, path, session_id=session)


def _figure(samples: dict[str, list[float]]) -> dict[str, float]:
    ms, floor_ms = median(samples["ms"]), median(samples["floor_ms"])
    return {"ms": ms, "floor_ms": floor_ms, "ratio": ms / floor_ms}
