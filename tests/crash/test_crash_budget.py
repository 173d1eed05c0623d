"""A whole controller whose sessions may use only so much, over a restart; and what commands say about it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from crash_kit import PATIENCE_S, Client, command, script, short_directory

from peen.testing.daemon import Daemon

USAGE: Final = {"prompt": 1000, "completion": 100}
PRICE: Final = {"*": {"input": "3", "output": "15"}}  # such a round is 0.0045 dollars
MODELS: Final = {
    "works": [[{**command("echo hello >> made.txt"), "usage": USAGE}, {"text": "Done.", "usage": USAGE}]],
}


UNKNOWN: Final = "the price of scripted/openai/gpt-4o is not known"


@contextmanager
def priced(
    prices: dict[str, Any] = PRICE, *, models: dict[str, list[list[dict[str, Any]]]] = MODELS, **environment: str
) -> Iterator[Daemon]:
    """A daemon whose models have prices; it is not started yet."""
    with short_directory() as home:
        (home / "script.yaml").write_text(script(models))
        upstream = {"name": "scripted", "type": "scripted", "script": str(home / "script.yaml"), "prices": prices}
        yield Daemon(home, {"PEEN_UPSTREAMS": json.dumps([upstream]), **environment})


def peen(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peen", *arguments],
        env=daemon.environment, cwd=daemon.workspace_root, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def failure(frames: list[dict[str, Any]]) -> dict[str, Any]:
    (ended,) = [frame["data"] for frame in frames if frame["type"] == "turn.failed"]
    found: dict[str, Any] = ended
    return found


def requests(client: Client, session: str) -> int:
    """How many requests were sent to the model."""
    runs = client.get("/session/model-runs", session)["modelRuns"]
    return sum(run["responseUsage"]["totalAttempts"] for run in runs)


def open_with(client: Client, workspace: Path, budget: dict[str, Any]) -> dict[str, Any]:
    answer = client.http.post("/sessions/open", json={"workspace": str(workspace), "budget": budget})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["session"]
    return found


def test_a_session_that_has_used_up_its_money_asks_no_model_any_more_also_after_restart_and_crash() -> None:
    with priced(PEEN_MAX_SESSION_COST_USD="0.0045") as daemon:
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            first = failure(client.ask(session, "go"))
            again = failure(client.ask(session, "more"))
            daemon.kill()
        with daemon, Client(daemon) as client:
            after_crash = failure(client.ask(session, "still"))
        with daemon, Client(daemon) as client:
            after_restart = failure(client.ask(session, "yet"))
            whole = client.get("/session", session)
            turns = client.get("/session/turns", session)["turns"]
            asked = requests(client, session)

        assert (daemon.workspace_root / "made.txt").read_text() == "hello\n"  # the answer's tool still ran
        for ended in (first, again, after_crash, after_restart):
            assert ended["reason"] == "budgetReached"
            assert "0.0045 US dollars (PEEN_MAX_SESSION_COST_USD)" in ended["error"]
        assert asked == 1
        assert whole["budget"] == {"costUsd": "0.0045"}
        assert whole["usage"] == {
            "prompt": 1000, "completion": 100, "total": 1100, "billedCostAmount": "0.0045", "costKnown": True
        }  # fmt: skip
        assert [turn["usage"]["billedCostAmount"] for turn in turns] == ["0", "0", "0", "0.0045"]
        assert {turn["failureClassification"] for turn in turns} == {"budgetReached"}


def test_a_higher_budget_lets_the_session_go_on_and_a_restart_with_a_higher_limit_too() -> None:
    with priced() as daemon, daemon, Client(daemon) as client:
        session = open_with(client, daemon.workspace_root, {"tokens": 1100})["id"]
        assert failure(client.ask(session, "go"))["reason"] == "budgetReached"

        assert open_with(client, daemon.workspace_root, {"tokens": 10_000})["budget"] == {"tokens": 10_000}
        assert client.ask(session, "go")[-1]["type"] == "message.completed"
        assert client.get("/session", session)["usage"]["total"] == 3300


def test_exec_and_show_tell_what_was_used_by_a_controller_of_their_own_and_by_a_running_one() -> None:
    with priced(PEEN_MAX_SESSION_TOKENS="5000") as daemon:
        own = json.loads(peen(daemon, "exec", "--json", "go").stdout)
        with daemon:
            borrowed = json.loads(peen(daemon, "exec", "--json", "go").stdout)
            ended = peen(daemon, "exec", "--json", "go")
            shown = peen(daemon, "session", "show", own["sessionId"]).stdout

    def used(rounds: int, cost: str) -> dict[str, Any]:
        return {
            "prompt": 1000 * rounds, "completion": 100 * rounds, "total": 1100 * rounds, "billedCostAmount": cost,
            "costKnown": True,
        }  # fmt: skip

    assert (own["usage"], own["sessionUsage"]) == (used(2, "0.009"), used(2, "0.009"))
    assert (borrowed["usage"], borrowed["sessionUsage"]) == (used(2, "0.009"), used(4, "0.018"))
    third = json.loads(ended.stdout)
    assert (ended.returncode, third["reason"], third["usage"]) == (1, "budgetReached", used(1, "0.0045"))
    assert "PEEN_MAX_SESSION_TOKENS" in ended.stderr
    assert "used       5,500 tokens, $0.0225\nlimit      5,000 tokens\n" in shown
    assert shown.count("2,200 tokens, $0.009") == 2


def test_a_limit_of_dollars_that_cannot_count_the_default_model_is_told_at_the_start_and_by_exec() -> None:
    models = {"openai/gpt-4o": MODELS["works"]}
    with priced({"gpt-4o": PRICE["*"]}, models=models, PEEN_MAX_SESSION_COST_USD="0.0045") as daemon:
        own = peen(daemon, "exec", "go")
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.ask(session, "go")
            used = client.get("/session", session)["usage"]
        log = daemon.output()

    assert (own.returncode, own.stdout) == (0, "Done.\n")  # a name without the slash is another model's
    assert UNKNOWN in own.stderr
    assert "PEEN_UPSTREAMS" in own.stderr
    assert (used["total"], used["billedCostAmount"], used["costKnown"]) == (4400, "0", False)
    (line,) = [line for line in log.splitlines() if UNKNOWN in line]
    assert "PEEN_MAX_SESSION_COST_USD" in line


def test_a_model_of_a_gateway_is_counted_at_the_price_that_is_given_for_its_whole_name() -> None:
    models = {"openai/gpt-4o": MODELS["works"]}
    with priced({"openai/gpt-4o": PRICE["*"]}, models=models, PEEN_MAX_SESSION_COST_USD="0.0045") as daemon:
        own = peen(daemon, "exec", "--json", "go")
        with daemon:
            pass
        log = daemon.output()

    found = json.loads(own.stdout)
    assert (found["reason"], found["usage"]["billedCostAmount"]) == ("budgetReached", "0.0045")
    assert UNKNOWN not in own.stderr + log
