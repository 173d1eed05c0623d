"""The prompt of the summarizer: the embedded one, or the operator's own."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import structlog

FILE_NAME: Final = "COMPACTION.md"
MAX_BYTES: Final = 32 * 1024

log = structlog.get_logger(__name__)


@cache
def embedded_prompt() -> str:
    """The one that comes with Peen."""
    return resources.files("peen.harness").joinpath("summary_prompt.md").read_text("utf-8").strip()


def summary_prompt(config_directory: Path | None) -> str:
    """What a summarizer is told: `COMPACTION.md` of that directory takes the place of the embedded prompt.

    A file that cannot be used is named in the log, and the embedded prompt holds: a summary matters more than its form.
    """
    if config_directory is None:
        return embedded_prompt()
    path = config_directory / FILE_NAME
    try:
        if not path.exists():
            return embedded_prompt()
        if not path.is_file():
            raise ValueError("it is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        own = content.decode().strip()
        if not own:
            raise ValueError("it is empty")
    except (OSError, ValueError) as problem:
        log.warning("the summary prompt cannot be used, so the embedded one is", path=str(path), error=str(problem))
        return embedded_prompt()
    return own
