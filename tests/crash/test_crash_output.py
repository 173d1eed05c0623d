"""Whatever a command prints is stored whole, and neither worker nor controller grows with it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from crash_kit import Client, command, script, scripted_daemon, short_directory

MIB = 1024 * 1024
GROWTH = 16 * MIB
PRINTING = {
    "lines": "seq 200000; echo $PPID > worker",
    "long": "for i in 1 2 3 4 5; do head -c 2000000 /dev/zero | tr '\\0' x; echo; done",
    "endless": "head -c 50000000 /dev/zero | tr '\\0' y",
    "binary": "head -c 3000000 /dev/zero; head -c 3000000 /dev/urandom | tee raw; "
    "{ printf '\\377\\376'; head -c 100000 /dev/urandom; } | tee errors >&2",
}
SCRIPT = script({name: [[command(text), {"text": "done"}]] for name, text in PRINTING.items()})


def reset_peak(pid: int) -> int:
    """Resident bytes now; the peak counts anew from here."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def stored(client: Client, session: str, stream: str) -> tuple[int, str, bytes]:
    """Bytes of the newest job's stream, their digest, and the first of them."""
    job_id = client.get("/session/jobs", session, limit=1)["jobs"][0]["jobId"]
    digest, size, head, cursor, more = hashlib.sha256(), 0, b"", 0, True
    while more:
        page: dict[str, Any] = client.get(
            f"/session/jobs/{job_id}/output", session, cursor=cursor, limit=2000, stream=stream
        )
        for line in page["lines"]:
            text: str = line["content"]
            data = base64.b64decode(text) if line.get("encoding") == "base64" else text.encode()
            data += b"" if line.get("continued") else b"\n"
            digest.update(data)
            size += len(data)
            head = head or data
        cursor, more = page["nextCursor"], page["hasMore"]
    return size, digest.hexdigest(), head


@pytest.mark.parametrize("model", ["lines", "long", "endless", "binary"])
def test_output_is_stored_whole_and_costs_no_memory(model: str) -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        client.ask(session, "go", model="scripted/lines")  # whatever is imported or allocated once is there now
        pids = [daemon.pid, int((daemon.workspace_root / "worker").read_text())]
        before = [reset_peak(pid) for pid in pids]

        assert client.ask(session, "go", model=f"scripted/{model}")[-1]["type"] == "message.completed"

        grown = [peak(pid) - start for pid, start in zip(pids, before, strict=True)]
        assert max(grown) < GROWTH, grown
        size, digest, head = stored(client, session, "stdout")
        job = client.get("/session/jobs", session, limit=1)["jobs"][0]
        if model == "lines":
            text = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
            assert (size, digest, job["lines"]) == (len(text), hashlib.sha256(text).hexdigest(), 200_000)
        elif model == "long":
            text = (b"x" * 2_000_000 + b"\n") * 5
            assert (size, digest) == (len(text), hashlib.sha256(text).hexdigest())
            assert len(head) <= 8192
        elif model == "endless":
            assert (size, digest) == (50_000_000, hashlib.sha256(b"y" * 50_000_000).hexdigest())
        else:
            text = b"\0" * 3_000_000 + (daemon.workspace_root / "raw").read_bytes()
            assert (size, digest) == (6_000_000, hashlib.sha256(text).hexdigest())
            errors = (daemon.workspace_root / "errors").read_bytes()
            assert stored(client, session, "stderr")[:2] == (100_002, hashlib.sha256(errors).hexdigest())
