"""Calling a tool by name: every failure is a result that teaches, as long as there is somebody to tell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from structlog.testing import capture_logs
from tool_world import World, working
from trio.testing import MockClock

from peen.errors import LinkLost, PeenError, StaleClaim
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.registry import Tools


class EchoArguments(ToolArguments, frozen=True, kw_only=True):
    text: str = ""


class EchoResult(ToolResult, frozen=True, kw_only=True):
    text: str


class Echo(Tool[EchoArguments]):
    """Does what its argument names."""

    name = "echo"
    description = "For tests."
    arguments = EchoArguments
    repeatable = True

    async def run(self, arguments: EchoArguments, context: ToolContext) -> EchoResult:
        match arguments.text:
            case "fault":
                raise ZeroDivisionError("secret detail")
            case "silent":
                raise ToolError("failed", "")
            case "lost":
                raise LinkLost("the controller is gone")
            case "stale":
                raise StaleClaim("a Stop came")
            case "wait":
                await trio.sleep_forever()
        return EchoResult(text=arguments.text)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def echo(tmp_path: Path) -> World:
    return World(tmp_path, tools=Tools([Echo()]), tool_timeout_ms=5000, max_tool_result_tokens=64)


def test_a_definition_is_one_plain_object_schema_with_described_arguments(world: World) -> None:
    names = [definition.name for definition in world.tools.definitions]
    assert names == [
        *("listFiles", "searchText", "readFile"),
        *("writeFile", "editFile", "applyPatch", "movePath", "makeDirectory", "removePath"),
        "runCommand",
        "listJobs",
        "readJobOutput",
        "waitJob",
        "signalJob",
        *("readExecution", "resolveExecutionActivity", "continueExecution"),
    ]

    for definition in world.tools.definitions:
        text = bytes(definition.parameters).decode()
        schema = msgspec.json.decode(text)
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert all(part["description"] and "type" in part for part in schema["properties"].values())
        for word in ("$ref", "$defs", "anyOf", "title", "null"):
            assert f'"{word}"' not in text

    edit = msgspec.json.decode(bytes(world.tools.definitions[4].parameters))
    assert edit["required"] == ["path", "edits"]
    item = edit["properties"]["edits"]["items"]
    assert (item["required"], item["additionalProperties"]) == (["old", "new"], False)


def test_only_tools_whose_repetition_changes_nothing_may_be_repeated(world: World) -> None:
    repeatable = {each.name: world.tools.is_repeatable(each.name) for each in world.tools.definitions}

    assert repeatable == {
        "listFiles": True,
        "searchText": True,
        "readFile": True,
        "writeFile": False,
        "editFile": False,
        "applyPatch": False,
        "movePath": False,
        "makeDirectory": False,
        "removePath": False,
        "runCommand": False,
        "listJobs": True,
        "readJobOutput": True,
        "waitJob": True,
        "signalJob": False,
        "readExecution": True,
        "resolveExecutionActivity": True,
        "continueExecution": True,
    }


STATES = "exited, failed, interrupted, running or signalled"


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("readFile", b'{"pth":"x"}', "readFile: pth: unknown argument; did you mean path?"),
        ("readFile", b'{"path":"x","zzz":1}', "readFile: zzz: unknown argument; it takes path, offset, limit"),
        ("readFile", b"{}", "readFile: path: required, but missing"),
        ("readFile", b"", "readFile: path: required, but missing"),
        ("readFile", b' "" ', "readFile: path: required, but missing"),
        ("readFile", b"null", "readFile: path: required, but missing"),
        ("readFile", b'{"path":1}', "readFile: path: expected text, got a whole number"),
        ("readFile", b'{"path":null}', "readFile: path: expected text, got null"),
        ("readFile", b'{"path":"x","limit":"9"}', "readFile: limit: expected a whole number, got text"),
        ("readFile", b'{"path":"x","offset":0}', "readFile: offset: expected a whole number at least 1"),
        ("readFile", b'["x"]', "readFile: expected one JSON object with the arguments, got a list"),
        ("readFile", b'{"path":', "readFile: the arguments are not valid JSON"),
        ("readFile", b'{"path":"\xff"}', "readFile: the arguments are not valid JSON"),
        ("readFile", b'{"path":"\\ud800"}', "readFile: the arguments are not valid JSON"),
        ("readFile", b'{"path":"x","path":"x"}', "readFile: path: given more than once in one object"),
        ("readFile", b'{"path":"x","p\\u0061th":"y"}', "readFile: path: given more than once in one object"),
        (
            "editFile",
            b'{"path":"x","edits":[{"old":"a","new":"b"},{"old":"a","new":"","new":"c"}]}',
            "editFile: new: given more than once in one object",
        ),
        ("listJobs", b'{"state":"done"}', f"listJobs: state: expected {STATES}, got 'done'"),
        ("listJobs", b'{"state":true}', f"listJobs: state: expected {STATES}, got true or false"),
        (
            "readJobOutput",
            b'{"jobId":"x","stream":"out"}',
            "readJobOutput: stream: expected stderr or stdout, got 'out'",
        ),
        ("signalJob", b'{"jobId":"x","signal":"KILL"}', "signalJob: signal: expected kill or stop, got 'KILL'"),
        (
            "resolveExecutionActivity",
            b'{"executionId":"x","activityId":"y","decision":"ok"}',
            "resolveExecutionActivity: decision: expected accept or retry, got 'ok'",
        ),
        (
            "runCommand",
            b'{"command":"x","purpose":"","timeout":30}',
            'runCommand: timeout: expected text such as "90s", got a whole number',
        ),
        (
            "waitJob",
            b'{"jobId":"x","timeout":1.5}',
            'waitJob: timeout: expected text such as "90s", got a number',
        ),
        ("searchText", b'{"pattern":"x","include":"*.py"}', "searchText: include: expected a list, got text"),
        ("editFile", b'{"path":"x","edits":[]}', "editFile: edits: expected a list of length at least 1"),
        (
            "editFile",
            b'{"path":"x","edits":[{"old":7,"new":""}]}',
            "editFile: edits[0].old: expected text, got a whole number",
        ),
        (
            "editFile",
            b'{"path":"x","edits":[{"old":"a","new":""},{"old":"a","nwe":""}]}',
            "editFile: edits[1].nwe: unknown argument; did you mean new?",
        ),
        ("editFile", b'{"path":"x","edits":[{"old":"a"}]}', "editFile: edits[0].new: required, but missing"),
    ],
)
async def test_bad_arguments_name_the_field_and_the_remedy(
    world: World, tool: str, arguments: bytes, text: str
) -> None:
    outcome = await world.tools.call(tool, arguments, world.context)

    assert outcome.is_error
    assert outcome.content.startswith(f"validation failed: {text}")


@pytest.mark.parametrize("arguments", [b"", b'""', b"null", b"{}", b" {} "])
async def test_no_arguments_in_any_spelling_are_an_empty_object(world: World, arguments: bytes) -> None:
    outcome = await world.tools.call("listFiles", msgspec.Raw(arguments), world.context)

    assert not outcome.is_error


async def test_optional_arguments_may_be_null(world: World) -> None:
    assert (await world.ok("listFiles", path=None, recursive=None, maxDepth=None))["entries"] == []


async def test_an_unknown_tool_is_answered_with_the_known_ones(world: World) -> None:
    text = await world.refused("readfile", path="x")

    assert text.startswith("not found: there is no tool 'readfile'; did you mean readFile? The tools are: listFiles,")


async def test_a_fault_of_a_tool_is_an_unknown_outcome_for_the_model_and_loud_in_the_log(echo: World) -> None:
    with capture_logs() as logs:
        text = await echo.refused("echo", text="fault")

    assert "outcome is unknown" in text
    assert "secret" not in text
    assert [(entry["log_level"], entry["tool"], entry["exc_info"]) for entry in logs] == [("error", "echo", True)]


@pytest.mark.parametrize(("text", "kind"), [("lost", LinkLost), ("stale", StaleClaim)])
async def test_a_call_whose_result_nobody_would_store_has_none(echo: World, text: str, kind: type[PeenError]) -> None:
    with capture_logs() as logs, pytest.raises(kind):
        await echo.call("echo", text=text)

    assert logs == []


async def test_an_error_is_never_empty(echo: World) -> None:
    assert await echo.refused("echo", text="silent") == "failed"


async def test_a_call_that_takes_too_long_is_given_up_and_the_limit_is_named(
    echo: World, autojump_clock: MockClock
) -> None:
    text = await echo.refused("echo", text="wait")

    assert trio.current_time() == pytest.approx(5)
    assert text == "limit exceeded: echo took longer than 5s (PEEN_TOOL_TIMEOUT) and was given up"


async def test_cancellation_passes_through(echo: World, autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        await echo.call("echo", text="wait")

    assert scope.cancelled_caught


async def test_a_result_that_is_too_large_is_cut_and_still_json(echo: World) -> None:
    with capture_logs() as logs:
        result = await echo.ok("echo", text='"\n' * 500)

    assert result["cut"] is True
    assert result["beginning"].startswith('{"text":"')
    assert result["omittedBytes"] > 500
    assert [entry["log_level"] for entry in logs] == ["warning"]


async def fill(world: World) -> None:
    """More of everything than a small window can take."""
    for number in range(100):
        world.file(f"many/file-{number:03}.txt", b'needle and some more text of a line, "quoted"\n' * 100)


CALLS: dict[str, dict[str, object]] = {
    "readFile": {"path": "many/file-000.txt"},
    "searchText": {"pattern": "needle"},
    "listFiles": {"recursive": True},
    "runCommand": {"command": "cat many/*; cat many/* >&2", "purpose": "a test"},
}


@pytest.mark.parametrize("tool", CALLS)
async def test_a_result_takes_a_quarter_of_the_prompt_budget_at_most(tmp_path: Path, tool: str) -> None:
    world = World(tmp_path, prompt_budget_tokens=1000)
    await fill(world)

    with capture_logs() as logs:
        async with working(world):
            outcome = await world.call(tool, **CALLS[tool])

    result = msgspec.json.decode(outcome.content)
    assert not outcome.is_error
    assert 500 < len(outcome.content.encode()) <= 1000
    # The tool itself kept to it, and says that there is more.
    assert logs == []
    if tool == "runCommand":
        assert result["stdoutOmittedBytes"] > 0
        assert result["stderrOmittedBytes"] > 0
    else:
        assert result["truncated"] is True


@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("budget", [-5000, 0, 256, 400, 600])
async def test_next_to_no_budget_still_gives_valid_json(tmp_path: Path, tool: str, budget: int) -> None:
    world = World(tmp_path, prompt_budget_tokens=budget)
    await fill(world)

    async with working(world):
        outcome = await world.call(tool, **CALLS[tool])

    assert not outcome.is_error
    assert isinstance(msgspec.json.decode(outcome.content), dict)
    assert len(outcome.content.encode()) <= max(budget, 64)


@pytest.mark.parametrize("budget", [0, 256, 1000])
async def test_an_error_keeps_to_the_prompt_budget(tmp_path: Path, budget: int) -> None:
    world = World(tmp_path, prompt_budget_tokens=budget)

    text = await world.refused("readFile", path="é" * 2000)

    assert text.startswith(("validation failed: ", "not found: "))
    assert len(text.encode()) <= max(budget, 64)


@pytest.mark.parametrize(("budget", "limit"), [(None, 32_768), (1_000_000, 32_768), (40_000, 40_000), (1000, 1000)])
def test_a_result_is_bounded_by_its_own_limit_or_by_the_window(tmp_path: Path, budget: int | None, limit: int) -> None:
    world = World(tmp_path, prompt_budget_tokens=budget)

    assert world.context.max_result_bytes == min(limit, 32_768)
