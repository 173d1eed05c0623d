"""The command `peen dev upstream`, and whether what it plays over the wire is what the scripts say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio
from crash_kit import short_directory

from peen.entropy import SystemEntropy
from peen.errors import ModelError
from peen.model.direct import DirectTransport
from peen.model.fold import Answer, Fold
from peen.model.openai import OpenAiUpstream
from peen.model.retry import MAX_ATTEMPTS
from peen.model.script import load_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelRequest, Upstream
from peen.testing.upstream.process import UpstreamProcess
from peen.wire.launch import UpstreamConfig
from peen.wire.records import MessageRecord

SCRIPTS: Final = sorted((Path(__file__).parent.parent.parent / "harness_examples" / "scripts").glob("*.yaml"))
IDLE_S: Final = 0.3

Outcome = tuple[str, str, int | None] | tuple[int, bool]
"""Of a turn: text, finish reason and prompt tokens, or the status of the error and whether it may be repeated."""


@pytest.fixture
def home() -> Iterator[Path]:
    with short_directory() as path:
        yield path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peen", "dev", "upstream", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def attempt(upstream: Upstream, model_id: str, messages: list[MessageRecord]) -> Answer:
    fold = Fold("made")
    with trio.move_on_after(IDLE_S):
        async with upstream.stream(ModelRequest(model_id=model_id, system="be good", messages=messages)) as events:
            async for event in events:
                fold.add(event)
        return fold.finish()
    raise ModelError("silence", kind="silence", retryable=True)


async def ask(upstream: Upstream, model_id: str, messages: list[MessageRecord]) -> Answer:
    """As many attempts as a turn makes, without the waits between them. Raises: ModelError, the last one."""
    for number in range(1, MAX_ATTEMPTS + 1):
        try:
            return await attempt(upstream, model_id, messages)
        except ModelError as error:
            if number == MAX_ATTEMPTS or not error.retryable:
                raise
    raise AssertionError("the last attempt either returns or raises")


async def play(upstream: Upstream, script: Path) -> dict[str, list[Outcome]]:
    """Every turn of every model."""
    played: dict[str, list[Outcome]] = {}
    for model_id, model in load_script(script).models.items():
        messages: list[MessageRecord] = []
        played[model_id] = []
        for number in range(len(model.turns)):
            messages.append(MessageRecord(role="user", content=f"message {number}"))
            try:
                while (answer := await ask(upstream, model_id, messages)).calls:
                    _continue(messages, answer)
            except ModelError as error:
                played[model_id].append((error.http_status or 0, error.retryable))
            else:
                _continue(messages, answer)
                played[model_id].append((answer.text, answer.finish_reason, answer.usage.completion))
    return played


def _continue(messages: list[MessageRecord], answer: Answer) -> None:
    messages.append(MessageRecord(role="assistant", content=answer.text, tool_calls=list(answer.calls) or None))
    messages += [
        MessageRecord(role="tool", content=f"result of {call.name}", tool_call_id=call.id) for call in answer.calls
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
async def test_an_example_script_plays_over_the_wire_as_it_does_inside(path: Path) -> None:
    inside = await play(ScriptedUpstream("dev", load_script(path), with_demo=False), path)

    with UpstreamProcess(path) as provider:
        config = UpstreamConfig(name="dev", type="openai", base_url=provider.base_url)
        adapter = OpenAiUpstream(config, None, DirectTransport(), SystemEntropy())
        over_the_wire = await play(adapter, path)
        await adapter.aclose()

    assert over_the_wire == inside


def test_it_says_where_it_listens_and_ends_orderly(home: Path) -> None:
    script = home / "s.yaml"
    script.write_text("turns: [{rounds: [{text: hi}]}]")

    provider = UpstreamProcess(script).start()

    assert provider.base_url == f"http://127.0.0.1:{provider.port}/v1"
    assert provider.log() == {"requests": [], "openStreams": 0}
    assert provider.stop() == 0


def test_a_script_or_a_port_that_cannot_be_used_is_refused_with_the_reason(home: Path) -> None:
    script = home / "s.yaml"
    script.write_text("turns: [{rounds: [{txt: hi}]}]")
    wrong = run("--script", str(script))
    missing = run("--script", str(home / "gone.yaml"))
    with UpstreamProcess(SCRIPTS[0]) as provider:
        taken = run("--script", str(SCRIPTS[0]), "--port", str(provider.port))

    assert (wrong.returncode, missing.returncode, taken.returncode) == (2, 2, 2)
    assert "turns[0].rounds[0]: Object contains unknown field `txt`" in wrong.stderr
    assert "gone.yaml: cannot be read" in missing.stderr
    assert f"--port: cannot listen on 127.0.0.1:{provider.port}: Address already in use" in taken.stderr
    assert "Traceback" not in wrong.stderr + missing.stderr + taken.stderr
