"""The stories that are played under every fault. Labels and texts are unique within one: that is how a repeat shows."""

from __future__ import annotations

from typing import Final

import trio
from engine_kit import asks, says, work
from sim_commands import COMMANDS
from sim_decisions import Wish
from sim_play import Play, Scenario

from peen.context.count import text_tokens
from peen.errors import ModelError
from peen.harness.prompt import base_prompt
from peen.model.stream import TextDelta

_OVERLOADED: Final = ModelError("overloaded", kind="server_error", retryable=True, status=503)
_REFUSED: Final = ModelError("no such model", kind="invalid_request", retryable=False, status=404)


async def _plain(play: Play) -> None:
    await play.send("plain")
    await play.wait_idle()


async def _tools(play: Play) -> None:
    await play.send("tools")
    await play.wait_idle()


async def _queued(play: Play) -> None:
    await play.send("first")
    await play.wait_until("tool.use")
    await play.send("second")
    await play.send("third")
    await play.wait_idle()


async def _late_message(play: Play) -> None:
    """Meets the last answer of the turn: it goes on, or the message opens the next turn."""
    await play.send("long")
    await play.wait_until("content_block_delta")
    await play.send("late")
    await play.wait_idle()


async def _stop(play: Play) -> None:
    await play.send("stopped")
    await play.wait_until("tool.use")
    await play.stop()
    await play.send("after")
    await play.wait_idle()


async def _retry(play: Play) -> None:
    await play.send("retried")
    await play.wait_idle()


async def _notice(play: Play) -> None:
    await play.post_notice("notice before the turn")
    await play.send("noticed")
    await play.wait_until("tool.use")
    await play.post_notice("notice inside of the turn")
    await play.wait_idle()
    await play.post_notice("notice after the turn")


async def _failed(play: Play) -> None:
    await play.send("failing")
    await play.wait_idle()


async def _two_sessions(play: Play) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(play.send, "here")

        async def other() -> None:
            await play.send("there", session=1)

        nursery.start_soon(other)
    await play.wait_idle()


_WORDY: Final = "word " * 150
_SUMMARIZE: Final = {
    "compaction_mode": "summarize", "compaction_max_output_tokens": 100, "output_reserve_tokens": 300,
    "max_context_tokens": text_tokens(base_prompt()) + 1100,
}  # fmt: skip
"""Settings of a model that takes about three long messages."""


async def _compaction(play: Play) -> None:
    """In the course of it the conversation gets too long twice."""
    for text in ("early", "middle", "late", "latest"):
        await play.send(text)
        await play.wait_idle()


async def _interrupted(play: Play) -> None:
    """The controller dies while an effect is under way; its user comes back, decides, and goes on."""
    await play.send("interrupted")
    await play.wait_until("tool.result")
    await play.send("for the same turn")
    await play.wait_until("userMessage.queued")
    await play.sleep(1.0)
    await play.crash_controller()
    await play.restart()
    await play.resend()
    await play.decide()
    await play.send("after")
    await play.wait_idle()


async def _stopped_resume(play: Play) -> None:
    """What was stopped goes on behind another turn, during which that was asked for."""
    await play.send("stopped")
    await play.wait_until("tool.result")
    await play.send("queued")
    await play.wait_until("message.completed")
    await play.stop()
    await play.send("between")
    await play.wait_until("tool.use")
    await play.decide()
    await play.send("after")
    await play.wait_idle()


async def _abandon(play: Play) -> None:
    await play.send("given up")
    await play.wait_until("tool.use")
    await play.send("for nothing")
    await play.stop()
    await play.decide()
    await play.send("after")
    await play.wait_idle()


async def _queue_behind_stop(play: Play) -> None:
    """Both messages that waited are let go, while a third one comes."""
    await play.send("stopped")
    await play.wait_until("tool.use")
    for waiting in ("second", "third"):
        await play.send(waiting)
        await play.wait_until("userMessage.queued")
    await play.stop()
    await play.wait_until("turn.cancelled")
    await play.send("meanwhile")
    await play.decide()
    await play.wait_idle()


_LONG: Final = [
    [asks(("look", work("look.1")), ("change", work("change.1", takes_s=3)), text="on it")],
    [asks(("change", work("change.2")), ("look", work("look.2")), text="more of it")],
    [says("done")],
]
"""A turn to be paused in its first round, after its reading and inside of its effect."""


SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("plain", {"plain": [[[TextDelta("one "), 0.1, *says("two")]]]}, _plain),
        Scenario(
            "tools",
            {
                "tools": [
                    [
                        asks(
                            ("look", work("look.1", takes_s=0.2)),
                            ("change", work("change.1", takes_s=0.1)),
                            ("change", work("change.2", fail=True)),
                            ("look", work("look.2")),
                            text="on it",
                        )
                    ],
                    [asks(("change", work("change.3")))],
                    [says("done")],
                ]
            },
            _tools,
        ),
        Scenario(
            "queued",
            {"first": [[asks(("change", work("change.1", takes_s=0.5)))], [says("done")]]},
            _queued,
        ),
        Scenario("late", {"long": [[[TextDelta("thinking"), 0.05, *says(" of it")]]]}, _late_message),
        Scenario(
            "stop",
            {
                "stopped": [[asks(("change", work("change.1", takes_s=60)), ("look", work("look.1")))]],
                "after": [],
            },
            _stop,
        ),
        Scenario(
            "retry",
            {"retried": [[[TextDelta("half"), _OVERLOADED], [_OVERLOADED], says("whole")]]},
            _retry,
        ),
        Scenario(
            "notice",
            {"noticed": [[asks(("look", work("look.1", takes_s=0.5)))], [says("done")]]},
            _notice,
        ),
        Scenario(
            "compaction",
            {
                "early": [[says(f"one {_WORDY}")]],
                "middle": [[says(f"two {_WORDY}")]],
                "late": [[asks(("change", work("change.1", takes_s=0.1)), text=_WORDY)], [says(f"three {_WORDY}")]],
                "latest": [[asks(("look", work("look.1")))], [says("done")]],
            },
            _compaction,
            settings=_SUMMARIZE,
        ),
        Scenario("failed", {"failing": [[asks(("change", work("change.1")))], [[_REFUSED]]]}, _failed),
        Scenario(
            "sessions",
            {
                "here": [[asks(("change", work("here.1", takes_s=0.1)))], [says("done here")]],
                "there": [[asks(("change", work("there.1", takes_s=0.1)))], [says("done there")]],
            },
            _two_sessions,
            sessions=2,
        ),
        Scenario("resume", {"interrupted": _LONG, "after": []}, _interrupted, wish=Wish(uncertain="retry")),
        Scenario(
            "accept",
            {"interrupted": _LONG, "after": []},
            _interrupted,
            wish=Wish(uncertain="accept", outcome="it was changed"),
        ),
        Scenario(
            "stopped_resume",
            {
                "stopped": _LONG,
                "between": [
                    [asks(("change", work("between.1", takes_s=0.5)), text="in between")],
                    [says("done between")],
                ],
                "after": [],
            },
            _stopped_resume,
            wish=Wish(uncertain="accept", outcome="it was changed"),
        ),
        Scenario("abandon", {"given up": _LONG, "after": []}, _abandon, wish=Wish(work="abandon")),
        Scenario(
            "queue_behind_stop",
            {"stopped": _LONG, "second": [], "third": [], "meanwhile": []},
            _queue_behind_stop,
            wish=Wish(work="stay", releases=True),
        ),
    )
} | COMMANDS
