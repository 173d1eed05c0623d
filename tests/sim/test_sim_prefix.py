"""What a provider may cache: each request of a session goes on from the one before it, over rounds and over turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise

import pytest
from engine_kit import asks, says, work
from msgspec.structs import replace
from sim_model import SimUpstream
from sim_play import Play, Scenario

from peen.model.stream import ModelRequest, StreamEvent

TURNS = ("first", "second", "third")
BETWEEN_S = 60.0


def requests(monkeypatch: pytest.MonkeyPatch, between_s: float) -> list[ModelRequest]:
    """What is asked of the model in three turns of two rounds each, so many seconds apart."""
    seen: list[ModelRequest] = []
    stream = SimUpstream.stream

    def noted(self: SimUpstream, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        seen.append(replace(request, messages=[*request.messages]))  # they grow in their place
        return stream(self, request)

    async def body(play: Play) -> None:
        for turn in TURNS:
            await play.send(turn)
            await play.wait_idle()
            await play.sleep(between_s)

    monkeypatch.setattr(SimUpstream, "stream", noted)
    Scenario("prefix", {turn: [[asks(("look", work(turn)))], [says(f"done {turn}")]] for turn in TURNS}, body).run()
    return seen


def test_requests_of_turns_within_an_hour_begin_with_all_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = requests(monkeypatch, BETWEEN_S)

    for before, after in pairwise(seen):
        assert (after.system, after.tools) == (before.system, before.tools)
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) > len(before.messages)
    assert len(seen) > 2 * len(TURNS)  # a world is asked once more at its end


def test_a_turn_of_another_hour_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [request.system for request in requests(monkeypatch, 3600.0)]

    assert prompts[0] == prompts[1]
    assert len(set(prompts)) == len(TURNS) + 1
