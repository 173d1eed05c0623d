"""What tests of the command line share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def base() -> Iterator[Path]:
    """A new directory with a short name: the path of a socket has at most 107 bytes, which pytest's own may pass."""
    with tempfile.TemporaryDirectory(prefix="peen-") as directory:
        yield Path(directory)
