"""What the audit says a provider was asked, against the bytes that arrived there."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from crash_kit import PATIENCE_S, Client, command, script, short_directory

from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

FAULT = {"kind": "status", "status": 400, "message": "not today"}
BUSY = {"kind": "status", "status": 500, "times": 2, "message": "busy"}
BOTH = [*command("echo é")["calls"], *command("false")["calls"]]
SCRIPT = script(
    {
        "works": [[{"text": "Two at once.", "thinking": "hm", "calls": BOTH}, {"text": "worked"}]],
        "breaks": [[command("echo lost"), {"text": "", "fault": FAULT}]],
        "busy": [[{"text": "at last", "fault": BUSY}]],
    }
)


@contextmanager
def recorder(target: str) -> Iterator[tuple[str, list[Any]]]:
    """A server before the provider at `target` that keeps the body of every question; its own base URL."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append(json.loads(body))
            self._pass_on(body)

        def _pass_on(self, body: bytes | None) -> None:
            url = target + self.path.removeprefix("/v1")
            request = urllib.request.Request(url, body, {"content-type": "application/json"}, method=self.command)
            try:
                answer = urllib.request.urlopen(request, timeout=PATIENCE_S)
            except urllib.error.HTTPError as refused:
                answer = refused
            with answer:
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers["content-type"])
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer.read())

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def as_sent(message: Any) -> Any:
    """A message of the audit in the provider's dialect."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["toolCallId"], "content": message["content"]}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in message.get("toolCalls", [])
    ]
    return {
        "role": message["role"],
        "content": (message["content"] or None) if calls else message["content"],
        **({"tool_calls": calls} if calls else {}),
    }


def with_decoded_arguments(message: Any) -> Any:
    """The provider gets arguments as a text of JSON, the audit tells them as JSON; reasoning it does not tell."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", [])
    ]
    told = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**told, **({"tool_calls": calls} if calls else {})}


def prompt_and_notes(messages: list[Any]) -> list[Any]:
    """Only the prompt is a message of the system for the provider; later ones come as text of the user."""
    return messages[:1] + [
        {"role": "user", "content": f"<system>\n{message['content']}\n</system>"}
        if message["role"] == "system"
        else message
        for message in messages[1:]
    ]


def audited(client: Client, session: str) -> list[Any]:
    """Every call of the session in order, once for each attempt."""
    runs = client.get("/session/model-runs", session)["modelRuns"]
    pages = [client.get(f"/session/model-runs/{run['id']}/calls", session) for run in reversed(runs)]
    return [call for page in pages for call in page["calls"] for _ in range(call["totalAttempts"])]


def test_the_audit_tells_every_question_as_it_arrived_also_late_and_after_failures_and_a_restart() -> None:
    with short_directory() as home, _provider(home) as provider, recorder(provider.base_url) as (url, asked):
        upstreams = json.dumps([{"name": "dev", "type": "openai", "baseUrl": url}])
        daemon = Daemon(home, {"PEEN_UPSTREAMS": upstreams})
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            for model in ("works", "breaks", "busy", "works"):
                client.ask(session, f"with {model}", model=f"dev/{model}")
        with daemon, Client(daemon) as client:
            client.ask(session, "once more", model="dev/works")
            calls = audited(client, session)

    assert len(asked) == len(calls) == 11
    for question, call in zip(asked, calls, strict=True):
        assert [with_decoded_arguments(message) for message in question["messages"]] == prompt_and_notes(
            [as_sent(message) for message in call["requestMessages"]]
        )
        assert [tool["function"] for tool in question["tools"]] == call["requestTools"]


@contextmanager
def _provider(home: Path) -> Iterator[UpstreamProcess]:
    path = home / "script.yaml"
    path.write_text(SCRIPT)
    with UpstreamProcess(path) as provider:
        yield provider
