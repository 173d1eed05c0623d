"""How long a call may wait, as a model says it."""

from __future__ import annotations

from peen.duration import parse_duration_ms
from peen.tool.base import ToolContext, ToolError


def wait_ms(text: str | None, context: ToolContext) -> int:
    """Milliseconds of a `timeout` argument, the configured default without one; no ceiling. Raises: ToolError."""
    if not text:
        return context.settings.default_command_timeout_ms
    try:
        timeout_ms = parse_duration_ms(text)
    except ValueError as exc:
        raise ToolError("validation failed", f"timeout: {exc}") from exc
    if timeout_ms <= 0:
        raise ToolError("validation failed", f'timeout: {text} is not a positive time; leave it out or give e.g. "5m"')
    return timeout_ms
