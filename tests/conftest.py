"""What all tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A new directory with a short name: the path of a socket has at most 107 bytes, which `tmp_path` may pass."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as directory:
        yield Path(directory)
