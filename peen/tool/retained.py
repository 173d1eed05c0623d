"""What the tools for paused work share: who they ask, and words for what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from peen.errors import Conflict, NotFound, ValidationFailed
from peen.tool.base import ToolContext, ToolError
from peen.tool.work import RetainedWork

ENVELOPE_BYTES: Final = 128
"""What the members of a result take beside what they hold."""


def work_of(context: ToolContext) -> RetainedWork:
    """Raises: ToolError where there is no controller behind the tools."""
    if context.work is None:
        raise ToolError("failed", "paused work cannot be reached from here")
    return context.work


@contextmanager
def told_of_work() -> Iterator[None]:
    """What the controller refuses becomes words for the model."""
    try:
        yield
    except NotFound as missing:
        text = f"{missing.message}; call readExecution without an id to list what is paused"
        raise ToolError("not found", text) from missing
    except Conflict as refused:
        text = f"{refused.message}. Read the execution again; nothing was changed."
        raise ToolError("conflict", text) from refused
    except ValidationFailed as wrong:
        raise ToolError("validation failed", wrong.message) from wrong
