"""Frames between the controller and a session worker: 4 bytes of length (big-endian), then one JSON object.

Both ends send calls and get answers by `id`. Payloads are kept as raw JSON until the method is known;
`CALLS` and `COMMANDS` give the request and reply struct of each method.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from peen.wire.execution import Execution, ExecutionView
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
from peen.wire.price import Price
from peen.wire.workerstruct import CallingTool as CallingTool
from peen.wire.workerstruct import WorkerStruct as WorkerStruct

MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
MAX_HISTORY_PAGE_BYTES: Final = 8 * 1024 * 1024
MAX_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Of a blob that is fetched: so much stands in one frame, in base64."""
MAX_LAUNCH_BYTES: Final = 64 * 1024
PROTOCOL_VERSION: Final = 1


NOTHING: Final = Raw(b"null")  # `Raw | None` would decode to nothing but null


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


# --- launch ---------------------------------------------------------------------------------------------------------


class UpstreamConfig(WorkerStruct, frozen=True, kw_only=True):
    """One entry of PEEN_UPSTREAMS. `api_key_env` names a variable; the secret itself is never here.

    `api` is `chat` (the default) or `responses`; without `stream` answers are asked for whole. `prices` are by names of
    models, which may hold `*`.
    """

    name: str
    type: str
    base_url: str | None = None
    api_key_env: str | None = None
    image_input: bool = True
    script: str | None = None
    api: str | None = None
    stream: bool = True
    prices: dict[str, Price] = {}


class WorkerSettings(WorkerStruct, frozen=True, kw_only=True):
    """What a worker needs of the configuration; limits are bytes, counts or milliseconds as named."""

    upstreams: list[UpstreamConfig]
    default_model: str
    max_context_tokens: int | None = None
    output_reserve_tokens: int | None = None
    compaction_mode: Literal["drop-oldest", "summarize"] = "drop-oldest"
    compaction_model: str | None = None
    compaction_max_output_tokens: int = 2048
    compaction_timeout_ms: int = 120_000
    max_tool_rounds: int = 200
    turn_timeout_ms: int | None = None
    max_concurrent_tools: int = 4
    tool_timeout_ms: int = 900_000
    max_tool_result_tokens: int = 8192
    default_command_timeout_ms: int = 120_000
    max_list_entries: int = 1000
    max_list_depth: int = 16
    max_search_matches: int = 200
    max_search_file_bytes: int = 2_097_152
    max_read_bytes: int = 262_144
    max_read_lines: int = 2000
    max_write_bytes: int = 4_194_304
    max_edits: int = 64
    max_diff_bytes: int = 65_536
    max_remove_entries: int = 20_000
    max_command_output_bytes: int = 65_536
    max_image_bytes: int = 5_242_880
    provider_idle_timeout_ms: int = 120_000
    provider_retry_max_delay_ms: int = 60_000


class LaunchDocument(WorkerStruct, frozen=True, kw_only=True):
    """All that a worker is told, once, on its standard input. At most 64 KiB; paths are absolute."""

    session_id: str
    generation_id: str
    credential: str
    socket_path: str
    workspace: str
    config_directory: str
    agent_space: str
    marker: str
    settings: WorkerSettings


# --- records that a worker writes -----------------------------------------------------------------------------------


class ToolCallRecord(WorkerStruct, frozen=True, kw_only=True):
    """One tool call of an assistant message. `arguments` is the JSON object exactly as the provider sent it."""

    id: str
    name: str
    arguments: Raw


class ProviderReasoning(Struct, frozen=True, kw_only=True):
    """What a provider gave with an answer to have it back, and which model of which upstream it is for.

    `items` are in a form of the upstream's own.
    """

    upstream: str
    model: str
    items: list[Raw]


class ImageRef(WorkerStruct, frozen=True, kw_only=True):
    """An image without its bytes, which are the blob with the hash `sha256` (hex)."""

    media_type: str
    size_bytes: int
    sha256: str


class MessageRecord(WorkerStruct, frozen=True, kw_only=True):
    """One row of the transcript, in the order the model receives it.

    `provider_reasoning` is a `ProviderReasoning`: what the provider wants back as it came, and nobody else gets. The
    model sees `images` behind the text.
    """

    role: Literal["user", "assistant", "tool", "system"]
    content: str
    model: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCallRecord] | None = None
    tool_call_id: str | None = None
    is_error: bool = False
    injected: bool = False
    injected_kind: str | None = None
    provider_reasoning: Raw = NOTHING
    images: list[ImageRef] = []


class EventRecord(WorkerStruct, frozen=True, kw_only=True):
    """One frame of the feed: a protocol event or a content block step. `data` is sent to clients as it is."""

    type: str
    data: Raw


class Usage(WorkerStruct, frozen=True, kw_only=True):
    """Tokens as the provider reported them; None is unknown, which is not zero."""

    prompt: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


