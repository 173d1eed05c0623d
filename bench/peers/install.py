"""An environment for engines that Peen itself does not need."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

PACKAGES: Final = {"dbos": ("dbos",), "langgraph": ("langgraph>=1.2", "langgraph-checkpoint-sqlite")}
INSTALL_S: Final = 600.0


def install(directory: Path) -> dict[str, Path]:
    """An interpreter for each engine that is there or could be installed with pip, below `directory`.

    What could not be installed is said on standard error and left out.
    """
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    return {name: python for name, packages in PACKAGES.items() if _install(python, name, packages)}


def _install(python: Path, name: str, packages: tuple[str, ...]) -> bool:
    names = [package.partition(">")[0] for package in packages]
    known = subprocess.run([python, "-m", "pip", "show", "--quiet", *names], check=False, capture_output=True)
    if known.returncode == 0:
        return True
    print(f"installing {name} into {python.parent.parent}", file=sys.stderr)
    try:
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
            check=False,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        print(f"{name} is left out: pip took longer than {INSTALL_S:.0f} s", file=sys.stderr)
        return False
    if done.returncode != 0:
        print(f"{name} is left out: pip could not install it: {_reason(done.stderr)}", file=sys.stderr)
    return done.returncode == 0


def _reason(said: str) -> str:
    """The last of what pip said; before it stand its warnings, and every version that there is."""
    lines = said.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
