from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.fold import Answer, Fold
from peen.model.registry import Models
from peen.model.retry import final_error, plan_retry
from peen.model.script import load_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelRequest, Upstream
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, ToolCallRecord

EXAMPLES: Final = Path(__file__).parent.parent / "harness_examples"
SCRIPTS: Final = sorted((EXAMPLES / "scripts").glob("*.yaml"))
IDLE_S: Final = 120.0
TOOLS: Final = (ToolDefinition(name="listFiles", description="", parameters=msgspec.Raw(b"{}")),)

# What each turn of each model comes to: the last answer's text, or the error that the turn fails with.
OUTCOMES: Final[dict[str, dict[str, list[str]]]] = {
    "plain-answer.yaml": {"script": ["Hello! I am a scripted model, and this is all that I say."]},
    "parallel-tools.yaml": {
        "reader": ["The check said: result of runCommand", "There is nothing more to do."],
        "busy": ["A hundred commands later."],
    },
    "small-window.yaml": {
        "script": [
            "Those were nine hundred numbers.",
            "Those were nine hundred and one.",
            "Those were nine hundred and two.",
        ],
    },
    "faults-and-retries.yaml": {
        "flaky": [
            "It took a few attempts.",
            "This answer is cut once and then comes whole.",
            "The call ran once, whole.",
            "Patience pays.",
        ],
        "broken": [
            "this request will never do",
            "the scripted provider answered with status 503 (gave up after 11 attempts)",
            "the scripted provider answered with status 429 (the provider asks to wait 3600 s, "
            "more than the 60 s that PEEN_PROVIDER_RETRY_MAX_DELAY allows)",
            "I was about to",
        ],
    },
}


class Talk:
    """A conversation with one model: what the agent loop does, at its smallest."""

    def __init__(self, upstream: Upstream, model_id: str) -> None:
        self._upstream, self._model_id = upstream, model_id
        self.messages: list[MessageRecord] = []
        self.waited_ms: list[int] = []

    def say(self, text: str) -> None:
        self.messages.append(MessageRecord(role="user", content=text))

    async def answer(self) -> Answer:
        """The next answer, after as many attempts as the rules allow. Raises: ModelError, the final one."""
        attempt = 1
        while True:
            try:
                answer = await self._attempt()
                break
            except ModelError as exc:
                wait_ms = plan_retry(attempt, exc, chance=0.0)
                if wait_ms is None:
                    raise final_error(attempt, exc) from exc
                self.waited_ms.append(wait_ms)
                await trio.sleep(wait_ms / 1000)
                attempt += 1
        self.messages.append(
            MessageRecord(role="assistant", content=answer.text, tool_calls=list(answer.calls) or None)
        )
        return answer

    def result(self, call: ToolCallRecord, content: str) -> None:
        self.messages.append(MessageRecord(role="tool", content=content, tool_call_id=call.id))

    async def _attempt(self) -> Answer:
        fold = Fold("made")
        request = ModelRequest(model_id=self._model_id, system="be good", messages=self.messages, tools=TOOLS)
        with trio.move_on_after(IDLE_S):
            async with self._upstream.stream(request) as events:
                async for event in events:
                    fold.add(event)
            return fold.finish()
        raise ModelError("the provider fell silent", kind="silence", retryable=True)


async def play_turn(talk: Talk) -> str:
    try:
        while (answer := await talk.answer()).calls:
            for call in answer.calls:
                talk.result(call, f"result of {call.name}")
    except ModelError as exc:
        return str(exc)
    return answer.text


def test_every_example_script_has_its_outcome_here() -> None:
    assert [path.name for path in SCRIPTS] == sorted(OUTCOMES)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
async def test_an_example_script_plays_to_its_end(path: Path, autojump_clock: MockClock) -> None:
    script = load_script(path)
    played: dict[str, list[str]] = {}

    for model_id, model in script.models.items():
        talk = Talk(ScriptedUpstream("example", script, with_demo=False), model_id)
        played[model_id] = []
        for number in range(len(model.turns)):
            talk.say(f"message {number}")
            played[model_id].append(await play_turn(talk))

    assert played == OUTCOMES[path.name]


async def test_the_flaky_provider_is_waited_for_as_it_asks(autojump_clock: MockClock) -> None:
    script = load_script(EXAMPLES / "scripts" / "faults-and-retries.yaml")
    talk = Talk(ScriptedUpstream("example", script, with_demo=False), "flaky")

    talk.say("go")
    await play_turn(talk)

    assert talk.waited_ms == [200, 250]  # Retry-After 0.2 s, then the ordinary wait, which is longer by then


def check(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "check.sh"], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def carry_out(call: ToolCallRecord, directory: Path) -> dict[str, Any]:
    """What the real tools would do for the demo's calls, in the shape of their results."""
    arguments = msgspec.json.decode(call.arguments)
    if call.name == "listFiles":
        return {"entries": [{"path": path.name, "type": "file"} for path in sorted(directory.iterdir())]}
    if call.name == "readFile":
        content = (directory / arguments["path"]).read_text()
        return {"content": content, "totalLines": content.count("\n")}
    if call.name == "editFile":
        path, (edit,) = directory / arguments["path"], arguments["edits"]
        content = path.read_text()
        assert content.count(edit["old"]) == 1, "an edit must find its text exactly once"
        path.write_text(content.replace(edit["old"], edit["new"]))
        return {"diff": f"-{edit['old']}\n+{edit['new']}\n"}
    assert (call.name, arguments["command"]) == ("runCommand", "sh check.sh")
    done = check(directory)
    return {"state": "exited", "exitCode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


async def test_the_demo_prompt_mends_the_sample_repository(tmp_path: Path) -> None:
    sample = tmp_path / "sample-repo"
    shutil.copytree(EXAMPLES / "sample-repo", sample)
    before = check(sample)
    models = Models.build([UpstreamConfig(name="scripted", type="scripted")], {})
    await models.discover()
    upstream, model = models.default(None)
    talk = Talk(upstream, model.model_id)

    talk.say((EXAMPLES / "demo-prompt.txt").read_text())
    rounds: list[list[str]] = []
    while (answer := await talk.answer()).calls:
        rounds.append([call.name for call in answer.calls])
        for call in answer.calls:
            talk.result(call, msgspec.json.encode(carry_out(call, sample)).decode())

    assert before.returncode == 1
    assert "FAILED" in before.stderr
    assert check(sample).returncode == 0
    assert rounds == [["listFiles"], ["readFile"] * 3, ["runCommand"], ["editFile"], ["runCommand"]]
    assert "runCommand `sh check.sh`: exit code 1" in answer.text
    assert "runCommand `sh check.sh`: exit code 0" in answer.text
    changed = [
        path.name
        for path in sample.iterdir()
        if path.read_bytes() != (EXAMPLES / "sample-repo" / path.name).read_bytes()
    ]
    assert changed == ["splitbill.py"]
