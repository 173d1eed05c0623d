"""A conversation that outgrows its window, through real processes and a provider over HTTP, across a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crash_kit import Client, scripted_daemon, short_directory

from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

EXAMPLES = Path(__file__).parents[2] / "harness_examples"
LONG = "word " * 3200
SCRIPT = {
    "models": {
        "m": {
            "repeatLastTurn": True,
            "summary": {"text": "They asked for words and got them."},
            "turns": [{"rounds": [{"text": f"answer {number} {LONG}"}]} for number in range(1, 9)],
        },
        "small": {
            "repeatLastTurn": True,
            "refuseOver": 9000,
            "turns": [{"rounds": [{"text": f"answer {number} {LONG}"}]} for number in range(1, 9)],
        },
    }
}


@contextmanager
def small_window(**environment: str) -> Iterator[tuple[Daemon, UpstreamProcess]]:
    """A daemon, which is not started, and its provider."""
    with short_directory() as home:
        path: Path = home / "script.json"
        path.write_text(json.dumps(SCRIPT))
        with UpstreamProcess(path) as provider:
            upstreams = [{"name": "o", "type": "openai", "baseUrl": provider.base_url, "apiKeyEnv": "MYK"}]
            yield Daemon(home, {"PEEN_UPSTREAMS": json.dumps(upstreams), "MYK": "sk-test", **environment}), provider


def talk(client: Client, session: str, *texts: str) -> list[str]:
    """The texts of the answers."""
    answers = []
    for text in texts:
        frames = client.ask(session, text)
        assert frames[-1]["type"] == "message.completed", frames[-1]
        answers += [frame["data"]["text"] for frame in frames if frame["type"] == "turn.completed"]
    return answers


def test_a_summary_outlives_the_controller_that_made_it() -> None:
    settings = {
        "PEEN_COMPACTION_MODE": "summarize", "PEEN_MAX_CONTEXT_TOKENS": "15000", "PEEN_OUTPUT_RESERVE_TOKENS": "2000",
        "PEEN_COMPACTION_MAX_OUTPUT_TOKENS": "500",
    }  # fmt: skip
    with small_window(**settings) as (daemon, _):
        with daemon, Client(daemon) as client:
            (daemon.config_dir / "COMPACTION.md").write_text("Sum up, please.")
            session = client.open(daemon.workspace_root)
            answers = talk(client, session, *[f"message {number}" for number in range(1, 6)])
            made = client.get("/session/compactions", session)["compactions"]
            daemon.kill()
        with daemon, Client(daemon) as client:
            answers += talk(client, session, "message 6")
            assert client.get("/session/compactions", session)["compactions"][-len(made) :] == made
            messages = client.get("/messages", session)["items"]
            sent = _last_request(client, session)
            asked = _last_request(client, session, stage="compaction")

    assert [answer.split()[1] for answer in answers] == ["1", "2", "3", "4", "5", "6"]  # the script saw them all
    assert len(made) >= 1
    assert all("They asked for words and got them." in summary["summary"] for summary in made)
    assert "Current directory: " in made[0]["summary"]
    assert [message["role"] for message in asked] == ["system", "user"]
    assert asked[0]["content"] == "Sum up, please."
    covered = [message["content"] for message in messages if "compactionId" in message]
    assert covered[:2] == ["message 1", f"answer 1 {LONG}"]
    assert sent[1]["content"].startswith("<summary messages=")
    assert not any(message["content"] == "message 1" for message in sent)
    assert sent[-1]["content"] == "message 6"


def test_a_model_whose_window_is_smaller_than_it_says_gets_less_until_it_answers() -> None:
    with small_window() as (daemon, _), daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frames = []
        for number in range(1, 4):
            frames += client.ask(session, f"message {number}", model="o/small")
        sent = _last_request(client, session)

    assert [frame["type"] for frame in frames].count("turn.completed") == 3
    retries = [frame["data"]["reason"] for frame in frames if frame["type"] == "provider.retry"]
    assert set(retries) == {"context_length_exceeded"}
    assert sent[1]["content"].startswith("<omitted messages=")
    assert sent[-1]["content"] == "message 3"


def test_the_example_of_a_small_window_is_summarized_and_the_script_goes_on() -> None:
    text = (EXAMPLES / "scripts" / "small-window.yaml").read_text()
    with short_directory() as home:
        daemon = scripted_daemon(home, text, {"PEEN_COMPACTION_MODE": "summarize"})
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            answers = talk(client, session, "one", "two", "three", "four")
            made = client.get("/session/compactions", session)["compactions"]

    assert [answer.split()[-1] for answer in answers] == ["numbers.", "one.", "two.", "two."]
    assert [summary["toSequence"] for summary in made] == [8, 4]
    assert "The user had numbers printed, and saw them." in made[0]["summary"]


def _last_request(client: Client, session: str, *, stage: str = "turn") -> list[dict[str, Any]]:
    run = client.get("/session/model-runs", session, stage=stage, limit=1)["modelRuns"][0]
    call = client.get(f"/session/model-runs/{run['id']}/calls", session)["calls"][-1]
    sent: list[dict[str, Any]] = call["requestMessages"]
    return sent
