"""Fixtures of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's address, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="peen") as directory:
        yield Path(directory)