class Budget(WorkerStruct, frozen=True, kw_only=True):
    """What a session has used of its models, and where that ends. Costs are trillionths of a dollar.

    A limit of 0 is none. `is_own` says of each limit that the session has it and not the whole deployment.
    """

    tokens: int
    cost: int
    max_tokens: int = 0
    max_cost: int = 0
    is_own_tokens: bool = False
    is_own_cost: bool = False


class ModelCallRecord(WorkerStruct, frozen=True, kw_only=True):
    """The audit of one attempt at a provider round.

    `request` is what was sent, as a saved value of `peen.store.blobs.encoder`; null means that it was the same as that
    of the attempt before. `request_sequence` is the last message of the session that it was made of.

    `status` is the HTTP status of the provider's answer, where one came. `streamed` says that some of the answer had
    come: in a turn, that stands in the feed. `unsent` means that the request cannot have reached the provider, `ended`
    that the provider had ended its answer, so that `usage` is all it reports. `delay_ms` went by between this attempt
    and the next one of the same step.
    """

    round: int
    state: Literal["completed", "failed", "cancelled"]
    request_sequence: int
    request: Raw = NOTHING
    response: Raw = NOTHING
    usage: Usage = Usage()
    finish_reason: str | None = None
    response_model: str | None = None
    failure_kind: str | None = None
    failure_detail: str | None = None
    status: int | None = None
    streamed: bool = False
    unsent: bool = False
    ended: bool = False
    delay_ms: int | None = None
    started_at_ms: int
    completed_at_ms: int


class ModelProgress(WorkerStruct, frozen=True, kw_only=True):
    """How far a step that asks a model has come, for whoever has to end it in the place of its worker.

    `failed` are its attempts that failed. `under_way` is the one that was sent since, as it stands: it has not failed,
    whatever its state says. None means that the next attempt is still waited for.
    """

    step: str
    failed: list[ModelCallRecord] = []
    under_way: ModelCallRecord | None = None


class PricedCall(WorkerStruct, frozen=True, kw_only=True):
    """An attempt with what it costs, in trillionths of a dollar at the prices of the time; None if that is unknown."""

    call: ModelCallRecord
    cost: int | None = None


class KeptProgress(WorkerStruct, frozen=True, kw_only=True):
    """A `ModelProgress` as the store keeps it with its step."""

    failed: list[PricedCall] = []
    under_way: PricedCall | None = None


class NewBlob(WorkerStruct, frozen=True, kw_only=True):
    """A part of a saved value, stored once under `digest`, the SHA-256 of its bytes (32 bytes)."""

    digest: bytes
    data: bytes


class NewSummary(WorkerStruct, frozen=True, kw_only=True):
    """A summary of stored messages. It covers `from_sequence` .. `to_sequence` of the session, without a gap.

    `supersedes` is the number of the summary in force, which begins at the same message; 0 if there is none.
    `message_count` are those that no summary covered before. `missing_messages` and `missing_requests` are what is not
    sent any more, as the summary says. `input_tokens` is what is sent no more, estimated, `summary_tokens` what stands
    in its place.
    """

    supersedes: int
    from_sequence: int
    to_sequence: int
    message_count: int
    missing_messages: int
    missing_requests: int
    text: str
    input_tokens: int
    summary_tokens: int


class CompactionRecord(WorkerStruct, frozen=True, kw_only=True):
    """What a compaction asked of its model, and what came of it: without `summary`, history stays as it is.

    `prompt` is the summarizer's system prompt, `failure_kind` why there is no summary.
    """

    model: str
    prompt: str
    max_output_tokens: int
    timeout_ms: int
    calls: list[ModelCallRecord]
    summary: NewSummary | None = None
    finish_reason: str = ""
    failure_kind: str = ""
    failure_detail: str = ""
    started_at_ms: int
    completed_at_ms: int


class Claim(WorkerStruct, frozen=True, kw_only=True):
    """A step that begins as soon as the commit returns.

    `kind` is `prepare`, `compact`, `model`, `read` (a tool that changes nothing), `effect` (a tool that may) or
    `final`: an interrupted effect is uncertain, everything else may simply be done again.
    """

    step: str
    kind: str
    given: Raw
    call_id: str | None = None


class Completion(WorkerStruct, frozen=True, kw_only=True):
    """The saved outcome of a step. `failed` means that the step itself failed, not that a tool reported an error."""

    step: str
    output: Raw
    failed: bool = False


class Terminal(WorkerStruct, frozen=True, kw_only=True):
    """How a turn ended. The controller derives the frame, the system message and the counters from it."""

    state: Literal["completed", "failed", "cancelled"]
    text: str = ""
    finish_reason: str | None = None
    reason: str = ""
    error: str = ""
    classification: str = ""


