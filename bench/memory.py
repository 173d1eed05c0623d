"""What processes weigh."""

from __future__ import annotations

import os
from pathlib import Path


def pss_mib(pid: int) -> float:
    """Proportional set size in MiB of a process and everything below it: shared pages are counted once."""
    total_kib = 0
    for known in family(pid):
        try:
            rollup = Path(f"/proc/{known}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_kib += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total_kib / 1024


def family(pid: int) -> list[int]:
    """A process and all that descends from it, ancestors first."""
    parents = _parents()
    pids = [pid]
    for known in pids:
        pids.extend(child for child, parent in parents.items() if parent == known)
    return pids


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int(Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
