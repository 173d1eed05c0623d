"""How long the daemon takes to be ready, and what it weighs while it waits.

    python -m bench.start [--quick] [--json]

Ready: from starting the process to the moment that its address can be read from the lock file, with an empty state
directory each time. The floor is an interpreter that imports Trio and ends. Memory is the proportional set size of all
processes, fork server and spare worker included, one second of the program's own life after it is ready.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.common import median, parser, report, table
from bench.memory import pss_mib
from peen.testing.daemon import Daemon


def start_once() -> tuple[float, float]:
    """Seconds to ready, and MiB while idle."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        daemon = Daemon(Path(name))
        began = time.perf_counter()
        with daemon:
            ready_s = time.perf_counter() - began
            time.sleep(1.0)
            return ready_s, pss_mib(daemon.pid)


def floor_once() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import trio"], check=True)
    return time.perf_counter() - began


def main() -> int:
    arguments = parser("Time to ready and idle memory of the daemon.").parse_args()
    repeats = 3 if arguments.quick else 9
    runs = [start_once() for _ in range(repeats)]
    found = {
        "ready_s": median(ready for ready, _ in runs),
        "idle_pss_mib": median(weight for _, weight in runs),
        "python_floor_s": median(floor_once() for _ in range(repeats)),
    }
    report(arguments, found, table(["figure", "value"], list(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
