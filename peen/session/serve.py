"""A worker's calls, carried out: each becomes one change in the store, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
import outcome
import structlog
from msgspec import Raw

from peen.entropy import Entropy, monotonic_ms
from peen.errors import NotFound, PeenError, ValidationFailed
from peen.session import adoption, agentwork, blobwork, jobs, writes
from peen.session.outputroom import OutputRoom
from peen.session.writer import TurnEnd, Writer
from peen.store.blobs.errors import BlobDamaged, BlobMissing
from peen.store.database import Change, Database
from peen.wire.jobcalls import (
    AppendJobOutput,
    CreateJob,
    DetachJob,
    EndJob,
    ListJobs,
    NoteJobStarted,
    ReadJob,
    RecordJobSignal,
)
from peen.wire.turncalls import (
    CommitSteps,
    Committed,
    ContinueExecution,
    EmitEvents,
    FetchBlob,
    HistoryPage,
    OpenedTurn,
    OpenTurn,
    ReadExecution,
    RenewLeases,
    ResolveExecutionActivity,
    RestoreExecution,
    SaveBlobs,
)
from peen.wire.worker import WireError, encode
from peen.wire.workerstruct import WorkerStruct

log = structlog.get_logger(__name__)

Reply = Callable[[bytes | WireError], None]
T = TypeVar("T")

_DECODE_OPEN: Final = msgspec.json.Decoder(OpenTurn).decode
_DECODE_HISTORY: Final = msgspec.json.Decoder(HistoryPage).decode
_DECODE_COMMIT: Final = msgspec.json.Decoder(CommitSteps).decode
_DECODE_RESTORE: Final = msgspec.json.Decoder(RestoreExecution).decode
_DECODE_BLOBS: Final = msgspec.json.Decoder(SaveBlobs).decode
_DECODE_FETCH: Final = msgspec.json.Decoder(FetchBlob).decode
_DECODE_EMIT: Final = msgspec.json.Decoder(EmitEvents).decode
_DECODE_RENEW: Final = msgspec.json.Decoder(RenewLeases).decode
_DECODE_READ: Final = msgspec.json.Decoder(ReadExecution).decode
_DECODE_RESOLVE: Final = msgspec.json.Decoder(ResolveExecutionActivity).decode
_DECODE_CONTINUE: Final = msgspec.json.Decoder(ContinueExecution).decode

_JOB_CHANGES: Final[dict[str, tuple[Callable[[Raw], Any], Callable[..., WorkerStruct]]]] = {
    "job.create": (msgspec.json.Decoder(CreateJob).decode, jobs.create),
    "job.started": (msgspec.json.Decoder(NoteJobStarted).decode, jobs.started),
    "job.detach": (msgspec.json.Decoder(DetachJob).decode, jobs.detach),
    "job.output": (msgspec.json.Decoder(AppendJobOutput).decode, jobs.append),
    "job.signal": (msgspec.json.Decoder(RecordJobSignal).decode, jobs.record_signal),
    "job.end": (msgspec.json.Decoder(EndJob).decode, jobs.end),
}
_JOB_READS: Final[dict[str, tuple[Callable[[Raw], Any], Callable[..., WorkerStruct]]]] = {
    "job.list": (msgspec.json.Decoder(ListJobs).decode, jobs.listed),
    "job.read": (msgspec.json.Decoder(ReadJob).decode, jobs.read),
}


class WorkerCalls:
    """Serves one worker generation. What it may write is fixed here, whatever its frames say.

    `on_end` hears of every terminal commit, on the Trio thread, before the worker does.
    """

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        entropy: Entropy,
        on_end: Callable[[TurnEnd], None],
        clock_ms: Callable[[], int] | None = None,
        on_run: Callable[[bytes], None] | None = None,
        room: OutputRoom | None = None,
    ) -> None:
        """`clock_ms` is the clock of leases, the same one that the watch over them goes by.

        `on_run` hears, on the Trio thread, of every execution that the worker has taken hold of. Without `room` all
        that jobs print is stored.
        """
        self._on_run, self._room = on_run or _nobody, room
        self._database, self._writer, self._entropy, self._on_end = database, writer, entropy, on_end
        self._clock_ms = clock_ms or partial(monotonic_ms, entropy)

    def handle(self, method: str, payload: Raw, reply: Reply) -> None:
        """Queue the call's transaction now, in order; `reply` is called once it is committed or refused."""
        try:
            match method:
                case "steps.commit":
                    self._commit(payload, reply)
                case "events.emit":
                    request = _DECODE_EMIT(payload)
                    change = partial(writes.emit, writer=self._writer, request=request, at_ms=self._entropy.now_ms())
                    self._submit(change, reply, answer=_same)
                case "blobs.save":
                    saving = partial(blobwork.save_blobs, writer=self._writer, request=_DECODE_BLOBS(payload))
                    self._submit(saving, reply, answer=_same)
                case "turn.open":
                    self._open(payload, reply)
                case "execution.restore":
                    self._restore(payload, reply)
                case "leases.renew":
                    renewing = partial(
                        writes.renew, writer=self._writer, request=_DECODE_RENEW(payload), clock_ms=self._clock_ms()
                    )
                    self._submit(renewing, reply, answer=_same)
                case "blobs.fetch":
                    reply(encode(blobwork.fetch_blob(self._database.reader, self._writer, _DECODE_FETCH(payload))))
                case "history.page":
                    reply(encode(adoption.history_page(self._database.reader, self._writer, _DECODE_HISTORY(payload))))
                case "execution.read":
                    reply(encode(agentwork.read(self._database.reader, self._writer, _DECODE_READ(payload))))
                case "execution.resolve":
                    deciding = partial(
                        agentwork.resolve,
                        writer=self._writer,
                        request=_DECODE_RESOLVE(payload),
                        at_ms=self._entropy.now_ms(),
                    )
                    self._submit(deciding, reply, answer=_same)
                case "execution.continue":
                    admitting = partial(
                        agentwork.admit_continuation,
                        writer=self._writer,
                        request=_DECODE_CONTINUE(payload),
                        at_ms=self._entropy.now_ms(),
                    )
                    self._submit(admitting, reply, answer=_same)
                case _ if method in _JOB_CHANGES:
                    self._change_job(method, payload, reply)
                case _ if method in _JOB_READS:
                    decode, function = _JOB_READS[method]
                    now_ms = self._entropy.now_ms()
                    reply(encode(function(self._database.reader, self._writer, decode(payload), at_ms=now_ms)))
                case _:
                    reply(_error(ValidationFailed(f"unknown method {method}")))
        except (NotFound, BlobMissing, BlobDamaged) as missing:
            reply(_error(missing))
        except (msgspec.MsgspecError, ValueError) as malformed:
            reply(_error(ValidationFailed(f"{method}: {malformed}")))

    def _open(self, payload: Raw, reply: Reply) -> None:
        change = partial(
            adoption.open_turn,
            writer=self._writer,
            request=_DECODE_OPEN(payload),
            execution_id=self._entropy.uuid4().bytes,
            run_id=self._entropy.uuid4().bytes,
            at_ms=self._entropy.now_ms(),
            clock_ms=self._clock_ms(),
        )

        def opened(answer: OpenedTurn) -> WorkerStruct:
            self._on_run(UUID(answer.execution_id).bytes)
            return answer

        self._submit(change, reply, answer=opened)

    def _restore(self, payload: Raw, reply: Reply) -> None:
        request = _DECODE_RESTORE(payload)

        def restored(answer: WorkerStruct) -> WorkerStruct:
            self._on_run(UUID(request.execution_id).bytes)
            return answer

        change = partial(
            adoption.restore,
            writer=self._writer,
            request=request,
            at_ms=self._entropy.now_ms(),
            clock_ms=self._clock_ms(),
        )
        self._submit(change, reply, answer=restored)

    def _commit(self, payload: Raw, reply: Reply) -> None:
        request = _DECODE_COMMIT(payload)
        change = partial(
            writes.commit_steps,
            writer=self._writer,
            request=request,
            payload=bytes(payload),
            next_turn_id=self._entropy.uuid4().bytes,
            at_ms=self._entropy.now_ms(),
            clock_ms=self._clock_ms(),
            run_id=self._entropy.uuid4().bytes if request.compaction is not None else b"",
        )
        self._submit(change, reply, answer=self._ended, terminal=request.terminal is not None, resends=True)

    def _change_job(self, method: str, payload: Raw, reply: Reply) -> None:
        decode, function = _JOB_CHANGES[method]
        request = decode(payload)
        change = partial(function, writer=self._writer, request=request, at_ms=self._entropy.now_ms())
        if self._room is not None and isinstance(request, AppendJobOutput | EndJob):
            size = sum(len(chunk.data) + len(chunk.index) for chunk in request.chunks)
            change = partial(change, allowance=self._room.allowance(size))
        # What is going on must be recorded although the disk is full, like the end of a turn.
        self._submit(change, reply, answer=_same, terminal=method in ("job.end", "job.detach"))

    def _ended(self, result: tuple[WorkerStruct, TurnEnd | None]) -> WorkerStruct:
        committed, end = result
        if end is not None:
            self._on_end(end)
        return committed

    def _submit(
        self,
        change: Change[T],
        reply: Reply,
        *,
        answer: Callable[[T], WorkerStruct],
        terminal: bool = False,
        resends: bool = False,
    ) -> None:
        """Queue a transaction. `resends`: the worker can send blobs that are missing, and is told which."""

        def done(result: outcome.Outcome[T]) -> None:
            match result:
                case outcome.Value(value=value):
                    reply(encode(answer(value)))
                case outcome.Error(error=BlobMissing(hashes=hashes)) if resends:
                    reply(encode(Committed(message_sequence=0, missing_blobs=hashes)))
                case outcome.Error(error=PeenError() as refused):
                    reply(_error(refused))
                case outcome.Error(error=fault):
                    log.error("a worker's call failed", exc_info=fault, generation=self._writer.generation_no)
                    reply(WireError(code="INTERNAL_SERVER_ERROR", message="internal server error"))

        self._database.submit(change, done, terminal=terminal)


def _nobody(_execution_id: bytes) -> None:
    """No history of runs is kept."""


def _same(value: Any) -> Any:
    return value


def _error(error: PeenError) -> WireError:
    return WireError(code=error.code, message=str(error))
