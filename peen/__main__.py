"""`python -m peen` is `peen`."""

from __future__ import annotations

import sys

from peen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
