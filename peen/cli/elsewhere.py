"""Waiting for the end of a controller that another `peen exec` hosts for directories that do not hold ours."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from peen.cli.ends import INTERRUPTED, UNFINISHED, CommandEnds
from peen.cli.order import Order
from peen.cli.screen import Screen
from peen.control.lock import LockInfo, read_lock
from peen.entropy import Entropy
from peen.errors import PeenError
from peen.settings import Settings

LOOK_S: Final = 0.05
_TOLD: Final = "another peen exec hosts the controller, for other directories; waiting for its end"


def waiting_helps(holder: LockInfo, workspace: str, settings: Settings) -> bool:
    """Whether a workspace that `holder` does not allow could be served by a controller of our own, once that is gone.

    Only a controller without an address ends by itself, and not while it waits for us: for a command of its own turn.
    """
    # Imported here: a borrowed turn does not need it unless it is refused.
    from peen.session.workspace import WorkspacePolicy

    if holder.address is not None or (holder.pid is not None and _is_below(holder.pid)):
        return False
    try:
        WorkspacePolicy(settings.workspace_root, settings.state_dir, settings.config_dir).resolve(workspace)
    except PeenError:
        return False
    return True


class Elsewhere:
    """The waits of one command. What it waits for is said once, however many controllers come and go meanwhile."""

    def __init__(self, order: Order, settings: Settings, screen: Screen, entropy: Entropy) -> None:
        self._order, self._settings, self._screen, self._entropy = order, settings, screen, entropy
        self._told = False

    def wait(self, holder: LockInfo) -> None:
        """Until the lock is free or says something else. Raises: CommandEnds for SIGINT and the end of --timeout."""
        deadline_s = self._order.deadline_s
        try:
            # No deadline but --timeout: the other command's turn may take hours, and Ctrl-C ends the wait.
            while read_lock(self._settings.state_dir) == holder:
                if deadline_s is not None and self._entropy.monotonic_s() >= deadline_s:
                    raise CommandEnds("the time of --timeout is over; nothing was sent", UNFINISHED)
                if not self._told:
                    self._told = True
                    self._screen.note(_TOLD)
                self._screen.progress("waiting for another peen exec")
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            raise CommandEnds("interrupted; nothing was sent", INTERRUPTED) from None


def _is_below(ancestor: int) -> bool:
    """Whether this process descends from `ancestor`."""
    pid = os.getppid()
    while pid not in (0, ancestor):
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it ended, and its children have another parent now
            return False
        pid = int(stat.rpartition(b")")[2].split()[1])  # field 4, counted behind the name
    return pid == ancestor
