"""The session's retained work as an agent's tools reach it."""

from __future__ import annotations

from typing import Literal, Protocol

from peen.wire.turncalls import ExecutionsRead


class RetainedWork(Protocol):
    """Decisions are bound to the tool call that takes them: one that does not run any more can take none."""

    async def read(self, execution_id: str | None, *, max_bytes: int) -> ExecutionsRead:
        """One execution, or the paused ones where None is given. Raises: NotFound."""

    async def resolve(
        self,
        execution_id: str,
        activity_id: str,
        *,
        decision: Literal["accept", "retry"],
        outcome: str | None,
        control_revision: int,
    ) -> str:
        """Record a decision about an uncertain activity; its step. Raises: NotFound, Conflict."""

    async def resume_later(self, execution_id: str, *, control_revision: int) -> None:
        """Have a paused execution go on when the calling turn has ended. Raises: NotFound, Conflict."""
