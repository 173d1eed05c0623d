"""What must hold of the commands in a store at every commit, so that no moment of a crash could break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from peen.store.database import Reader

_UNTOLD: Final = """
SELECT id, state, is_detached, (
    SELECT group_concat(type) FROM notice
     WHERE source = 'tools.job' AND key >> 32 = job.session_no
       AND replace(json_extract(CAST(data AS TEXT), '$.jobId'), '-', '') = lower(hex(job.id))
) AS told, EXISTS (SELECT 1 FROM job_signal WHERE key >> 32 = job.no AND accepted) AS is_signalled
  FROM job
 WHERE coalesce(told, '') !=
       CASE WHEN state = 'running' THEN ''
            WHEN state = 'interrupted' AND (is_detached OR NOT is_signalled) THEN 'job.failed'
            WHEN state = 'failed' AND is_signalled THEN 'job.failed'
            WHEN is_detached THEN 'job.' || state ELSE '' END
"""
_ORPHANS: Final = """
SELECT j.id FROM job j JOIN generation g ON g.no = j.generation_no
 WHERE j.state = 'running' AND g.ended_at_ms IS NOT NULL
"""
_RUNNING: Final = "SELECT id FROM job WHERE state = 'running'"


def untold_ends(reader: Reader) -> Iterator[str]:
    """18: the end of a job and the one notice of it are stored together, and jobs end with their worker."""
    for job_id, state, is_detached, told, is_signalled in reader.rows(_UNTOLD):
        kind = "detached" if is_detached else "signalled foreground" if is_signalled else "foreground"
        yield f"18: {kind} job {UUID(bytes=job_id)} is {state} and was told of as {told}"
    for (job_id,) in reader.rows(_ORPHANS):
        yield f"18: job {UUID(bytes=job_id)} is running and its worker generation has ended"


def left_running(reader: Reader) -> list[str]:
    """The jobs that count as running."""
    return [f"job {UUID(bytes=job_id)} is running" for (job_id,) in reader.rows(_RUNNING)]
