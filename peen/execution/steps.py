"""Steps: work whose input is saved before it begins and whose output is saved before anything follows from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec
import trio
from msgspec import Raw

from peen.errors import StaleClaim, StorageError, StorageFailed
from peen.execution.journal import Journal
from peen.execution.limits import reached
from peen.wire.records import (
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
from peen.wire.turncalls import CommitSteps, Committed, Continuation, EmitEvents, RenewLeases

T = TypeVar("T", bound=msgspec.Struct)

MODEL: Final = "model"
"""The kind of a step that asks a provider."""
RENEW_S: Final = 25.0
"""Seconds between two renewals; a lease runs for 60."""
RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is before it begins. `id` is positional (`r3.t0.handler`); `given` is its input as JSON."""

    id: str
    kind: str
    given: bytes
    call_id: str | None = None

    def claim(self) -> Claim:
        return Claim(step=self.id, kind=self.kind, given=Raw(self.given), call_id=self.call_id)


@dataclass(slots=True)
class Done(Generic[T]):
    """What a step produced: its output and everything that becomes visible with it."""

    output: T
    messages: list[MessageRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    calls: list[ModelCallRecord] = field(default_factory=list)
    failed: bool = False
    blobs: list[NewBlob] = field(default_factory=list)
    """Images, and parts of the saved values in `calls` that the store has not got yet, as far as is known."""
    refused_images: list[RefusedImage] = field(default_factory=list)
    reasoning_refused_up_to: int = 0
    recall: Callable[[Collection[bytes]], list[NewBlob]] | None = None
    """Finds the blobs of those values that the store has not got after all."""
    forget: Callable[[], None] | None = None
    """Called if none of this could be stored, as far as is known."""
    compaction: CompactionRecord | None = None
    """What a compaction came to."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows at once, in the same commit.

    `passed` are phases with nothing to do, each with its output; `begin` are steps whose work starts as soon as
    the commit returns; `events` announce them; `opening` are messages of the round that begins; `terminal` ends the
    turn, unless messages wait and `otherwise` says how to go on with them.
    """

    events: Sequence[EventRecord] = ()
    passed: Sequence[tuple[Step, bytes]] = ()
    begin: Sequence[Step] = ()
    opening: Sequence[MessageRecord] = ()
    terminal: Terminal | None = None
    otherwise: Next | None = None


NOTHING = Next()


class Steps:
    """The steps of one execution under one holder."""

    def __init__(self, journal: Journal, *, execution_id: str, holder: str) -> None:
        self._journal, self._execution_id, self._holder = journal, execution_id, holder
        self._claimed: dict[str, Step] = {}
        self._delivered: list[MessageRecord] = []
        self._continued = False
        self._summary: str | None = None
        self.message_sequence = 0
        """Last message sequence of the session, as of the latest commit."""
        self.budget: Budget | None = None
        """What the session may use, and has, as of the latest commit; None if nothing limits it."""

    def take_delivered(self) -> list[MessageRecord]:
        """Messages of the user that came with the latest commits and are not in the conversation yet."""
        delivered, self._delivered = self._delivered, []
        return delivered

    def take_continued(self) -> bool:
        """Whether the latest end did not happen, because messages waited: the execution goes on."""
        continued, self._continued = self._continued, False
        return continued

    async def begin(self, step: Step) -> None:
        """Save the input, unless an earlier commit did. A model step does not begin once the budget is used up."""
        if step.id not in self._claimed:
            await self.commit(Next(begin=(step,)))

    def take_summary(self) -> str | None:
        """The text of the summary that the latest commit has stored."""
        summary, self._summary = self._summary, None
        return summary

    def has_begun(self, step: Step) -> bool:
        """Whether this holder has claimed the step, and it has not ended."""
        return step.id in self._claimed

    async def run(
        self,
        step: Step,
        work: Callable[[], Awaitable[Done[T]]],
        then: Callable[[Done[T]], Next],
    ) -> T:
        """Save the input (unless an earlier commit did), do the work, save the outcome with what follows from it.

        `then` is pure: it sees the outcome and says what begins at once. If the work raises, nothing is saved:
        the step stays running in the store, and whoever recovers it knows by its kind what that means.
        Raises: StaleClaim if this holder was replaced or a Stop came; LinkLost if the store is out of reach.
        """
        await self.begin(step)
        done = await work()
        following = then(done)
        completion = Completion(step=step.id, output=Raw(msgspec.json.encode(done.output)), failed=done.failed)
        await self.commit(following, completion=completion, done=done)
        self._claimed.pop(step.id, None)
        return done.output

    async def commit(
        self, following: Next, *, completion: Completion | None = None, done: Done[T] | None = None
    ) -> None:
        """One transaction: a completion with its records, phases that had nothing to do, claims, the end."""
        otherwise = following.otherwise
        request = CommitSteps(
            execution_id=self._execution_id,
            holder=self._holder,
            completions=([completion] if completion is not None else []),
            messages=done.messages if done is not None else [],
            events=[*(done.events if done is not None else ()), *following.events],
            calls=done.calls if done is not None else [],
            claims=_claims(following),
            passed=_passed(following),
            opening=list(following.opening),
            terminal=following.terminal,
            refused_images=done.refused_images if done is not None else [],
            reasoning_refused_up_to=done.reasoning_refused_up_to if done is not None else 0,
            continuation=(
                None if otherwise is None else Continuation(claims=_claims(otherwise), passed=_passed(otherwise))
            ),
            compaction=done.compaction if done is not None else None,
        )
        committed = await self._save(request, done)
        if committed.stopped:
            raise StaleClaim("a Stop came before this step ended; its result is saved, and nothing follows from it")
        # Calls that end together may hear of their commits in any order.
        self.message_sequence = max(self.message_sequence, committed.message_sequence)
        self.budget = committed.budget
        self._delivered += committed.delivered
        self._continued = committed.continued
        self._summary = committed.summary
        begun = otherwise if committed.continued and otherwise is not None else following
        is_used_up = reached(committed.budget) is not None
        for step in begun.begin:
            if not (is_used_up and step.kind == MODEL):
                self._claimed[step.id] = step

    async def _save(self, request: CommitSteps, done: Done[T] | None) -> Committed:
        """Commit; again with blobs that were thought to be stored and are not."""
        if done is None:
            return await self._journal.commit(request)
        try:
            return await self._save_whole(msgspec.structs.replace(request, blobs=done.blobs), done)
        except BaseException:
            if done.forget is not None:
                done.forget()  # else later turns would rely on what only this commit brought
            raise

    async def _save_whole(self, request: CommitSteps, done: Done[T]) -> Committed:
        committed = await self._journal.commit(request)
        # What a missing part names is looked for only once that part is there: each time is one level further down.
        while committed.missing_blobs:
            found = [] if done.recall is None else done.recall(committed.missing_blobs)
            if not found:
                problem = f"{len(committed.missing_blobs)} parts of a saved value cannot be found"
                raise StorageFailed("peen.db", problem)
            request = msgspec.structs.replace(request, blobs=[*request.blobs, *found])
            committed = await self._journal.commit(request)
        return committed

    async def emit(self, events: list[EventRecord], progress: ModelProgress | None = None) -> None:
        """Hand over streamed pieces of a running step, with how far it has come."""
        await self._journal.emit(self._shown(events, progress))

    async def note(self, progress: ModelProgress) -> None:
        """Save how far a running step has come. Raises: StaleClaim, LinkLost."""
        await self._journal.note(self._shown([], progress))

    def _shown(self, events: list[EventRecord], progress: ModelProgress | None) -> EmitEvents:
        return EmitEvents(execution_id=self._execution_id, holder=self._holder, events=events, progress=progress)

    async def keep_leases(self) -> None:
        """Renew the leases of this execution until cancelled: work that takes long is not taken from it.

        A disk that is full or failing at a renewal is asked again soon; the lease outlasts some of that.
        Raises: StaleClaim when it came too late or this holder was replaced; LinkLost.
        """
        request = RenewLeases(execution_id=self._execution_id, holder=self._holder)
        pause_s = RENEW_S
        while True:
            await trio.sleep(pause_s)
            try:
                await self._journal.renew(request)
                pause_s = RENEW_S
            except StorageError:
                pause_s = RETRY_S


def _claims(following: Next) -> list[Claim]:
    return [step.claim() for step, _ in following.passed] + [step.claim() for step in following.begin]


def _passed(following: Next) -> list[Completion]:
    return [Completion(step=step.id, output=Raw(output)) for step, output in following.passed]
