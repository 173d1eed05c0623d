"""Recording that a command has ended, for as long as there is somebody to record it."""

from __future__ import annotations

from typing import Final

import structlog
import trio

from peen.errors import LinkLost, PeenError, StaleClaim, StorageError
from peen.job.calls import Calls, Pending
from peen.wire.jobcalls import EndJob, JobEnded

log = structlog.get_logger(__name__)

RETRY_S: Final = 2.0
"""After the disk has refused an end. A full disk is waited for in the controller, so this is about a failing one."""


async def keep_end(calls: Calls, end: EndJob, answer: Pending[JobEnded]) -> None:
    """Return when an end that was sent is stored; a disk that refuses it is asked again.

    Not to be cancelled: the answer or the loss of the link ends it, and then the controller knows by itself.
    Raises: LinkLost.
    """
    with trio.CancelScope(shield=True):
        while True:
            await answer.done.wait()
            try:
                answer.result()
                return
            except LinkLost:
                raise
            except StorageError as refused:
                log.warning("the end of a command is not stored yet", job_id=end.job_id, error=str(refused))
            except StaleClaim as late:  # this worker was replaced, and its commands count as interrupted
                log.warning("the end of a command came too late", job_id=end.job_id, error=str(late))
                return
            except PeenError as refused:
                log.error("the end of a command was not stored", job_id=end.job_id, error=str(refused))
                return
            await trio.sleep(RETRY_S)
            answer = calls.call_soon(end, JobEnded)
