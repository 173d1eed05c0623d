"""The pages that promise something name tests, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["tools.md", "durability.md"])
def test_every_test_that_is_named_exists(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    named = set(re.findall(r"`(?:tests/)?(?:\w+/)*(test_\w+\.py)`", page))
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}

    assert len(named) > 10
    assert named - there == set()
