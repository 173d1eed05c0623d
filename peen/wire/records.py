"""What a worker records of its turns: messages, events, calls of a model, summaries, steps and ends."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Raw, Struct

from peen.wire.workerstruct import WorkerStruct

NOTHING: Final = Raw(b"null")  # `Raw | None` would decode to nothing but null


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


class RefusedImage(WorkerStruct, frozen=True, kw_only=True):
    """A provider refused this image: in the messages up to `up_to_sequence` a note stands in its place."""

    sha256: str
    reason: str
    up_to_sequence: int = 0
