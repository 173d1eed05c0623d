"""Bodies of the REST API. Members that are None are left out; times are RFC 3339 in UTC with milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from peen.wire.notice import NOTHING, Delivery, Notice

encode: Final = msgspec.json.Encoder().encode


def rfc3339(ms: int) -> str:
    """`ms` milliseconds since the epoch as `2026-01-31T12:00:00.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


class Answer(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what the server answers. A default other than None would be left out too: give none."""


class Body(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of what a client sends. A misspelt member must not look like success."""


# --- envelopes ------------------------------------------------------------------------------------------------------


class ErrorBody(Answer, frozen=True, kw_only=True):
    """Every answer outside 2xx. `message` is safe to show and never holds a source location."""

    code: str
    message: str
    details: dict[str, object] | None = None


class Health(Answer, frozen=True, kw_only=True):
    status: Literal["ok"]


class Paged(Answer, frozen=True, kw_only=True):
    """The tail of every list by offset: what was asked for, and whether more follows."""

    limit: int
    offset: int
    has_more: bool


# --- sessions -------------------------------------------------------------------------------------------------------


class UsedSoFar(Answer, frozen=True, kw_only=True):
    """What models have used so far, failed attempts too. Tokens that no provider has reported are left out.

    `billed_cost_amount` is a decimal number of US dollars at the prices of the time. Without `cost_known` some calls
    are not part of it, since their price or their tokens are not known.
    """

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    billed_cost_amount: str
    cost_known: bool


class SessionLimits(Answer, frozen=True, kw_only=True):
    """Where the session ends to ask models: its own limit or that of the deployment, the lower one of each."""

    cost_usd: str | None = None
    tokens: int | None = None


class Session(Answer, frozen=True, kw_only=True):
    id: str
    created_at: str
    updated_at: str
    last_message_at: str | None = None
    message_count: int
    completed_turn_count: int
    active_turn: bool
    status: Literal["running", "waiting", "paused", "idle"]
    pause_reason: str | None = None
    agent: str
    model: str
    workspace: str
    agent_space: str
    feed_sequence: int
    active_turn_feed_sequence: int | None = None
    usage: UsedSoFar
    budget: SessionLimits | None = None


class SessionPage(Paged, frozen=True, kw_only=True):
    items: list[Session]


BudgetAmount = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,6}(\.[0-9]{1,12})?$",
        description='US dollars as decimal text, at most 6 digits and 12 behind the point ("2.50")',
    ),
]


class OpenBudget(Body, frozen=True, kw_only=True):
    """Limits of one session: US dollars as a decimal number in text, and tokens read and written. 0 is no limit."""

    cost_usd: BudgetAmount | None = None
    tokens: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class OpenSession(Body, frozen=True, kw_only=True):
    """`budget` replaces the one that the session has, also while a turn runs; without it that one stays."""

    workspace: str
    agent_space: str | None = None
    budget: OpenBudget | None = None


class OpenedSession(Answer, frozen=True, kw_only=True):
    """`created` False: the workspace had a session already, and this is it."""

    session: Session
    created: bool


class WorkspaceRoots(Answer, frozen=True, kw_only=True):
    """Always exactly one entry."""

    roots: list[str]


class CancelAccepted(Answer, frozen=True, kw_only=True):
    """True only if a running turn was found and told to end."""

    cancel_requested: bool


class Model(Answer, frozen=True, kw_only=True):
    """`name` is what `data.model` of a message takes."""

    name: str
    connection_name: str
    model_id: str
    context_window_tokens: int
    image_input: bool


class ModelList(Answer, frozen=True, kw_only=True):
    """`default` is the model of a session's messages that name none."""

    models: list[Model]
    default: str


# --- transcript -----------------------------------------------------------------------------------------------------


class ToolCall(Answer, frozen=True, kw_only=True):
    """`arguments` is the JSON object as the provider sent it."""

    id: str
    name: str
    arguments: Raw


class Image(Answer, frozen=True, kw_only=True):
    """A stored image without its bytes; they are read by `sha256` (hex).

    `refused` is why a provider did not take it: since then a note stands in its place for the model.
    """

    media_type: str
    size_bytes: int
    sha256: str
    refused: str | None = None


class ImageBytes(Answer, frozen=True, kw_only=True):
    """The bytes of an image, as they were sent or read."""


class Message(Answer, frozen=True, kw_only=True):
    """A stored message. `compactionId` names the summary that first covered it: the model does not get it any more."""

    id: str
    sequence: int
    role: Literal["user", "assistant", "tool", "system"]
    content: str
    workspace: str
    model: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    is_error: bool
    incomplete: bool
    injected: bool
    injected_kind: str | None = None
    images: list[Image] | None = None
    turn_id: str
    compaction_id: str | None = None
    created_at: str


class MessagePage(Paged, frozen=True, kw_only=True):
    items: list[Message]


class Compaction(Answer, frozen=True, kw_only=True):
    """A summary that stands in the place of the messages `fromSequence` .. `toSequence` of the session.

    It takes over from `parentCompactionId`, which begins at the same message; `sourceMessageCount` messages are covered
    by this one first. Counts of tokens are estimates: `inputTokenCount` of what is not sent any more. `promptHash`
    names the summarizer's prompt, which is read like a turn's.
    """

    id: str
    session_id: str
    from_message_id: str
    to_message_id: str
    from_sequence: int
    to_sequence: int
    summary: str
    source_message_count: int
    input_token_count: int
    summary_token_count: int
    model: str
    prompt_hash: str
    parent_compaction_id: str | None = None
    created_at: str


class CompactionPage(Paged, frozen=True, kw_only=True):
    compactions: list[Compaction]


class Turn(Answer, frozen=True, kw_only=True):
    id: str
    session_id: str
    request_id: str
    workspace: str
    state: Literal["running", "completed", "failed", "cancelled", "interrupted"]
    cancel_requested: bool
    started_at: str
    completed_at: str | None = None
    failure_classification: str
    context_snapshot_hash: str | None = None
    prompt_snapshot_hash: str | None = None
    worker_generation_id: str | None = None
    usage: UsedSoFar


class TurnPage(Paged, frozen=True, kw_only=True):
    turns: list[Turn]


# --- notices ---------------------------------------------------------------------------------------------------------


class PostNotice(Body, frozen=True, kw_only=True):
    """`data` is a JSON object. `wake` asks for a turn on an idle session; without a handler the notice waits."""

    type: str
    summary: str
    data: Raw = NOTHING
    delivery: Delivery = "queue"


class NoticePage(Paged, frozen=True, kw_only=True):
    notices: list[Notice]


# --- feed -----------------------------------------------------------------------------------------------------------


class FeedPage(Answer, frozen=True, kw_only=True):
    """`items` are the frames exactly as they went out live, oldest first; `next_cursor` is where to go on."""

    items: list[Raw]
    next_cursor: int
    has_more: bool


class ProtocolEvent(Answer, frozen=True, kw_only=True):
    """One root-turn record. `payload` is what its frame carries as `data`."""

    id: str
    session_id: str
    turn_id: str
    request_id: str
    sequence: int
    type: str
    payload: Raw
    parent_tool_call_id: str | None = None
    worker_generation_id: str | None = None
    created_at: str


class EventPage(Paged, frozen=True, kw_only=True):
    events: list[ProtocolEvent]


# --- where sessions run ---------------------------------------------------------------------------------------------


class SessionDeleted(Answer, frozen=True, kw_only=True):
    """Nothing is left of the session; its directory can be opened again as a new one."""

    deleted: bool


AGE_PATTERN: Final = r"^(?=.*[1-9])([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"


class Prune(Body, frozen=True, kw_only=True):
    """`older_than` is a duration such as `720h` or `1h30m`: how long a session must have been left alone."""

    older_than: str


class Pruned(Answer, frozen=True, kw_only=True):
    """`kept_paused` old sessions hold paused work and were kept; `freed_bytes` is what the database shrank by."""

    deleted: int
    kept_paused: int
    freed_bytes: int


class AgentSpace(Answer, frozen=True, kw_only=True):
    """A place where workers can run. `profile` and what it grants are told of Docker spaces only.

    `capability_warnings` has one sentence for each grant that is risky.
    """

    name: str
    profile: str | None = None
    docker: Literal["none", "readonly", "full"] | None = None
    network: Literal["none", "bridge", "host"] | None = None
    sudo: bool | None = None
    host_root_equivalent: bool
    capability_warnings: list[str]


class AgentSpaceList(Answer, frozen=True, kw_only=True):
    """`default` is the space of a session that is opened without naming one."""

    items: list[AgentSpace]
    default: str


class WorkerGeneration(Answer, frozen=True, kw_only=True):
    """One run of one worker process. `failure_detail` says why it failed, if it did."""

    id: str
    session_id: str
    kind: Literal["native", "docker"]
    agent_space: str
    agent_space_revision: int
    state: Literal["requested", "starting", "ready", "stopping", "stopped", "failed"]
    workspace: str
    container_id: str | None = None
    image_digest: str | None = None
    failure_detail: str | None = None
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None


class WorkerPage(Paged, frozen=True, kw_only=True):
    items: list[WorkerGeneration]


# --- what a turn was told -------------------------------------------------------------------------------------------


class ManifestEntry(Answer, frozen=True, kw_only=True):
    """One part of what a prompt was resolved from; `hash` is the SHA-256 of its text, `priority` its layer."""

    kind: str
    name: str
    source: str
    priority: int
    hash: str


class ContextSnapshot(Answer, frozen=True, kw_only=True):
    """`manifest` in the order of resolution; `resolved_content` is the text of the instructions."""

    hash: str
    manifest: list[ManifestEntry]
    resolved_content: str
    created_at: str


class PromptSnapshot(Answer, frozen=True, kw_only=True):
    """The system prompt as the model got it."""

    hash: str
    effective_prompt: str
    created_at: str
