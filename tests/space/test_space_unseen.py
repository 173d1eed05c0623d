"""A library is imported as if something were not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peen.space.unseen import CONSOLES, unseen

ROOT = Path(__file__).parents[2]


def test_what_is_unseen_cannot_be_imported_and_is_back_afterwards() -> None:
    assert "this" not in sys.modules  # nothing else imports it

    with unseen("this"), pytest.raises(ImportError):
        __import__("this")

    assert "this" not in sys.modules


def test_what_was_imported_before_is_left_alone() -> None:
    before = sys.modules["subprocess"]

    with unseen("subprocess"):
        assert __import__("subprocess") is before

    assert sys.modules["subprocess"] is before


def test_an_exception_inside_leaves_nothing_hidden() -> None:
    with pytest.raises(LookupError), unseen("this"):
        raise LookupError

    assert "this" not in sys.modules


def test_structlog_works_without_what_it_takes_in_for_consoles() -> None:
    code = (
        f"import sys\nfrom peen.space.unseen import CONSOLES, unseen\n"
        f"with unseen(*CONSOLES):\n    import structlog\n"
        f"assert not set(sys.modules) & set({CONSOLES!r}), 'imported all the same'\n"
        f"structlog.get_logger('x').info('said', number=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert "said" in done.stdout
