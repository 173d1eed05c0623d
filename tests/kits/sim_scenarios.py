"""The stories that are played under every fault. Labels and texts are unique within one: that is how a repeat shows."""

from __future__ import annotations

from typing import Final

import trio
from engine_kit import asks, says, work
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


_LONG: Final = "word " * 150
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
                "early": [[says(f"one {_LONG}")]],
                "middle": [[says(f"two {_LONG}")]],
                "late": [[asks(("change", work("change.1", takes_s=0.1)), text=_LONG)], [says(f"three {_LONG}")]],
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
    )
}
