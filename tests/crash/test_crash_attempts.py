"""What the audit tells of requests that a Stop or a crash has cut off, beside what the provider was really asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from crash_kit import PATIENCE_S, Client, command, script, short_directory, wait_for

from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

FIRST: Final = {**command("echo $PPID > worker"), "usage": {"prompt": 1000, "completion": 100}}
USED: Final = {
    "prompt": 1000, "completion": 100, "total": 1100, "reasoning": 0, "cacheRead": 0, "billedCostAmount": "0.0045",
}  # fmt: skip
PRICE: Final = {"*": {"input": "3", "output": "15"}}
ANSWER: Final = {"text": "y", "usage": {"prompt": 0, "completion": 0}}


def after(fault: dict[str, Any], **answer: Any) -> list[list[dict[str, Any]]]:
    """A round that works, then one that has a fault."""
    return [[FIRST, {**ANSWER, "chunk": 1, "fault": fault, **answer}]]


SCRIPT: Final = script(
    {
        "stream": after({"kind": "silence", "afterPieces": 1}, text="yes"),
        "head": after({"kind": "silence"}),
        "wait": after({"kind": "status", "status": 429, "retryAfter": 50, "message": "too many"}),
        "refused": after({"kind": "status", "status": 503, "times": 1}),
        "broken": after({"kind": "reset", "afterPieces": 1, "times": 1}, text="yes"),
        "whole": [[FIRST, ANSWER]],
    }
)
TOLD: Final[dict[str, dict[str, Any]]] = {
    "stream": {"status": 200, "streamed": True, "tokens": {}},
    "head": {"streamed": False, "tokens": {}},
    "wait": {"status": 429, "streamed": False, "tokens": {}, "reason": "rate_limited"},
}


@contextmanager
def world(**environment: str) -> Iterator[tuple[Daemon, UpstreamProcess]]:
    """A provider, and a daemon that asks it and is not started yet."""
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        with UpstreamProcess(path) as provider:
            upstream = {
                "name": "o", "type": "openai", "baseUrl": provider.base_url, "apiKeyEnv": "MYK", "prices": PRICE
            }  # fmt: skip
            yield Daemon(home, {"PEEN_UPSTREAMS": json.dumps([upstream]), "MYK": "x", **environment}), provider


def asked(provider: UpstreamProcess) -> int:
    """How many answers the provider was asked for."""
    return sum(not request["path"].endswith("/models") for request in provider.log()["requests"])


def stop(daemon: Daemon, client: Client, session: str, frame: str) -> None:
    assert client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={}).status_code == 202
    client.answered(frame)


def kill_the_worker(daemon: Daemon, client: Client, session: str, frame: str) -> None:
    os.kill(int((daemon.workspace_root / "worker").read_text()), signal.SIGKILL)
    client.answered(frame)


def kill_the_controller(daemon: Daemon, client: Client, session: str, frame: str) -> None:
    daemon.kill()
    daemon.start()


def same_in_all_views(client: Client, session: str) -> dict[str, Any]:
    """The usage of the only turn of a session, which is what every view of it tells."""
    whole = client.get("/session", session)["usage"]
    (turn,) = client.get("/session/turns", session)["turns"]
    (run,) = client.get("/session/model-runs", session)["modelRuns"]
    calls = client.get(f"/session/model-runs/{run['id']}/calls", session)["calls"]
    assert whole == turn["usage"]
    assert (run["billedCostAmount"], run["costKnown"]) == (whole["billedCostAmount"], whole["costKnown"])
    assert all(call["costKnown"] for call in calls) == whole["costKnown"]
    assert [call["billedCostAmount"] for call in calls] == ["0.0045", "0"]
    found: dict[str, Any] = whole
    return found


@pytest.mark.parametrize("end", [stop, kill_the_worker, kill_the_controller])
@pytest.mark.parametrize("where", ["stream", "head", "wait"])
def test_only_attempts_that_were_made_are_told_and_say_what_cut_them_off(
    where: str, end: Callable[[Daemon, Client, str, str], None]
) -> None:
    with world() as (daemon, provider), daemon:
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            frame = client.send(session, "go", model=f"o/{where}")
            if where == "wait":
                client.until_type("provider.retry")
            elif where == "stream":
                client.until(lambda item: item["data"].get("delta", {}).get("type") == "text_delta")
            else:
                wait_for(lambda: asked(provider) == 2, "the second request")
            end(daemon, client, session, frame)
        with Client(daemon) as client:
            usage = same_in_all_views(client, session)
            (run,) = client.get("/session/model-runs", session)["modelRuns"]
            calls = client.get(f"/session/model-runs/{run['id']}/calls", session)["calls"]
            requests = asked(provider)

    reason = "cancelled" if end is stop else "interrupted"
    (only,) = calls[1]["responseUsage"]["failedAttempts"]
    assert only.pop("startedAt") <= only.pop("completedAt")
    error = only.pop("error")
    assert only == {"attempt": 1, "reason": reason, **TOLD[where]}
    assert ("too many" if where == "wait" else "cut off") in error
    assert run["responseUsage"]["totalAttempts"] == requests == 2
    assert run["state"] == reason
    # A request that was refused costs nothing; what the provider makes of one that was cut off, nobody knows.
    assert usage == {**USED, "costKnown": where == "wait"}


def executed(daemon: Daemon, model: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "peen", "exec", "--json", "--model", f"o/{model}", "go"],
        env=daemon.environment, cwd=daemon.workspace_root, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize(("model", "is_known"), [("whole", True), ("refused", True), ("broken", False)])
def test_exec_tells_the_cost_that_every_view_tells(model: str, is_known: bool) -> None:
    with world() as (daemon, _), daemon:
        told = executed(daemon, model)
        with Client(daemon) as client:
            usage = same_in_all_views(client, told["sessionId"])

    assert told["usage"] == told["sessionUsage"] == usage == {**USED, "costKnown": is_known}


def test_exec_whose_turn_is_stopped_in_mid_stream_tells_that_the_cost_is_not_known() -> None:
    with world() as (daemon, _), daemon, Client(daemon) as client:
        process = subprocess.Popen(
            [sys.executable, "-m", "peen", "exec", "--json", "--model", "o/stream", "go"],
            env=daemon.environment, cwd=daemon.workspace_root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        client.until(lambda item: item["data"].get("delta", {}).get("type") == "text_delta")
        session = client.open(daemon.workspace_root)
        assert client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={}).status_code == 202
        told = json.loads(process.communicate(timeout=PATIENCE_S)[0])
        usage = same_in_all_views(client, session)

    assert (told["state"], told["usage"], told["sessionUsage"]) == ("cancelled", usage, usage)
    assert usage == {**USED, "costKnown": False}
