"""A client of a real controller, and the little worlds that crash tests run it in."""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from websockets.sync.client import ClientConnection, connect

from peen.testing.daemon import Daemon

Frame = dict[str, Any]
ENDS = ("turn.completed", "turn.failed", "turn.cancelled")
PATIENCE_S = 30.0


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose name leaves room for socket paths."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        yield Path(name)


def script(models: dict[str, list[list[dict[str, Any]]]]) -> str:
    """A script file's text: model name -> turns -> rounds. The last turn repeats."""
    return json.dumps(
        {"models": {name: {"repeatLastTurn": True, "turns": [{"rounds": rounds} for rounds in turns]}
                    for name, turns in models.items()}}
    )  # fmt: skip


def command(text: str) -> dict[str, Any]:
    """A round that runs one command."""
    return {"calls": [{"name": "runCommand", "arguments": {"command": text, "purpose": "test"}}]}


def scripted_daemon(home: Path, text: str, environment: dict[str, str] | None = None) -> Daemon:
    """A daemon whose models play the script `text`."""
    path = home / "script.yaml"
    path.write_text(text)
    upstreams = json.dumps([{"name": "scripted", "type": "scripted", "script": str(path)}])
    return Daemon(home, {"PEEN_UPSTREAMS": upstreams, **(environment or {})})


class Client:
    """REST by httpx, the socket by websockets. Not for two threads."""

    def __init__(
        self, daemon: Daemon, *, session_filter: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self._daemon, self._filter, self._headers = daemon, session_filter, headers
        self._stack = ExitStack()
        self.http: httpx.Client
        self.socket: ClientConnection
        self.seen: list[bytes] = []

    def __enter__(self) -> Self:
        api = self._daemon.address + "/api/v1"
        self.http = self._stack.enter_context(httpx.Client(base_url=api, timeout=PATIENCE_S, headers=self._headers))
        query = f"?sessionId={self._filter}" if self._filter else ""
        url = self._daemon.socket_url + query
        self.socket = self._stack.enter_context(connect(url, max_size=None, additional_headers=self._headers))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def open(self, workspace: Path | str) -> str:
        """Id of the session of a workspace."""
        answer = self.http.post("/sessions/open", json={"workspace": str(workspace)})
        assert answer.status_code == 200, answer.text
        session_id: str = answer.json()["session"]["id"]
        return session_id

    def get(self, path: str, session_id: str, **query: Any) -> Any:
        answer = self.http.get(path, headers={"X-Session-ID": session_id}, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, session_id: str, message: str, *, frame_id: str | None = None, **data: Any) -> str:
        """Send a message; the id of its frame."""
        frame_id = frame_id or str(uuid.uuid4())
        frame = {
            "id": frame_id,
            "type": "message.send",
            "data": {"message": message, **data},
            "metadata": {"sessionId": session_id},
            "timestamp": 0,
            "triggeredBy": None,
        }
        self.socket.send(json.dumps(frame))
        return frame_id

    def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """Frames up to and including the first that is wanted."""
        frames: list[Frame] = []
        give_up = time.monotonic() + PATIENCE_S
        while not frames or not wanted(frames[-1]):
            data = self.socket.recv(timeout=max(0.0, give_up - time.monotonic()))
            raw = data.encode() if isinstance(data, str) else data
            frame = json.loads(raw)
            if "sequence" in frame["metadata"]:
                self.seen.append(raw)
            frames.append(frame)
        return frames

    def until_type(self, *types: str) -> list[Frame]:
        return self.until(lambda frame: frame["type"] in types)

    def answered(self, frame_id: str) -> list[Frame]:
        """Frames up to and including the acknowledgement of a message."""
        return self.until(lambda frame: frame["triggeredBy"] == frame_id)

    def ask(self, session_id: str, message: str, **data: Any) -> list[Frame]:
        """Send, and read up to the acknowledgement."""
        return self.answered(self.send(session_id, message, **data))

    def replay(self, session_id: str, cursor: int = 0, limit: int = 7) -> list[Frame]:
        """The whole feed after `cursor`, read in small pages."""
        frames: list[Frame] = []
        while True:
            page = self.get("/session/feed", session_id, cursor=cursor, limit=limit)
            frames += page["items"]
            cursor = page["nextCursor"]
            if not page["hasMore"]:
                return frames

    def replay_bytes(self, session_id: str) -> list[bytes]:
        """The exact bytes of every frame of the feed."""
        answer = self.http.get("/session/feed", headers={"X-Session-ID": session_id}, params={"limit": 1000})
        body = answer.content
        items = body[body.index(b"[") + 1 : body.rindex(b"]")]
        return split_objects(items)


def split_objects(items: bytes) -> list[bytes]:
    """The members of a JSON array of objects, byte for byte."""
    decoder = json.JSONDecoder()
    text, found, at = items.decode(), [], 0
    while at < len(text):
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end].encode())
        at = end + 1
    return found


def wait_for(condition: Callable[[], bool], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Poll something outside this process. Raises: AssertionError."""
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up, f"timed out: {what}"
        time.sleep(0.01)


def descendants(pid: int) -> set[int]:
    """Every live process below `pid`."""
    parents = _parents()
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def children(pid: int) -> set[int]:
    """The live processes that `pid` started itself."""
    return {child for child, parent in _parents().items() if parent == pid}


def _parents() -> dict[int, int]:
    """Every live process and its parent."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if stat[0] != b"Z":
                parents[int(entry.name)] = int(stat[1])
    return parents


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def sequences(frames: list[Frame]) -> list[int]:
    return [frame["metadata"]["sequence"] for frame in frames if "sequence" in frame["metadata"]]
