"""What a fork server may load early, and a worker that tells whether it has."""

from __future__ import annotations

import os

from peen.wire.launch import LaunchDocument

loaded_in: list[int] = []


def load() -> None:
    loaded_in.append(os.getpid())


def worker_main(_document: LaunchDocument) -> int:
    if not loaded_in:
        return 3
    return 0 if loaded_in == [os.getppid()] else 4
