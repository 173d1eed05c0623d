"""How many tokens a prompt may have."""

from __future__ import annotations

from typing import Final

DEFAULT_WINDOW_TOKENS: Final = 131_072
DEFAULT_RESERVE_TOKENS: Final = 16_384


def enforced_window(published: int | None, configured: int | None) -> int:
    """The window in tokens that is enforced: the published or the configured one, the smaller of both."""
    known = [size for size in (published, configured) if size is not None]
    return min(known, default=DEFAULT_WINDOW_TOKENS)


def prompt_budget(window: int, reserve: int | None) -> int:
    """Tokens that a prompt may have: the window less what is kept for the answer, at least a quarter of the window.

    Without a configured reserve that is 16,384 tokens or a quarter of the window, whichever is smaller.
    """
    kept = min(DEFAULT_RESERVE_TOKENS, window // 4) if reserve is None else reserve
    return max(window - kept, window // 4)
