"""The runs of an execution, made from its record: what each stretch of it was, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from peen.store import controlevents
from peen.store.database import Reader, Tx
from peen.store.executions import ExecutionDetails
from peen.store.runs import Run
from peen.wire.execution import ExecutionRun
from peen.wire.rest import rfc3339


class _Noted(msgspec.Struct, rename="camel"):
    """What is read of a control event's data; others have other members."""

    reason: str | None = None
    caller: str | None = None
    worker_generation_id: str | None = None
    holder: str | None = None


_decode: Final = msgspec.json.Decoder(_Noted).decode


def runs_of(db: Reader | Tx, execution: ExecutionDetails) -> list[Run]:
    """The runs of an execution as `peen.db` tells them, in their order."""
    return fold(execution, controlevents.events(db, execution.no))


def fold(execution: ExecutionDetails, events: Sequence[tuple[str, bytes, int]]) -> list[Run]:
    """Runs from the control events of an execution: type, data as JSON, time in ms; oldest first.

    A run ends at the pause, not when the last of its commands is gone. One that no worker took hold of has neither
    generation nor holder; neither have those of a release that did not note it.
    """
    runs = [Run(None, None, None, execution.created_at_ms, None, "running", None)]
    for kind, data, at_ms in events:
        match kind:
            case "execution.adopted":
                noted = _decode(data)
                if noted.worker_generation_id is not None and noted.holder is not None:
                    generation_id = UUID(noted.worker_generation_id).bytes
                    runs[-1] = runs[-1]._replace(generation_id=generation_id, holder=bytes.fromhex(noted.holder))
            case "execution.paused":
                runs[-1] = runs[-1]._replace(ended_at_ms=at_ms, outcome="paused", reason=_decode(data).reason)
            case "execution.resumed":
                runs.append(Run(None, None, _decode(data).caller, at_ms, None, "running", None))
    if runs[-1].outcome == "running" and execution.state != "running":
        runs[-1] = runs[-1]._replace(ended_at_ms=execution.ended_at_ms, outcome=execution.state)
    return runs


def shown(runs: Sequence[Run]) -> list[ExecutionRun]:
    """Runs as clients see them. The holder stays inside: it is nobody's name."""
    return [
        ExecutionRun(
            worker_generation_id=None if run.generation_id is None else str(UUID(bytes=run.generation_id)),
            caller=run.caller,
            started_at=rfc3339(run.started_at_ms),
            ended_at=None if run.ended_at_ms is None else rfc3339(run.ended_at_ms),
            outcome=run.outcome,
            reason=run.reason,
        )
        for run in runs
    ]
