"""The summarizer's prompt: the embedded one unless the operator has written another."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from peen.harness.compaction import MAX_BYTES, embedded_prompt, summary_prompt


def test_without_a_file_the_embedded_prompt_holds(tmp_path: Path) -> None:
    assert summary_prompt(None) == summary_prompt(tmp_path) == embedded_prompt()
    assert "summary" in embedded_prompt()


def test_the_operators_file_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "COMPACTION.md").write_text("\n Sum up in French. \n")

    assert summary_prompt(tmp_path) == "Sum up in French."


def test_a_file_of_exactly_the_limit_is_taken(tmp_path: Path) -> None:
    (tmp_path / "COMPACTION.md").write_text("x" * MAX_BYTES)

    assert summary_prompt(tmp_path) == "x" * MAX_BYTES


@pytest.mark.parametrize("content", [b"", b" \n", b"x" * (MAX_BYTES + 1), b"\xff\xfe"])
def test_a_file_that_cannot_be_used_is_named_and_the_embedded_prompt_holds(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "COMPACTION.md").write_bytes(content)
    with capture_logs() as logs:
        assert summary_prompt(tmp_path) == embedded_prompt()

    assert [line["path"] for line in logs] == [str(tmp_path / "COMPACTION.md")]


def test_a_directory_of_that_name_is_no_prompt(tmp_path: Path) -> None:
    (tmp_path / "COMPACTION.md").mkdir()
    with capture_logs() as logs:
        assert summary_prompt(tmp_path) == embedded_prompt()

    assert len(logs) == 1
