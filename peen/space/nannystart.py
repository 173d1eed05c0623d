"""Starting a fork server, which comes before nearly everything else: this module imports little."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import peen

from .proc import MARKER

END_S: Final = 12.0  # it gives its descendants 10 s

WORKER_ENTRY: Final = "peen.worker.main:worker_main"


@dataclass(frozen=True)
class NannyProcess:
    """A fork server that was started and not yet spoken to."""

    popen: subprocess.Popen[bytes]
    channel: socket.socket


def start_nanny(
    environment: Mapping[str, str],
    *,
    state_id: str,
    entry: str = WORKER_ENTRY,
    spares: int = 1,
    preload: Sequence[str] = (),
) -> NannyProcess:
    """Start a fork server; it imports while the caller goes on, and takes orders from the first moment.

    `environment` and the marker of `state_id` are all it gets, and what /proc shows of every worker: so it must hold
    no secret that a worker may not have. `spares` processes are kept forked, waiting for their worker. `preload` names
    what is loaded before the first fork, so that all workers share it: `module`, or `module:function` to be called.
    Best called before the controller starts threads or opens databases.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        popen = subprocess.Popen(
            # -P: a file in the current directory must not pass for a library.
            [sys.executable, "-P", "-m", "peen.space.nanny", str(theirs.fileno()), entry, str(spares), *preload],
            env={**_with_peen(environment), MARKER: f"{state_id}:nanny"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # a Ctrl-C at the terminal is the controller's to handle
        )
    return NannyProcess(popen, ours)


def _with_peen(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with a PYTHONPATH by which a Peen that is not installed is found, as in a checkout."""
    home = str(Path(peen.__file__).parent.parent)
    if home in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(environment)
    given = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{home}{os.pathsep}{given}" if given else home}


def end_nanny(popen: subprocess.Popen[bytes]) -> None:
    """Block until a fork server whose channel is closed has ended; killed after 12 s. Reaps it.

    It is told to go on first: one that was stopped (SIGSTOP) would never learn of the end.
    """
    if popen.poll() is None:
        popen.send_signal(signal.SIGCONT)
    if not wait_for_exit(popen, END_S):
        popen.kill()
    popen.wait()


def wait_for_exit(popen: subprocess.Popen[bytes], within_s: float) -> bool:
    """Block until the process has ended, for at most `within_s` seconds; True if it has. Reaps it then.

    Popen.wait with a time limit looks only every 50 ms.
    """
    if popen.poll() is not None:
        return True
    handle = os.pidfd_open(popen.pid)
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(within_s * 1000)
    finally:
        os.close(handle)
    return popen.poll() is not None
