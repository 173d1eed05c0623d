"""A whole controller with a provider of chat completions that wants the reasoning of every answer back, as DeepSeek."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from crash_kit import Client, command, short_directory, wait_for
from test_crash_anthropic import LONG, READ, Listener

from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

TURNS: Final = [
    [
        {"thinking": 'I should look.\u2028 {"a": 1}', "text": "I read.", "chunk": 3, **READ},
        {"thinking": "And now?", **command("echo hello > made.txt")},
        {"thinking": "Enough.", "text": "It says {lastResult}."},
    ],
    [{"thinking": "Once more.", "text": "Again."}],
    [{"thinking": "The other is back.", "text": "Well."}],
]
THOUGHTS: Final = ['I should look.\u2028 {"a": 1}', "And now?", "Enough."]


@contextmanager
def wanting(models: dict[str, list[list[dict[str, Any]]]], **environment: str) -> Iterator[tuple[Daemon, Listener]]:
    """A daemon whose provider plays these models; it is not started yet."""
    written = {name: {"turns": [{"rounds": rounds} for rounds in turns]} for name, turns in models.items()}
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(json.dumps({"models": written}))
        with (
            UpstreamProcess(path, "--wants-reasoning") as provider,
            Listener(provider.base_url.removesuffix("/v1")) as at,
        ):
            upstreams = [{"name": "deep", "type": "openai", "baseUrl": f"{at.url}/v1"}]
            daemon = Daemon(home, {"PEEN_UPSTREAMS": json.dumps(upstreams), **environment})
            (daemon.workspace_root / "notes.txt").write_text("blue\n")
            yield daemon, at


def thoughts(body: dict[str, Any]) -> list[str | None]:
    return [said.get("reasoning_content") for said in body["messages"] if said["role"] == "assistant"]


def completes(client: Client, session: str, text: str, **data: Any) -> None:
    assert client.ask(session, text, **data)[-1]["type"] == "message.completed"


def test_reasoning_goes_back_over_rounds_turns_and_a_restart_and_to_its_own_model_only() -> None:
    with wanting({"m": TURNS, "other": TURNS}) as (daemon, at):
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            completes(client, session, "look", model="deep/m")
        assert [thoughts(body) for body in at.bodies] == [[], THOUGHTS[:1], THOUGHTS[:2]]

        with daemon, Client(daemon) as client:
            completes(client, session, "again", model="deep/m")
            assert thoughts(at.bodies[-1]) == THOUGHTS
            assert len(at.bodies) == 4

            completes(client, session, "and you", model="deep/other")
            # The first request was refused, and what the other model thought is nobody else's.
            assert [thoughts(body) for body in at.bodies[4:]] == [[None] * 4, [""] * 4]


def test_reasoning_comes_back_after_a_crash_in_the_middle_of_its_turn() -> None:
    with wanting({"m": LONG}, PEEN_CRASH_RECOVERY="resume") as (daemon, at):
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "work")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            daemon.kill()
        with daemon, Client(daemon) as client:
            wait_for(lambda: client.replay(session)[-1]["type"] == "turn.completed", "the turn to end")

    assert [thoughts(body) for body in at.bodies] == [[], ["This takes long."]]


def test_a_session_whose_turn_was_stopped_goes_on_where_a_system_message_may_only_come_first() -> None:
    turns = [*LONG, [{"text": "Here I am."}]]
    with wanting({"m": turns}) as (daemon, at), daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frame = client.send(session, "work")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")
        client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
        client.answered(frame)
        completes(client, session, "and now")

    roles = [said["role"] for said in at.bodies[-1]["messages"]]
    assert roles.count("system") == 1
    assert roles[0] == "system"
    told = [said["content"] for said in at.bodies[-1]["messages"] if str(said["content"]).startswith("<system>\n")]
    assert len(told) == 1
    assert "stopped the previous turn" in told[0]
