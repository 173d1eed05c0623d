"""`python -m peen` is `peen`."""

from __future__ import annotations

from peen.cli.main import program

if __name__ == "__main__":
    program()