# --- calls: worker to controller ------------------------------------------------------------------------------------


class OpenTurn(WorkerStruct, frozen=True, kw_only=True):
    """Admission: opens the turn, writes its opening transcript and events, creates the execution, all at once.

    `summary_prompt` is kept for the execution where `request_settings` name it by its hash. A worker whose
    `known_summary` is not the number of the summary in force is told that one, and a worker that knows no message of
    the session (`known_sequence` 0) how the model counts.
    """

    turn_id: str
    holder: str
    model: str
    prompt: str
    context_manifest: Raw
    context_content: str
    context_hash: str
    tools: Raw
    round_limit: int
    tool_parallelism: int
    request_settings: Raw
    messages: list[MessageRecord]
    events: list[EventRecord]
    known_sequence: int
    known_summary: int = 0
    summary_prompt: str | None = None


class HistoryMessage(WorkerStruct, frozen=True, kw_only=True):
    """A stored message as the context builder sees it."""

    sequence: int
    turn: int
    message: MessageRecord


class RefusedImage(WorkerStruct, frozen=True, kw_only=True):
    """A provider refused this image: in the messages up to `up_to_sequence` a note stands in its place."""

    sha256: str
    reason: str
    up_to_sequence: int = 0


class StoredSummary(WorkerStruct, frozen=True, kw_only=True):
    """A summary as the model reads it, in the place of the messages `from_sequence` .. `to_sequence`."""

    sequence: int
    from_sequence: int
    to_sequence: int
    text: str


class Calibration(WorkerStruct, frozen=True, kw_only=True):
    """The last request of a model in this session: what it was estimated at, and what its provider counted."""

    estimated: int
    reported: int


class OpenedTurn(WorkerStruct, frozen=True, kw_only=True):
    """`history` is the transcript before this turn, after `known_sequence` and up to `history_sequence`.

    With a `summary`, only what that does not cover.

    If `has_more`, the rest is paged with `history.page`. `opening` follows the messages that the worker sent: notices
    that were pending reach the model with the turn. Without `budget` nothing limits the session.
    """

    execution_id: str
    turn: int
    history_sequence: int
    message_sequence: int
    opening: list[MessageRecord] = []
    history: list[HistoryMessage]
    has_more: bool = False
    refused_images: list[RefusedImage] = []
    budget: Budget | None = None
    summary: StoredSummary | None = None
    calibration: Calibration | None = None


class SavedStep(WorkerStruct, frozen=True, kw_only=True):
    """A step as the store has it. `output` is null unless the step has ended; `given` is told of compactions only."""

    step: str
    state: str
    output: Raw = NOTHING
    given: Raw = NOTHING


class SummarySettings(WorkerStruct, frozen=True, kw_only=True):
    """How an execution summarizes, as it was started: this holds for it even if the configuration has changed."""

    model: str
    prompt: str
    max_output_tokens: int
    timeout_ms: int


class RestoreExecution(WorkerStruct, frozen=True, kw_only=True):
    """Take hold of a resumed execution, under a new holder, and learn how far it came."""

    execution_id: str
    holder: str


class RestoredExecution(WorkerStruct, frozen=True, kw_only=True):
    """What the execution was started with, frozen, and how far it came.

    The transcript before the turn ends at `history_sequence`; the turn's own rows follow. `next_block` is the first
    free content block index. `steps` are those from the last answer of the model on, in the order of the workflow;
    `seen` is what the calls before them have taught the read-before-change ledger. Without `budget` nothing limits
    the session.

    `summary` is the latest one that covers nothing after the start of the turn, `summary_in_force` the number of the
    session's latest; `may_summarize` is false if that is another one, or if one has failed in this turn. Without
    `summarizer` the execution drops what is too much. `window` is the context window that it was started with.
    """

    turn: int
    model: str
    reasoning_effort: str | None = None
    prompt: str
    round_limit: int
    tool_parallelism: int
    history_sequence: int
    message_sequence: int
    next_block: int
    seen: list[Raw] = []
    steps: list[SavedStep]
    refused_images: list[RefusedImage] = []
    budget: Budget | None = None
    summary: StoredSummary | None = None
    summary_in_force: int = 0
    may_summarize: bool = True
    summarizer: SummarySettings | None = None
    calibration: Calibration | None = None
    window: int | None = None


class HistoryPage(WorkerStruct, frozen=True, kw_only=True):
    after_sequence: int
    up_to_sequence: int


class HistoryRows(WorkerStruct, frozen=True, kw_only=True):
    history: list[HistoryMessage]
    has_more: bool = False


class Continuation(WorkerStruct, frozen=True, kw_only=True):
    """What begins instead of a completed end, if messages wait to be delivered."""

    claims: list[Claim] = []
    passed: list[Completion] = []


