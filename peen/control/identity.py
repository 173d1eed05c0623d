"""The name under which the processes of one state directory are known."""

from __future__ import annotations

import hashlib
import os

from peen.settings import Settings


def state_id(settings: Settings) -> str:
    """Names one state directory in the markers of its processes; the same under every name of the directory."""
    return hashlib.sha256(os.fsencode(settings.state_dir.resolve())).hexdigest()[:16]
