"""A worker that its controller has given up and that nobody could kill: it goes on, and its calls still arrive."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Raw
from sim_link import HauntedEnd
from sim_worker import SimProcess, SimSupervisor

from peen.session.records import GenerationRecords
from peen.session.writer import TurnEnd
from peen.space.generation import GenerationActor
from peen.wire.worker import WireError
from peen.worker.framing import FrameStream
from peen.worker.link import Reply, WorkerLink

READS: Final = frozenset({"history.page", "blobs.fetch", "job.list", "job.read"})


class Ghost:
    """One replaced worker. `granted` names every call that was carried out although its generation had ended."""

    def __init__(self, process: SimProcess, records: GenerationRecords) -> None:
        self.process = process
        self._generation: GenerationActor | None = None
        self.refused: list[str] = []
        self.granted: list[str] = []
        self._calls = records.calls(process.document.generation_id, self._ended)

    def give_up(self, supervisor: SimSupervisor) -> None:
        """The controller loses the worker in this moment."""
        self.process.wire.is_haunted = self.process.is_ghost = True
        self._generation = supervisor._current(self.process.document.session_id)
        assert self._generation is not None
        self._generation.give_up("it was replaced")

    async def run(self) -> None:
        """Let the worker write on, until its wire is gone."""
        wire = self.process.wire
        # No deadline: the generation bounds each step of its end.
        assert self._generation is not None
        await self._generation.ended.wait()
        await WorkerLink(FrameStream(HauntedEnd(wire.controller.inner, wire)), self._handle).run()

    def _handle(self, method: str, payload: Raw, reply: Reply) -> None:
        self._calls.handle(method, payload, partial(self._replied, method, reply))

    def _replied(self, method: str, reply: Reply, result: bytes | WireError) -> None:
        if isinstance(result, WireError):
            self.refused.append(method)
        elif method not in READS:
            self.granted.append(method)
        reply(result)

    def _ended(self, end: TurnEnd, _session_no: int) -> None:
        self.granted.append(f"the end of turn {end.turn_id}")