class CommitSteps(WorkerStruct, frozen=True, kw_only=True):
    """One transaction: what ended, what it wrote, what begins at once, and perhaps the end of the turn.

    Carried out in this order: completions, messages, events, calls, claims, `passed`, `opening`, terminal. `passed`
    completes claims of this same commit: phases that had nothing to do. `opening` are messages of the round that
    begins: where a Stop came first, they are left out with it. `blobs` are parts of the saved values that stand in
    `calls`, and images; what is named beside these must have been stored for this session before. `refused_images`
    are what the provider has refused in the request of this step. `compaction` belongs to the completion of a
    compaction: summary, links of the messages and audit are written with it or not at all.
    """

    execution_id: str
    holder: str
    completions: list[Completion] = []
    messages: list[MessageRecord] = []
    events: list[EventRecord] = []
    calls: list[ModelCallRecord] = []
    claims: list[Claim] = []
    passed: list[Completion] = []
    opening: list[MessageRecord] = []
    terminal: Terminal | None = None
    continuation: Continuation | None = None
    blobs: list[NewBlob] = []
    refused_images: list[RefusedImage] = []
    compaction: CompactionRecord | None = None


class Committed(WorkerStruct, frozen=True, kw_only=True):
    """`message_sequence` is the last one of the session after the commit.

    `delivered` are queued messages that reached the model with this commit: they stand in the transcript already.
    `continued` says that the end did not happen because of them; `stopped` that a Stop came first: the results of
    tools are saved, and nothing follows from them. `missing_blobs` says that nothing at all was written: the store has
    not got the blobs with these hashes, and the worker commits again with them. `summary` is the text of a new summary,
    as the model reads it from here on.
    `budget` is as of this commit; without one nothing limits the session. Once it is used up, claims of model steps are
    left out of the commit: they have not begun.
    """

    message_sequence: int
    delivered: list[MessageRecord] = []
    continued: bool = False
    stopped: bool = False
    missing_blobs: list[bytes] = []
    budget: Budget | None = None
    summary: str | None = None


class SaveBlobs(WorkerStruct, frozen=True, kw_only=True):
    """Blobs ahead of the commit that names them, where they are too much for its frame."""

    blobs: list[NewBlob]


class BlobsSaved(WorkerStruct, frozen=True, kw_only=True):
    pass


class FetchBlob(WorkerStruct, frozen=True, kw_only=True):
    """The bytes of a blob of the session, from `offset` on. Images are read so; what a value names comes with it."""

    digest: bytes
    offset: int = 0


class BlobPiece(WorkerStruct, frozen=True, kw_only=True):
    """At most `MAX_PIECE_BYTES` of a blob that has `size_bytes`."""

    data: bytes
    size_bytes: int


class EmitEvents(WorkerStruct, frozen=True, kw_only=True):
    """Streamed pieces of a step that is still running, and how far it has come, where that has changed."""

    execution_id: str
    holder: str
    events: list[EventRecord]
    progress: ModelProgress | None = None


class Emitted(WorkerStruct, frozen=True, kw_only=True):
    pass


class RenewLeases(WorkerStruct, frozen=True, kw_only=True):
    """Whoever holds an execution is at work: it, and every step that it runs, keep their leases for another minute."""

    execution_id: str
    holder: str


class LeasesRenewed(WorkerStruct, frozen=True, kw_only=True):
    pass


class ReadExecution(WorkerStruct, frozen=True, kw_only=True):
    """Look at retained work of the session; without `execution_id`, at the list of what is paused.

    Reading resumes nothing. What is shown is cut to about `max_bytes` of JSON.
    """

    execution_id: str | None = None
    max_bytes: int


class ExecutionsRead(WorkerStruct, frozen=True, kw_only=True):
    """`paused` is the list, newest first; `view` the execution that was asked for, without `omitted_activities`."""

    paused: list[Execution] = []
    has_more: bool = False
    view: ExecutionView | None = None
    omitted_activities: int = 0


class ResolveExecutionActivity(WorkerStruct, frozen=True, kw_only=True):
    """A decision about an uncertain activity of an execution that is paused at `control_revision`. Resumes nothing."""

    caller: CallingTool
    execution_id: str
    activity_id: str
    decision: Literal["accept", "retry"]
    outcome: str | None = None
    control_revision: int


class ExecutionActivityResolved(WorkerStruct, frozen=True, kw_only=True):
    step: str


class ContinueExecution(WorkerStruct, frozen=True, kw_only=True):
    """Let an execution that is paused at `control_revision` go on when the calling turn has ended."""

    caller: CallingTool
    execution_id: str
    control_revision: int


class ContinuationAdmitted(WorkerStruct, frozen=True, kw_only=True):
    pass


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
decode_launch: Final = msgspec.json.Decoder(LaunchDocument).decode
