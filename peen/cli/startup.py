"""What every command begins with: its settings. This module imports little."""

from __future__ import annotations

import os
from pathlib import Path

from peen.cli.ends import REFUSED, CommandEnds
from peen.settings import Settings, load_settings


def load() -> Settings:
    """The settings of this process. Raises: ConfigurationInvalid; CommandEnds without a directory to start from."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        raise CommandEnds("the current directory does not exist any more; change to another one", REFUSED) from None
    try:
        home = Path.home()
    except RuntimeError:
        raise CommandEnds("this user has no home directory; set HOME", REFUSED) from None
    return load_settings(os.environ, cwd=cwd, home=home)
