"""Making a process ready to be a controller, before there is an event loop.

This module imports little: the fork server that it starts needs its time, in which the caller imports the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

from peen.control.identity import state_id
from peen.control.lock import LOCK_NAME, ControllerLock, LockInfo, read_lock
from peen.entropy import Entropy
from peen.errors import ControllerRunning
from peen.model.route import preloads
from peen.settings import Settings, check_open_files, prepare_directories
from peen.space.nannystart import NannyProcess, end_nanny, start_nanny
from peen.space.unseen import CONSOLES, unseen

SWITCH_INTERVAL_S: Final = 0.0002  # the writer threads hand over at once instead of after 5 ms


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a controller is given by its process."""

    nanny: NannyProcess
    lock: ControllerLock


@contextmanager
def prepared_process(settings: Settings, entropy: Entropy, *, stream: TextIO | None, level: str) -> Iterator[Prepared]:
    """Make this process ready to be the controller of its state directory, in the only order that works.

    The lock comes first, so that of many processes that want to be the controller only one starts a fork server; the
    descriptor is closed in every child. The fork server comes before threads and databases, which no worker may
    inherit, and ends before the lock is free. Log lines of `level` and above go to `stream` (standard output if None).
    Raises: ControllerRunning, ConfigurationInvalid.
    """
    prepare_directories(settings)
    holder = read_lock(settings.state_dir)
    if holder is not None:  # the usual case of a second controller, noticed before anything is started
        raise ControllerRunning(settings.state_dir / LOCK_NAME, pid=holder.pid)
    few_files = check_open_files()
    with ExitStack() as stack:
        info = LockInfo.of_this_process(control_socket=settings.control_socket)
        lock = stack.enter_context(ControllerLock.acquire(settings.state_dir, info))
        nanny = start_nanny(
            settings.child_environment(os.environ),
            state_id=state_id(settings),
            preload=preloads(settings.upstreams, os.environ),
        )
        stack.callback(_end, nanny)
        # Imported here, as everything that follows: meanwhile the fork server imports its own.
        with unseen(*CONSOLES):
            from peen.log import configure_logging, get_logger

        stack.enter_context(
            configure_logging(
                level, settings.log_format, settings.log_add_source, settings.log_directory,
                settings.log_retention_days, entropy, stream=stream,
            )
        )  # fmt: skip
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for warning in (*settings.warnings, *([few_files] if few_files is not None else [])):
            get_logger(__name__).warning(warning)
        yield Prepared(nanny, lock)


def _end(nanny: NannyProcess) -> None:
    """Close the channel, which ends the fork server and all that it started. Nothing happens if it has ended."""
    nanny.channel.close()
    end_nanny(nanny.popen)
