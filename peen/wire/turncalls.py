"""Calls of a worker about its turns, and what the controller answers. Those about jobs are in `jobcalls`."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Raw

from peen.wire.execution import Execution, ExecutionView
from peen.wire.records import (
    NOTHING,
    Budget,
    Claim,
    CompactionRecord,
    Completion,
    EventRecord,
    MessageRecord,
    ModelCallRecord,
    ModelProgress,
    NewBlob,
    RefusedImage,
    Terminal,
)
from peen.wire.workerstruct import CallingTool, WorkerStruct

MAX_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Of a blob that is fetched: so much stands in one frame, in base64."""
MAX_HISTORY_PAGE_BYTES: Final = 8 * 1024 * 1024


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
    that were pending reach the model with the turn. Without `budget` nothing limits the session. What is refused is so
    for the model of this turn: images, and its reasoning in the messages up to `reasoning_refused_up_to`.
    """

    execution_id: str
    turn: int
    history_sequence: int
    message_sequence: int
    opening: list[MessageRecord] = []
    history: list[HistoryMessage]
    has_more: bool = False
    refused_images: list[RefusedImage] = []
    reasoning_refused_up_to: int = 0
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
    reasoning_refused_up_to: int = 0
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
    are what the provider has refused in the request of this step; so is the reasoning of the messages up to
    `reasoning_refused_up_to`, 0 for none. `compaction` belongs to the completion of a
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
    reasoning_refused_up_to: int = 0
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
