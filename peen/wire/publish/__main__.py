"""`python -m peen.wire.publish FOLDER [--change-golden]`: bring the published protocol up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from peen.wire.publish.folder import GoldenChanged, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit code is 1 if golden frames would change and that was not asked for."""
    parser = argparse.ArgumentParser(prog="python -m peen.wire.publish", description="Write the published protocol.")
    parser.add_argument("folder", type=Path, help="the folder to bring up to date")
    parser.add_argument("--change-golden", action="store_true", help="golden frames may change: clients may break")
    given = parser.parse_args(arguments)
    try:
        changed = write(given.folder, change_golden=given.change_golden)
    except GoldenChanged as refused:
        print(f"{refused}\nIf clients can live with that, run again with --change-golden.", file=sys.stderr)
        return 1
    for name in changed:
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
