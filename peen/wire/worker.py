"""Frames between the controller and a session worker: 4 bytes of length (big-endian), then one JSON object.

Both ends send calls and get answers by `id`. Payloads are kept as raw JSON until the method is known;
`CALLS` and `COMMANDS` give the request and reply struct of each method.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Raw

from peen.wire.jobcalls import (
    AppendJobOutput,
    CreateJob,
    DetachJob,
    EndJob,
    JobCreated,
    JobDetached,
    JobEnded,
    JobOutputAppended,
    JobRead,
    JobSignalled,
    JobSignalRecorded,
    JobsListed,
    JobStartNoted,
    ListJobs,
    NoteJobStarted,
    ReadJob,
    RecordJobSignal,
    SignalJob,
)
from peen.wire.records import NOTHING, ImageRef
from peen.wire.turncalls import (
    BlobPiece,
    BlobsSaved,
    CommitSteps,
    Committed,
    ContinuationAdmitted,
    ContinueExecution,
    EmitEvents,
    Emitted,
    ExecutionActivityResolved,
    ExecutionsRead,
    FetchBlob,
    HistoryPage,
    HistoryRows,
    LeasesRenewed,
    OpenedTurn,
    OpenTurn,
    ReadExecution,
    RenewLeases,
    ResolveExecutionActivity,
    RestoredExecution,
    RestoreExecution,
    SaveBlobs,
)
from peen.wire.workerstruct import WorkerStruct

MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
PROTOCOL_VERSION: Final = 1


# --- frames ---------------------------------------------------------------------------------------------------------


class WireError(WorkerStruct, frozen=True, kw_only=True):
    """Why a call failed. `code` is a `PeenError.code`."""

    code: str
    message: str


class Hello(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="hello"):
    protocol: int
    session_id: str
    generation_id: str
    credential: str
    agent_space: str
    pid: int


class HelloAck(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="helloAck"):
    session_id: str
    workspace: str
    agent_space: str


class Beat(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="beat"):
    """Worker to controller, every 5 s: the event loop of this worker still turns."""


class Call(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="call"):
    """Worker to controller. Calls are carried out in the order they were sent."""

    id: int
    method: str
    payload: Raw


class Result(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="result"):
    id: int
    payload: Raw = NOTHING
    error: WireError | None = None


class Command(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """Controller to worker."""

    id: int
    method: str
    payload: Raw


class CommandResult(WorkerStruct, frozen=True, kw_only=True, tag_field="kind", tag="commandResult"):
    id: int
    payload: Raw = NOTHING
    error: WireError | None = None


FromWorker = Hello | Beat | Call | CommandResult
FromController = HelloAck | Result | Command


# --- commands: controller to worker ---------------------------------------------------------------------------------


class SystemPrompt(WorkerStruct, frozen=True, kw_only=True):
    mode: Literal["append", "replace"]
    content: str


class RunTurn(WorkerStruct, frozen=True, kw_only=True):
    """Start a root turn. The reply comes when the turn and all its descendants have ended.

    `windows` are the context windows in tokens that providers publish for models which the turn may use, by name: a
    worker asks no provider for them. `image_input` is what the provider has published of the model of the turn.
    """

    turn_id: str
    request_id: str
    message: str
    images: list[ImageRef] = []
    image_input: bool = True
    model: str | None = None
    reasoning_effort: str | None = None
    system_prompt: SystemPrompt | None = None
    windows: dict[str, int] = {}


class ResumeTurn(WorkerStruct, frozen=True, kw_only=True):
    """Go on with a turn whose execution was resumed. `windows` and `image_input` as for one that starts."""

    turn_id: str
    execution_id: str
    image_input: bool = True
    windows: dict[str, int] = {}


class TurnEnded(WorkerStruct, frozen=True, kw_only=True):
    state: str


class CancelTurns(WorkerStruct, frozen=True, kw_only=True):
    """End every running turn: provider request, tools, foreground commands. The reply comes when all is quiet."""


class TurnsCancelled(WorkerStruct, frozen=True, kw_only=True):
    pass


class Shutdown(WorkerStruct, frozen=True, kw_only=True):
    """End running turns as interrupted work, then exit."""


class ShutDown(WorkerStruct, frozen=True, kw_only=True):
    pass


CALLS: Final[dict[str, tuple[type[WorkerStruct], type[WorkerStruct]]]] = {
    "turn.open": (OpenTurn, OpenedTurn),
    "execution.restore": (RestoreExecution, RestoredExecution),
    "history.page": (HistoryPage, HistoryRows),
    "blobs.save": (SaveBlobs, BlobsSaved),
    "blobs.fetch": (FetchBlob, BlobPiece),
    "steps.commit": (CommitSteps, Committed),
    "events.emit": (EmitEvents, Emitted),
    "leases.renew": (RenewLeases, LeasesRenewed),
    "execution.read": (ReadExecution, ExecutionsRead),
    "execution.resolve": (ResolveExecutionActivity, ExecutionActivityResolved),
    "execution.continue": (ContinueExecution, ContinuationAdmitted),
    "job.create": (CreateJob, JobCreated),
    "job.started": (NoteJobStarted, JobStartNoted),
    "job.detach": (DetachJob, JobDetached),
    "job.output": (AppendJobOutput, JobOutputAppended),
    "job.signal": (RecordJobSignal, JobSignalRecorded),
    "job.end": (EndJob, JobEnded),
    "job.list": (ListJobs, JobsListed),
    "job.read": (ReadJob, JobRead),
}
COMMANDS: Final[dict[str, tuple[type[WorkerStruct], type[WorkerStruct]]]] = {
    "runTurn": (RunTurn, TurnEnded),
    "resumeTurn": (ResumeTurn, TurnEnded),
    "cancel": (CancelTurns, TurnsCancelled),
    "signalJob": (SignalJob, JobSignalled),
    "shutdown": (Shutdown, ShutDown),
}

encode: Final = msgspec.json.Encoder().encode
decode_from_worker: Final = msgspec.json.Decoder(FromWorker).decode
decode_from_controller: Final = msgspec.json.Decoder(FromController).decode
