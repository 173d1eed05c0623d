"""What the supervisor of workers writes down, and the calls that each generation may make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from peen.entropy import Entropy
from peen.ids import SessionNo
from peen.session import jobs
from peen.session.outputroom import OutputRoom
from peen.session.serve import WorkerCalls
from peen.session.spending import Terms
from peen.session.writer import TurnEnd, Writer
from peen.store import generations, sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database


class GenerationRecords:
    """Implements the supervisor's `GenerationStore` on the session store."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        entropy: Entropy,
        *,
        clock_ms: Callable[[], int] | None = None,
        on_run: Callable[[bytes], None] | None = None,
        terms: Terms | None = None,
        room: OutputRoom | None = None,
    ) -> None:
        """`clock_ms` is the clock of leases; without one it is the monotonic clock of `entropy`.

        `on_run` hears of every execution that a worker has taken hold of. Without `terms` no price is known, and
        nothing limits a session; without `room` nothing limits what jobs print.
        """
        self._terms, self._room = terms or Terms(), room
        self._database, self._blobs, self._entropy = database, blobs, entropy
        self._clock_ms, self._on_run = clock_ms, on_run

    async def create(
        self,
        session_id: str,
        generation_id: str,
        credential_hash: bytes,
        socket_path: str,
        agent_space: str,
        workspace: str,
    ) -> None:
        session = sessions.by_id(self._database.reader, UUID(session_id).bytes)
        assert session is not None, "a worker is started for a session that exists"
        await self._database.write(
            partial(
                generations.create,
                generation_id=UUID(generation_id).bytes,
                session_no=session.no,
                agent_space=agent_space,
                workspace=workspace,
                credential_sha256=credential_hash,
                socket_path=socket_path,
                at_ms=self._entropy.now_ms(),
            )
        )

    async def starting(self, generation_id: str, pid: int, start_time: int) -> None:
        await self._database.write(
            partial(
                generations.starting,
                generation_id=UUID(generation_id).bytes,
                pid=pid,
                process_started=start_time,
                at_ms=self._entropy.now_ms(),
            )
        )

    async def ready(self, generation_id: str) -> None:
        await self._database.write(partial(generations.ready, generation_id=UUID(generation_id).bytes))

    async def stopping(self, generation_id: str) -> None:
        await self._database.write(partial(generations.stopping, generation_id=UUID(generation_id).bytes))

    async def ended(self, generation_id: str, state: str, detail: str | None, exit_code: int | None) -> None:
        await self._database.write(
            partial(
                jobs.end_generation,
                generation_id=UUID(generation_id).bytes,
                state=state,
                detail=detail,
                exit_code=exit_code,
                at_ms=self._entropy.now_ms(),
            ),
            terminal=True,
        )

    def calls(
        self,
        generation_id: str,
        on_end: Callable[[TurnEnd, SessionNo], None],
    ) -> WorkerCalls:
        """The call handler of one generation; `on_end` hears of terminal commits."""
        generation = generations.by_id(self._database.reader, UUID(generation_id).bytes)
        assert generation is not None, "a worker is served after its generation was recorded"
        writer = Writer(generation.session_no, generation.no, self._blobs, self._terms)
        return WorkerCalls(
            self._database,
            writer,
            entropy=self._entropy,
            on_end=lambda end: on_end(end, writer.session_no),
            clock_ms=self._clock_ms,
            on_run=self._on_run,
            room=self._room,
        )
