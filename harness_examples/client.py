"""A whole client: open the session of a directory, send one message, follow it to its end, survive a lost connection.

    python client.py http://127.0.0.1:8080 /path/to/directory "list"

Needs httpx and websockets. Set PEEN_API_TOKEN if the controller has one.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import websockets.exceptions
from websockets.sync.client import connect

Frame = dict[str, Any]


class Client:
    def __init__(self, address: str) -> None:
        token = os.environ.get("PEEN_API_TOKEN")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=address + "/api/v1", headers=self.headers)
        self.socket_url = address.replace("http", "ws", 1) + "/ws/v1"

    def open(self, workspace: str) -> str:
        """The session of a directory: the same one every time."""
        answer = self.http.post("/sessions/open", json={"workspace": workspace})
        answer.raise_for_status()
        session_id: str = answer.json()["session"]["id"]
        return session_id

    def head(self, session_id: str) -> int:
        """The last sequence of the feed."""
        answer = self.http.get("/session", headers={"X-Session-ID": session_id})
        answer.raise_for_status()
        sequence: int = answer.json()["feedSequence"]
        return sequence

    def missed(self, session_id: str, cursor: int) -> Iterator[Frame]:
        """Every frame after `cursor`, oldest first."""
        has_more = True
        while has_more:
            answer = self.http.get("/session/feed", headers={"X-Session-ID": session_id}, params={"cursor": cursor})
            answer.raise_for_status()
            page = answer.json()
            yield from page["items"]
            cursor, has_more = page["nextCursor"], page["hasMore"]

    def ask(self, session_id: str, message: str) -> Iterator[Frame]:
        """Frames of the session from sending `message` to its acknowledgement, without gap or repeat.

        After a lost connection the client reads what it missed from the feed and sends the same frame again: the id
        makes that harmless, and the answer is the first outcome.
        """
        frame_id, last = str(uuid.uuid4()), self.head(session_id)
        frame = {
            "id": frame_id,
            "type": "message.send",
            "data": {"message": message},
            "metadata": {"sessionId": session_id},
            "timestamp": int(time.time() * 1000),
            "triggeredBy": None,
        }
        while True:
            try:
                with connect(
                    f"{self.socket_url}?sessionId={session_id}", additional_headers=self.headers, max_size=None
                ) as socket:
                    for missed in self.missed(session_id, last):
                        last = missed["metadata"]["sequence"]
                        yield missed
                    socket.send(json.dumps(frame))
                    for text in socket:
                        received = json.loads(text)
                        sequence = received["metadata"].get("sequence")
                        if sequence is None:
                            if received["triggeredBy"] == frame_id:
                                yield received
                                return
                        elif sequence > last:
                            last = sequence
                            yield received
            except (OSError, httpx.TransportError, websockets.exceptions.WebSocketException):
                time.sleep(0.2)  # the controller is being started again


def main() -> int:
    address, workspace, message = sys.argv[1:]
    client = Client(address)
    for frame in client.ask(client.open(workspace), message):
        print(json.dumps(frame), flush=True)
    return 0 if frame["type"] == "message.completed" else 1


if __name__ == "__main__":
    sys.exit(main())
