"""The end of a command reaches the store, however often that refuses, unless nobody is left to record it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from peen.errors import LinkLost, PeenError, StaleClaim, StorageFailed, ValidationFailed
from peen.job.record import RETRY_S, keep_end
from peen.wire.jobcalls import EndJob, JobEnded
from peen.wire.workerstruct import WorkerStruct

END = EndJob(job_id="10b00000-0000-4000-8000-00000000000a", state="exited", exit_code=0)
FAILED = StorageFailed("peen.db", "disk I/O error")


class Answer:
    def __init__(self, error: PeenError | None) -> None:
        self.done = trio.Event()
        self.done.set()
        self._error = error

    def result(self) -> JobEnded:
        if self._error is not None:
            raise self._error
        return JobEnded()


class Link:
    """Answers one call after the other with these errors; None is success."""

    def __init__(self, errors: Sequence[PeenError | None]) -> None:
        self._errors = list(errors)
        self.sent: list[tuple[float, WorkerStruct]] = []

    def call_soon(self, request: WorkerStruct, reply: type[Any]) -> Any:
        self.sent.append((trio.current_time(), request))
        return Answer(self._errors.pop(0))

    async def call(self, request: WorkerStruct, reply: type[Any]) -> Any:
        raise AssertionError("the end is sent before anybody waits for it")


async def kept(link: Link) -> list[tuple[str, str]]:
    """Have the end kept; what was logged of that."""
    with capture_logs() as logs:
        await keep_end(link, END, link.call_soon(END, JobEnded))
    return [(entry["log_level"], entry["event"]) for entry in logs]


async def test_a_stored_end_is_sent_once(autojump_clock: MockClock) -> None:
    link = Link([None])

    assert await kept(link) == []
    assert len(link.sent) == 1


async def test_an_end_that_the_disk_refuses_is_sent_again_until_it_is_stored(autojump_clock: MockClock) -> None:
    link = Link([FAILED, FAILED, None])
    began_s = trio.current_time()

    logged = await kept(link)

    assert [(at_s - began_s, request) for at_s, request in link.sent] == [(n * RETRY_S, END) for n in range(3)]
    assert logged == [("warning", "the end of a command is not stored yet")] * 2


async def test_a_cancelled_job_has_its_end_stored_all_the_same(autojump_clock: MockClock) -> None:
    link = Link([FAILED, None])

    with trio.CancelScope() as scope:
        scope.cancel()
        await kept(link)

    assert len(link.sent) == 2


@pytest.mark.parametrize(
    ("refused", "level"),
    [(StaleClaim("this worker was replaced"), "warning"), (ValidationFailed("malformed"), "error")],
)
async def test_an_end_that_can_never_be_stored_is_said_and_left(refused: PeenError, level: str) -> None:
    link = Link([refused])

    assert [entry[0] for entry in await kept(link)] == [level]
    assert len(link.sent) == 1


async def test_a_lost_link_ends_the_attempts(autojump_clock: MockClock) -> None:
    link = Link([FAILED, LinkLost("the controller is gone")])

    with pytest.raises(LinkLost):
        await kept(link)
