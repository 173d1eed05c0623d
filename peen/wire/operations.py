"""Every REST operation as a row of one table: what the published document says and what the tests hold the router to.

An operation that is new gets a row in `OPERATIONS` and, if its answer has a new shape, a struct in `peen.wire.rest`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from peen import errors
from peen.errors import PeenError
from peen.wire import audit, execution, job, rest
from peen.wire.image import MEDIA_TYPES
from peen.wire.notice import Notice

API: Final = "/api/v1"
MAX_BODY_BYTES: Final = 1_048_576
MAX_CURSOR: Final = 2**63 - 1

Method = Literal["GET", "POST", "DELETE"]


# --- the pieces of a row --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """A query parameter that is a whole number, `minimum`..`maximum`."""

    name: str
    about: str
    default: int
    minimum: int = 0
    maximum: int = MAX_CURSOR


@dataclass(frozen=True, slots=True)
class Choice:
    """A query parameter that is one of a few words. `default` None: all of them."""

    name: str
    about: str
    choices: tuple[str, ...]
    default: str | None = None


Query = Whole | Choice


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which an operation is refused."""

    status: int
    code: str
    when: str

    @staticmethod
    def of(error: type[PeenError], when: str) -> Failure:
        return Failure(error.status, error.code, when)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method at one path; `{name}` in the path is a parameter.

    `session`: needs X-Session-ID. `public`: needs no token and answers any Accept. `media` are the types of an answer
    that is not JSON, which `answer` then describes in words. `failures` are its own ones; `failures_of` adds those that
    it shares with others.
    """

    method: Method
    path: str
    id: str
    tag: str
    summary: str
    answer: type[Struct]
    about: str = ""
    status: int = 200
    session: bool = False
    public: bool = False
    query: tuple[Query, ...] = ()
    body: type[Struct] | None = None
    media: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def path_parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)


def _paging(*, ordered: bool = False) -> tuple[Query, ...]:
    limit = Whole("limit", "How many items at most. A page also ends before it passes 4 MiB.", 50, 1, 200)
    offset = Whole("offset", "How many items to skip.", 0)
    order = Choice("order", "Oldest or newest first.", ("asc", "desc"), "asc")
    return (limit, offset, order) if ordered else (limit, offset)


TAGS: Final[dict[str, str]] = {
    "probes": "For load balancers and supervisors. They need no token.",
    "sessions": "A session is one conversation about one directory.",
    "transcript": "What a session said and did.",
    "notices": "Reports of what happened outside the model's own calls.",
    "executions": "Work step by step, and decisions about work that is paused.",
    "jobs": "Commands: what runs, what ran, what it printed.",
    "models": "What upstreams offer.",
    "places": "Where a session may be, and the workers that it had there.",
    "maintenance": "Keeping the store small.",
    "audit": "What models were asked, what they answered and what that used.",
}
"""What each tag gathers."""

# --- the table ------------------------------------------------------------------------------------------------------

_CONFLICT: Final = Failure.of(errors.Conflict, "it is not in that state, or at another revision; nothing changed")
_NO_EXECUTION: Final = Failure.of(errors.NotFound, "the session has no such execution or activity")
_EXECUTION: Final = f"{API}/session/executions/{{executionId}}"
_EXECUTIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET", f"{API}/session/executions", "listExecutions", "executions",
        "The executions of a session, newest first.", execution.ExecutionPage, session=True, query=_paging(),
    ),
    Operation(
        "GET", _EXECUTION, "getExecution", "executions", "One execution with its steps and decisions.",
        execution.ExecutionView, session=True, failures=(_NO_EXECUTION,), about="Reading resumes nothing.",
    ),
    Operation(
        "POST", f"{_EXECUTION}/pause", "pauseExecution", "executions", "Stop a running execution.",
        execution.ExecutionView, status=202, session=True, failures=(_NO_EXECUTION, _CONFLICT),
    ),
    Operation(
        "POST", f"{_EXECUTION}/resume", "resumeExecution", "executions", "Go on with paused work.",
        execution.ExecutionView, status=202, session=True, body=execution.ResumeExecution,
        failures=(_NO_EXECUTION, _CONFLICT),
        about=(
            "The same turn goes on with the same ids, block indexes included; `turn.resumed` opens the segment. While "
            "another turn runs it waits for its end, which the execution shows as `admission`; that outlives the "
            "controller, and a Stop drops it. An uncertain activity must be resolved first."
        ),
    ),
    Operation(
        "POST", f"{_EXECUTION}/abandon", "abandonExecution", "executions", "Give paused work up.",
        execution.ExecutionView, session=True, body=execution.AbandonExecution, failures=(_NO_EXECUTION, _CONFLICT),
    ),
    Operation(
        "POST", f"{_EXECUTION}/activities/{{activityId}}/resolve", "resolveActivity", "executions",
        "Decide about an uncertain activity.", execution.ExecutionView, session=True, body=execution.ResolveActivity,
        failures=(_NO_EXECUTION, _CONFLICT), about="It resumes nothing.",
    ),
    Operation(
        "POST", f"{API}/session/continue", "continueInput", "executions",
        "Let a message that a Stop left waiting open a turn.", rest.Session, status=202, session=True,
        body=execution.ContinueInput, failures=(Failure.of(errors.NotFound, "no such message waits"), _CONFLICT),
    ),
)  # fmt: skip

_NO_JOB: Final = Failure.of(errors.NotFound, "the session has no such job")
_JOB: Final = f"{API}/session/jobs/{{jobId}}"
_JOBS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET", f"{API}/session/jobs", "listJobs", "jobs", "The commands of a session, newest first.", job.JobPage,
        session=True,
        about=(
            "Every command that a tool call started is a job. One that is `detached` went on after its call: in the "
            "background, past its timeout, or because its shell left something running. Its end is a `job.*` notice."
        ),
        query=(
            *_paging(),
            Choice("state", "Only jobs in this state.", ("running", "exited", "signalled", "failed", "interrupted")),
        ),
    ),
    Operation(
        "GET", f"{_JOB}/output", "readJobOutput", "jobs", "What a job has printed, behind a cursor.",
        job.JobOutputPage, session=True, failures=(_NO_JOB,),
        about=(
            "Both streams in the order in which they came. Lines over 8 KiB come in pieces. Nothing is left out: "
            "`content`, with a line end where `continued` is not set, is what was printed."
        ),
        query=(
            Whole("cursor", "`sequence` of the last line that was read; 0 is the beginning.", 0),
            Whole("limit", "How many lines at most. A page also ends before it passes 4 MiB.", 500, 1, 2000),
            Choice("stream", "Which stream.", ("stdout", "stderr", "both"), "both"),
        ),
    ),
    Operation(
        "GET", f"{_JOB}/signals", "listJobSignals", "jobs", "Which signals were asked for, oldest first.",
        job.JobSignalPage, session=True, query=_paging(), failures=(_NO_JOB,),
    ),
    Operation(
        "POST", f"{_JOB}/signal", "signalJob", "jobs", "End a job, with everything that it started.",
        job.SignalAnswer, status=202, session=True, body=job.AskSignal, failures=(_NO_JOB,),
        about=(
            "Answers once that has begun. A job that has ended is left as it is, `signalled` is false, and the request "
            "is stored all the same."
        ),
    ),
)  # fmt: skip

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET", "/healthz", "getHealth", "probes", "Whether the controller is up.", rest.Health,
        about="The listener starts only when everything behind it is ready, so this and `/ready` say the same.",
        public=True,
    ),
    Operation(
        "GET", "/ready", "getReadiness", "probes", "Whether the controller takes work.", rest.Health, public=True
    ),
    Operation(
        "POST", f"{API}/sessions/open", "openSession", "sessions", "Open the session of a workspace.",
        rest.OpenedSession,
        about=(
            "One session belongs to one directory: every name of the same directory, links included, reaches the same "
            "session. It is made if there is none. `agentSpace` counts only then; an existing session keeps its own. "
            "Starts no turn."
        ),
        body=rest.OpenSession,
        failures=(
            Failure.of(errors.WorkspaceNotAllowed, "the directory lies outside what this deployment serves"),
            Failure.of(errors.AgentSpaceNotAllowed, "`agentSpace` is not offered; nothing was created"),
            Failure.of(errors.WorkspaceNotFound, "there is no such directory"),
        ),
    ),
    Operation(
        "GET", f"{API}/sessions", "listSessions", "sessions", "All sessions, most recently used first.",
        rest.SessionPage, query=_paging(),
    ),
    Operation(
        "GET", f"{API}/session", "getSession", "sessions", "One session.", rest.Session, session=True,
        about=(
            "`feedSequence` is the newest frame of its feed. While a turn runs, `activeTurnFeedSequence` is the cursor "
            "from which the feed gives all frames of that turn."
        ),
    ),
    Operation(
        "POST", f"{API}/session/cancel", "cancelSession", "sessions", "Stop what runs in a session.",
        rest.CancelAccepted, status=202, session=True,
        about=(
            "Answers once nothing new begins; what runs ends within seconds, and `turn.cancelled` tells of it. Work "
            "that was not finished is kept, paused. Also answered so where nothing ran."
        ),
    ),
    Operation(
        "GET", f"{API}/messages", "listMessages", "transcript", "The transcript, as the model received it.",
        rest.MessagePage, session=True, query=_paging(ordered=True),
    ),
    Operation(
        "GET", f"{API}/session/images/{{sha256}}", "getImage", "transcript", "The bytes of a stored image.",
        rest.ImageBytes, session=True, media=MEDIA_TYPES,
        failures=(Failure.of(errors.NotFound, "the session has no such image"),),
        about=(
            "Images of messages are named by the hash of their bytes. The header that names the session is part of the "
            "name for caches."
        ),
    ),
    Operation(
        "GET", f"{API}/session/turns", "listTurns", "transcript", "The turns of a session, newest first.",
        rest.TurnPage, session=True, query=_paging(),
    ),
    Operation(
        "GET", f"{API}/session/feed", "readFeed", "transcript", "The frames after a sequence, oldest first.",
        rest.FeedPage, session=True,
        about=(
            "Items are the frames of the socket, byte for byte. Go on with `nextCursor` until `hasMore` is false. "
            "`message.completed` and `message.failed` are no part of the feed."
        ),
        query=(
            Whole("cursor", "Sequence of the last frame that was applied; 0 is the beginning.", 0),
            Whole("limit", "How many frames at most. A page also ends before it passes 4 MiB.", 100, 1, 1000),
        ),
    ),
    Operation(
        "GET", f"{API}/session/notices", "listNotices", "notices", "The notices of a session, newest first.",
        rest.NoticePage, session=True, about="Reading consumes nothing.", query=_paging(),
    ),
    Operation(
        "POST", f"{API}/session/notices", "postNotice", "notices", "Report something to a session.", Notice,
        status=202, session=True, body=rest.PostNotice,
        about=(
            "The notice is stored and shown at once (`notice.created`). The model reads it once, as data, at the next "
            "tool boundary of a running turn or with the next turn. `type` has 1 to 8 dotted parts; `job`, `agent` "
            "and `turn` are reserved as first parts."
        ),
    ),
    *_EXECUTIONS,
    *_JOBS,
    Operation(
        "GET", f"{API}/models", "listModels", "models", "The models that a message may name.", rest.ModelList,
        about="As found when the controller started; no provider is asked.",
    ),
    Operation(
        "GET", f"{API}/session/events", "listEvents", "transcript", "What happened in the turns of a session.",
        rest.EventPage, session=True, query=_paging(ordered=True),
        about=(
            "The frames of root turns as records, without content blocks, children and notices. `payload` is the "
            "`data` of the frame with the same `id`. Reading consumes nothing."
        ),
    ),
    Operation(
        "DELETE", f"{API}/sessions/{{sessionId}}", "deleteSession", "sessions", "Remove a session for good.",
        rest.SessionDeleted,
        about=(
            "Its worker is stopped, and everything that is stored of it is removed, which may take a while. Nothing "
            "finds the session from the first moment on, and the rest is done even if the controller ends meanwhile. "
            "The directory is left alone; it can be opened again as a new session."
        ),
        failures=(
            Failure.of(errors.SessionNotFound, "there is no such session"),
            Failure.of(errors.SessionBusy, "a turn is running; nothing was removed"),
        ),
    ),
    Operation(
        "POST", f"{API}/maintenance/prune", "pruneSessions", "maintenance",
        "Remove sessions that nobody has used for long.", rest.Pruned, body=rest.Prune,
        about=(
            "Each session whose last message or change is older than `olderThan` is removed as `deleteSession` does "
            "it, one after the other, while others go on. One that runs stays, and so does one with paused work: "
            "resume or abandon that, or delete the session by its id."
        ),
    ),
    Operation(
        "GET", f"{API}/agent-spaces", "listAgentSpaces", "places", "The agent spaces that this deployment offers.",
        rest.AgentSpaceList,
        about="`control` is the machine and the user of the controller; it reports no grants.",
    ),
    Operation(
        "GET", f"{API}/workspace-roots", "listWorkspaceRoots", "places", "Where workspaces may lie.",
        rest.WorkspaceRoots, about="The root or any directory in it may be opened. Creates nothing.",
    ),
    Operation(
        "GET", f"{API}/session/workers", "listWorkers", "places", "The worker generations of a session, newest first.",
        rest.WorkerPage, session=True, query=_paging(),
    ),
    Operation(
        "GET", f"{API}/session/model-runs", "listModelRuns", "audit", "The model runs of a session, newest first.",
        audit.ModelRunPage, session=True,
        query=(
            *_paging(),
            Choice("stage", "Only runs of this stage.", ("turn", "child", "compaction")),
            Choice("state", "Only runs in this state.", ("running", "completed", "failed", "cancelled", "interrupted")),
        ),
    ),
    Operation(
        "GET", f"{API}/session/model-runs/{{modelRunId}}/calls", "listModelCalls", "audit",
        "The rounds of a model run, in order.", audit.ModelCallPage, session=True, query=_paging(),
        about=(
            "Each with the whole request, as the provider's adapter got it, and the answer. A round is listed when it "
            "has ended."
        ),
        failures=(Failure.of(errors.NotFound, "the session has no such model run"),),
    ),
    Operation(
        "GET", f"{API}/session/compactions", "listCompactions", "audit", "The summaries of a session, newest first.",
        rest.CompactionPage, session=True, query=_paging(),
        about=(
            "The newest is in force: the model gets it in the place of every message that it and the ones before it "
            "cover. Those messages stay stored, and are listed with `compactionId`."
        ),
    ),
    Operation(
        "GET", f"{API}/session/compactions/{{compactionId}}", "getCompaction", "audit", "One summary.",
        rest.Compaction, session=True,
        failures=(Failure.of(errors.NotFound, "the session has no such summary"),),
    ),
    Operation(
        "GET", f"{API}/session/context-snapshots/{{contextHash}}", "getContextSnapshot", "audit",
        "What a turn's prompt was resolved from.", rest.ContextSnapshot, session=True,
        about="A turn names it as `contextSnapshotHash`.",
        failures=(Failure.of(errors.NotFound, "no turn of the session has used it"),),
    ),
    Operation(
        "GET", f"{API}/session/prompt-snapshots/{{promptHash}}", "getPromptSnapshot", "audit",
        "The system prompt of a turn.", rest.PromptSnapshot, session=True,
        about="A turn names it as `promptSnapshotHash`.",
        failures=(Failure.of(errors.NotFound, "no turn of the session has used it"),),
    ),
)  # fmt: skip


# --- what operations share ------------------------------------------------------------------------------------------

_EVERY: Final = (
    Failure.of(errors.BadRequest, "head or query cannot be read, or a token stands in the URL"),
    Failure.of(errors.ForbiddenHost, "`Host` is no name of this server"),
    Failure.of(errors.ForbiddenOrigin, "`Origin` is another site"),
    Failure(408, "BAD_REQUEST", "the body does not arrive within 30 s"),
    Failure(413, "BAD_REQUEST", f"the body is larger than {MAX_BODY_BYTES} bytes"),
    Failure(431, "BAD_REQUEST", "the head is larger than 16 KiB"),
    Failure(500, PeenError.code, "something is wrong inside Peen; the log says what"),
)
_GUARDED: Final = (
    Failure.of(errors.ValidationFailed, "a parameter or member breaks its rule, is unknown, or is given twice"),
    Failure.of(errors.Unauthorized, "a token is configured and was not sent, or is wrong"),
    Failure.of(errors.NotAcceptable, "`Accept` excludes application/json"),
)
_OF_SESSION: Final = (
    Failure.of(errors.InvalidSessionId, "`X-Session-ID` is missing or no version 4 UUID"),
    Failure.of(errors.SessionNotFound, "there is no such session"),
)
_CHANGING: Final = (
    Failure(415, "BAD_REQUEST", "`Content-Type` is not application/json, which is asked for even without a body"),
    Failure.of(errors.StorageFull, "the disk is full; nothing was stored"),
)


def failures_of(operation: Operation) -> list[Failure]:
    """Everything that the operation may answer outside 2xx, by status, then code."""
    shared = list(_EVERY)
    if not operation.public:
        shared += _GUARDED
    if operation.session:
        shared += _OF_SESSION
    if operation.method != "GET":
        shared += _CHANGING
    return sorted({*shared, *operation.failures}, key=lambda failure: (failure.status, failure.code, failure.when))
