"""A controller inside this process, and how signals stop it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from peen.actors import lone_exceptions
from peen.cli.process import Prepared
from peen.control.controller import Controller, controller
from peen.entropy import Entropy
from peen.log import get_logger
from peen.settings import Settings

log = get_logger(__name__)

ABANDON_S: Final = 20.0
"""Seconds beyond PEEN_SHUTDOWN_TIMEOUT, for the end of the fork server, after which a stop that hangs is cut off."""

GC_WHILE_SERVING: Final = (700, 10, 10)
"""Python's own thresholds."""


@dataclass(slots=True)
class StopRequest:
    """What signals asked for. `number` is the first of them."""

    number: int | None = None
    asked: trio.Event = field(default_factory=trio.Event)
    is_ready: bool = False
    """The controller is up, so that a stop is orderly; before, a signal cancels its start."""


Body = Callable[[Controller], Awaitable[None]]


async def host_controller(
    settings: Settings, prepared: Prepared, body: Body, request: StopRequest, *, tcp: bool, entropy: Entropy
) -> bool:
    """Run a controller for as long as `body` runs, which it does not if a signal comes before it is ready.

    The first SIGINT, SIGTERM or SIGHUP sets `request.asked`, on which `body` is to return; the second ends the process
    at once, and so does a stop that hangs. False if the stop could not store the end of a turn.
    Raises: what the controller's start raises, and what `body` raises.
    """
    start = trio.CancelScope()
    is_recorded = True
    with lone_exceptions():
        async with trio.open_nursery() as nursery:
            await nursery.start(_obey_signals, request, start)
            try:
                with start:
                    async with controller(
                        settings, environ=os.environ, lock=prepared.lock, nanny=prepared.nanny, tcp=tcp, entropy=entropy
                    ) as running:
                        request.is_ready = True
                        _settle_memory()
                        try:
                            await body(running)
                        finally:
                            nursery.start_soon(_cut_off_after, settings.shutdown_timeout_ms / 1000 + ABANDON_S)
                    is_recorded = not running.core.unrecorded
            finally:
                nursery.cancel_scope.cancel()
    return is_recorded


def _settle_memory() -> None:
    """What a start has made stays until the end: no collection looks at it again, and they come as often as usual."""
    gc.freeze()
    gc.set_threshold(*GC_WHILE_SERVING)


async def _obey_signals(
    request: StopRequest, start: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # started by nohup, it outlives its terminal
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:  # no deadline: most controllers are never stopped by a signal
            if request.number is not None:
                log.warning("second signal: ending at once", signal=signal.Signals(number).name)
                _end_process(128 + number)
            request.number = number
            request.asked.set()
            if not request.is_ready:
                start.cancel()


async def _cut_off_after(limit_s: float) -> None:
    await trio.sleep(limit_s)
    log.error("the stop took too long; what still runs is ended", seconds=limit_s)
    _end_process(1)


def _end_process(code: int) -> None:
    # The system frees the lock, and the fork server, whose channel closes, ends every worker.
    os._exit(code)
