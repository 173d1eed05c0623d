"""What all tests share."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts the tests in the background lets them ignore SIGINT, nohup lets them ignore SIGHUP, and so would
# everything that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A new directory with a short name: the path of a socket has at most 107 bytes, which `tmp_path` may pass."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as directory:
        yield Path(directory)
