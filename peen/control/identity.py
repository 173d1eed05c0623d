"""The name under which the processes of one state directory are known."""

from __future__ import annotations

import hashlib

from peen.settings import Settings


def state_id(settings: Settings) -> str:
    """Names one state directory in the markers of its processes: the directory itself, however it is called.

    Not its path: another directory may have that, in another mount namespace or once this one was moved, and what runs
    for it must not be taken for what a crash has left here. Raises: OSError if there is no such directory.
    """
    status = settings.state_dir.stat()
    return hashlib.sha256(f"{status.st_dev}:{status.st_ino}".encode()).hexdigest()[:16]
