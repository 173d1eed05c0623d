"""One task from the command line: from nothing, and on a running controller.

    python -m bench.exec [--quick] [--json]

Cold: `peen exec` hosts its own controller, opens the session, runs one turn with one tool call, stops everything, ends.
Borrowed: the same on a daemon whose worker for the session is warm. The floor is an interpreter that does nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.common import median, parser, report, table
from peen.testing.daemon import Daemon


def run_s(arguments: list[str], environment: Mapping[str, str], directory: Path) -> float:
    """Seconds from start to exit."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    spent = time.perf_counter() - began
    assert done.returncode == 0, done.stderr.decode()
    return spent


def main() -> int:
    arguments = parser("`peen exec`, cold and on a running controller.").parse_args()
    repeats = 5 if arguments.quick else 15
    task = ["-m", "peen", "exec", "list"]
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        daemon = Daemon(Path(name))
        environment, directory = daemon.environment, daemon.workspace_root
        run_s(task, environment, directory)  # makes the directories and the compiled files
        cold, floor = [], []
        for _ in range(repeats):
            cold.append(run_s(task, environment, directory))
            floor.append(run_s(["-c", "pass"], environment, directory))
        with daemon:
            run_s(task, environment, directory)
            borrowed = [run_s(task, environment, directory) for _ in range(repeats)]
    found = {"cold_s": median(cold), "borrowed_s": median(borrowed), "python_floor_s": median(floor)}
    report(arguments, found, table(["figure", "seconds"], list(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
