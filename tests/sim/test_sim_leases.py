"""Leases in a whole world: work that takes long is left alone, work that nobody holds any more is ended."""

from __future__ import annotations

import dataclasses

import trio
from engine_kit import asks, work
from sim_play import Play, Scenario
from sim_worker import SimWorker

from peen.execution.steps import RENEW_S
from peen.session.leases import CAUSE, LOOK_S
from peen.store import activities, executions
from peen.store.leases import LEASE_MS
from peen.turn.workshop import Workshop
from peen.wire.turncalls import LeasesRenewed, RenewLeases
from peen.worker.journal import LinkJournal
from peen.worker.link import ControllerLink

LONG_S = 590.0
SCRIPT = {"long": [[asks(("change", work("the long one", takes_s=LONG_S)))]]}


class SilentJournal(LinkJournal):
    """Everything works but renewals."""

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        await trio.sleep_forever()
        raise AssertionError("unreachable")


class SilentWorker(SimWorker):
    """Its link beats and its turn works; nobody renews the leases."""

    async def _furnish(self, link: ControllerLink) -> Workshop:
        return dataclasses.replace(await super()._furnish(link), journal=SilentJournal(link))


class LateJournal(LinkJournal):
    """Renewals arrive a moment after the lease has run out, and before anybody has looked."""

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        await trio.sleep(LEASE_MS / 1000 - RENEW_S + 1)
        return await super().renew(request)


class LateWorker(SimWorker):
    async def _furnish(self, link: ControllerLink) -> Workshop:
        return dataclasses.replace(await super()._furnish(link), journal=LateJournal(link))


def test_a_tool_that_takes_ten_minutes_is_left_alone() -> None:
    async def body(play: Play) -> None:
        await play.send("long")
        await play.wait_idle()

    world = Scenario("long", SCRIPT, body).run()

    assert [run.is_done for run in world.ledger.runs] == [True]
    assert [frame["type"] for frame in world.clients[0].heard if frame["type"].startswith("turn.")][:2] == [
        "turn.started",
        "turn.completed",
    ]


def test_a_turn_whose_leases_nobody_renews_is_interrupted_and_the_session_goes_on() -> None:
    ends: list[float] = []

    async def body(play: Play) -> None:
        play.world.space.worker = SilentWorker
        await play.send("long")
        began = trio.current_time()
        await play.wait_until("turn.failed")
        ends.append(trio.current_time() - began)
        play.world.space.worker = SimWorker
        await play.wait_idle()

    world = Scenario("silent", SCRIPT, body).run()  # at its end, it is seen that the session takes another message

    assert LEASE_MS / 1000 <= ends[0] <= LEASE_MS / 1000 + LOOK_S + 5
    (failed,) = [frame for frame in world.clients[0].heard if frame["type"] == "turn.failed"]
    assert (failed["data"]["reason"], failed["data"]["error"]) == ("interrupted", CAUSE)
    reader = world.reader()
    execution = executions.root_of(reader, 1)
    assert execution is not None
    assert (execution.state, execution.holder, execution.pause_reason) == ("paused", None, "interrupted")
    (handler,) = [step for step in activities.steps(reader, execution.no) if step.step.endswith("handler")]
    assert handler.state == "uncertain"
    details = reader.rows("SELECT state, failure_detail FROM generation ORDER BY no")
    assert details[0] == ("failed", CAUSE)


def test_a_worker_whose_renewal_is_refused_gives_its_turn_up_by_itself() -> None:
    async def body(play: Play) -> None:
        play.world.space.worker = LateWorker
        await play.send("long")
        await play.wait_until("turn.failed")
        play.world.space.worker = SimWorker
        await play.wait_idle()

    world = Scenario("late", SCRIPT, body).run()

    (failed,) = [frame for frame in world.clients[0].heard if frame["type"] == "turn.failed"]
    assert failed["data"] == {"reason": "interrupted", "error": "the session's worker lost its hold on the turn"}
    assert [run.is_done for run in world.ledger.runs] == [False]
