"""Importing a library without what it would import only because it happens to be installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

CONSOLES: Final = ("rich", "better_exceptions", "colorama")
"""What structlog takes in for consoles: 20 ms of every start and 5 MiB of every process, and our lines use none."""


@contextmanager
def unseen(*names: str) -> Iterator[None]:
    """Inside, `import name` fails as if it were not installed, for those that are not imported yet."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
