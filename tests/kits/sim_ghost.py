"""A worker that its controller has given up and that nobody could kill: it goes on, and its calls still arrive."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Raw
from sim_worker import SimProcess, SimSupervisor

from peen.session.records import GenerationRecords
from peen.session.writes import TurnEnd
from peen.wire.worker import WireError
from peen.worker.framing import FrameStream
from peen.worker.link import Reply, WorkerLink

READS: Final = frozenset({"history.page"})


class Ghost:
    """One replaced worker. `granted` names every call that was carried out although its generation had ended."""

    def __init__(self, process: SimProcess, records: GenerationRecords) -> None:
        self.process = process
        self.refused: list[str] = []
        self.granted: list[str] = []
        self._calls = records.calls(process.document.generation_id, self._ended)

    async def run(self, supervisor: SimSupervisor) -> None:
        """Give the worker up, and when that is recorded, let it write on."""
        actor = supervisor._actors[self.process.document.session_id]
        self.process.wire.is_haunted = self.process.is_ghost = True
        actor.give_up("it was replaced")
        # No deadline: the generation bounds each step of its end.
        await actor.ended.wait()
        link = WorkerLink(FrameStream(self.process.wire.controller), self._handle)
        await link.run()

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

