"""Stories of commands, as `sim_programs` writes them. Each line stands once in a story: repeats show."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from engine_kit import asks, says
from sim_decisions import Wish
from sim_model import Script
from sim_play import Body, Play, Scenario
from sim_worker import CommandingWorker


def run(command: str, **arguments: Any) -> tuple[str, str]:
    """A call that runs a command; the workspaces of a simulation are names only, so it runs elsewhere."""
    given = {"command": command, "purpose": "simulated", "directory": "/", **arguments}
    return "runCommand", msgspec.json.encode(given).decode()


def about(tool: str, number: int, **arguments: Any) -> tuple[str, str]:
    """A call about the first job that the model was told of, or the second, and so on."""
    return tool, msgspec.json.encode({"jobId": f"{{job.{number}}}", **arguments}).decode()


async def _until_idle(play: Play) -> None:
    await play.send("go")
    await play.wait_idle()


async def _until_over(play: Play) -> None:
    """The jobs end after their turn, and the model hears of that in the next one."""
    await play.send("go")
    await play.wait_idle()
    await play.wait_jobs()
    await play.send("next")
    await play.wait_idle()


async def _stopped(play: Play) -> None:
    """A Stop ends the command of the call, and leaves alone what runs in the background."""
    await play.send("go")
    await play.wait_until("tool.result")
    await play.wait_jobs(2)
    await play.sleep(0.2)
    await play.stop()
    await play.wait_idle()
    await play.wait_jobs()


async def _signalled(play: Play) -> None:
    await play.send("go")
    await play.wait_idle()
    await play.signal_job("kill")
    await play.sleep(5.0)
    await play.signal_job("stop")  # too late, which is recorded as well


async def _worker_dies(play: Play) -> None:
    await play.send("go")
    await play.wait_until("tool.result")
    await play.wait_jobs(2)
    await play.sleep(0.2)
    play.crash_worker()
    await play.wait_idle()
    await play.decide()
    await play.wait_idle()


async def _controller_dies(play: Play) -> None:
    await play.send("go")
    await play.wait_until("tool.result")
    await play.wait_jobs(2)
    await play.sleep(0.2)
    await play.crash_controller()
    await play.restart()
    await play.resend()
    await play.decide()
    await play.send("next")
    await play.wait_idle()


_BESIDE: Final[Script] = {
    "go": [
        [asks(run("out first; sleep 2; err second; sleep 60; out third", background=True))],
        [asks(run("trap 60; out fourth; part fifth; sleep 30; out sixth"))],
        [says("done")],
    ],
    "next": [],
}
"""A command in the background, and beside it one that its call waits for and that does not listen to TERM."""

_STORIES: Final[dict[str, tuple[Script, Body, Wish | None]]] = {
    "command": (
        {
            "go": [
                [
                    asks(
                        run("out one; err two; part th; sleep 0.3; out ree; leave sleep 0.2, err late; exit 3"),
                        run("refused"),
                    )
                ],
                [says("done")],
            ]
        },
        _until_idle,
        None,
    ),
    "command_background": (
        {
            "go": [
                [asks(run("out one; sleep 0.5; err two; sleep 0.5; part three; exit 4", background=True))],
                [asks(about("readJobOutput", 1), ("listJobs", "{}"))],
                [asks(about("waitJob", 1, timeout="200ms"))],
                [asks(about("waitJob", 1, timeout="5s", stdoutCursor=1, stderrCursor=1))],
                [says("done")],
            ]
        },
        _until_idle,
        None,
    ),
    "command_timeout": (
        {
            "go": [
                [asks(run("fill 9000; sleep 2; err two; leave sleep 3, out late; exit 5", timeout="1s"))],
                [says("done")],
            ],
            "next": [],
        },
        _until_over,
        None,
    ),
    "command_stop": (_BESIDE, _stopped, None),
    "command_signal": (
        {
            "go": [
                [asks(run("trap 2; out one; leave forever; forever", background=True))],
                [asks(about("signalJob", 1, signal="stop"))],
                [asks(run("trap 60; out two; leave forever; exit 0"))],
                [says("done")],
            ]
        },
        _signalled,
        None,
    ),
    "command_worker": (_BESIDE, _worker_dies, Wish(uncertain="retry")),
    "command_controller": (_BESIDE, _controller_dies, Wish(uncertain="accept", outcome="it was changed")),
}

COMMANDS: Final = {
    name: Scenario(name, script, body, wish=wish, worker=CommandingWorker)
    for name, (script, body, wish) in _STORIES.items()
}
