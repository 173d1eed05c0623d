"""A whole controller with nothing but the key of Anthropic, whose provider is `peen dev upstream`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from crash_kit import PATIENCE_S, Client, command, short_directory, wait_for

from peen.testing.daemon import Daemon
from peen.testing.upstream.anthropicwire import signature_of
from peen.testing.upstream.process import UpstreamProcess

MODEL: Final = "anthropic/claude-sonnet-4-5"
READ: Final = {"calls": [{"name": "readFile", "arguments": {"path": "notes.txt"}}]}
WAITING: Final = "touch started; while [ ! -e go ]; do sleep 0.02; done"
USAGE: Final = {"prompt": 1000, "completion": 100, "cacheRead": 600, "cacheWrite": 300}
TURNS: Final = [
    [
        {"thinking": "I should look.", "text": "I read.", "chunk": 3, **READ},
        {"thinking": "And now?", **command("echo hello > made.txt")},
        {"text": "It says {lastResult}.", "usage": USAGE},
    ],
    [{"text": "Again."}],
]
LONG: Final = [[{"thinking": "This takes long.", **command(WAITING)}, {"text": "Done."}]]
THOUGHT: Final = {
    "type": "thinking",
    "thinking": "I should look.",
    "signature": signature_of("I should look."),
}


class Listener:
    """Stands between controller and provider and remembers the bodies that pass."""

    def __init__(self, target: str) -> None:
        bodies: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                bodies.append(json.loads(body))
                self._pass_on(body)

            def _pass_on(self, body: bytes | None) -> None:
                asked = urllib.request.Request(target + self.path, body, dict(self.headers.items()))
                try:
                    answer = urllib.request.urlopen(asked, timeout=PATIENCE_S)
                except urllib.error.HTTPError as refused:
                    answer = refused
                with answer:
                    told = answer.read()
                    self.send_response(answer.status)
                    self.send_header("content-type", answer.headers["content-type"])
                    self.send_header("content-length", str(len(told)))
                    self.end_headers()
                    self.wfile.write(told)

            def log_message(self, *_args: Any) -> None:
                pass

        self.bodies = bodies
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Listener:
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def keyed(turns: list[list[dict[str, Any]]], **environment: str) -> Iterator[tuple[Daemon, Listener]]:
    """A daemon with the variables of Anthropic alone; it is not started yet."""
    models = {"claude-sonnet-4-5": {"turns": [{"rounds": rounds} for rounds in turns]}}
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(json.dumps({"models": models}))
        with (
            UpstreamProcess(path, "--wire", "anthropic", "--api-key", "k") as provider,
            Listener(provider.base_url) as at,
        ):
            daemon = Daemon(home, {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": at.url, **environment})
            (daemon.workspace_root / "notes.txt").write_text("blue\n")
            yield daemon, at


def test_one_key_is_enough_for_a_turn_with_tools_whose_reasoning_outlives_a_restart() -> None:
    with keyed(TURNS) as (daemon, at):
        with daemon, Client(daemon) as client:
            assert client.http.get("/models").json()["default"] == MODEL
            session = client.open(daemon.workspace_root)
            frames = client.ask(session, "look", reasoningEffort="low")
            (run,) = client.get("/session/model-runs", session)["modelRuns"]

            ended = next(frame for frame in frames if frame["type"] == "turn.completed")
            assert ended["data"]["text"].startswith("It says")
            assert (daemon.workspace_root / "made.txt").read_text() == "hello\n"
            assert (run["modelReference"], run["finishReason"]) == (MODEL, "end_turn")
            assert run["costKnown"] is False  # whatever stands at that address has not told its prices
        with daemon, Client(daemon) as client:
            assert client.ask(session, "again", reasoningEffort="low")[-1]["type"] == "message.completed"

    rounds = at.bodies
    assert len(rounds) == 4
    assert all(body["thinking"] == {"type": "enabled", "budget_tokens": 4096} for body in rounds)
    for before, after in itertools.pairwise(rounds):
        kept = len(before["messages"]) - 1  # a message may still get more blocks behind those it has
        assert unmarked(after["messages"][:kept]) == unmarked(before["messages"][:kept])
    assert rounds[1]["messages"][1]["content"][0] == THOUGHT
    assert rounds[3]["messages"][1]["content"][0] == THOUGHT


def test_reasoning_comes_back_after_a_crash_in_the_middle_of_its_turn() -> None:
    with keyed(LONG, PEEN_CRASH_RECOVERY="resume") as (daemon, at):
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "work", reasoningEffort="low")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            daemon.kill()
        with daemon, Client(daemon) as client:
            wait_for(lambda: client.replay(session)[-1]["type"] == "turn.completed", "the turn to end")

    first, second = at.bodies
    assert second["messages"][1]["content"][0] == {
        "type": "thinking", "thinking": "This takes long.", "signature": signature_of("This takes long.")
    }  # fmt: skip
    assert second["thinking"] == first["thinking"]


def test_the_cost_of_a_turn_is_exact_where_the_upstream_tells_its_prices() -> None:
    rates = {"input": "3", "output": "15", "cacheRead": "0.3", "cacheWrite": "3.75"}
    with keyed([[{"text": "Here.", "usage": USAGE}]]) as (daemon, at):
        entry = {"name": "mine", "type": "anthropic", "baseUrl": at.url, "apiKeyEnv": "MYK", "stream": False}
        environment = {"PEEN_UPSTREAMS": json.dumps([{**entry, "prices": {"claude-*": rates}}]), "MYK": "k"}
        with Daemon(daemon.home, environment) as own, Client(own) as client:
            session = client.open(own.workspace_root)
            client.ask(session, "go")
            (run,) = client.get("/session/model-runs", session)["modelRuns"]
            (call,) = client.get(f"/session/model-runs/{run['id']}/calls", session)["calls"]

    assert [body["stream"] for body in at.bodies] == [False]
    for told in (run, call):
        # 100 tokens at 3, 600 at 0.3, 300 at 3.75 and 100 at 15 dollars a million
        assert (told["responseCostAmount"], told["billedCostAmount"], told["costKnown"]) == (
            "0.003105",
            "0.003105",
            True,
        )
    assert run["responseUsage"]["prompt"] == 1000


def test_peen_exec_needs_one_variable() -> None:
    with keyed([[{"text": "I am here."}]]) as (daemon, _at):
        done = subprocess.run(
            [sys.executable, "-m", "peen", "exec", "go"],
            env=daemon.environment, cwd=daemon.workspace_root, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "I am here.\n"), done.stderr


def unmarked(messages: list[dict[str, Any]]) -> list[Any]:
    return [
        [{name: value for name, value in block.items() if name != "cache_control"} for block in message["content"]]
        for message in messages
    ]
