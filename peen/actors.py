"""How an actor's body is run: its failure is its own, is recorded, and never cancels a sibling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
import trio

log = structlog.get_logger(__name__)

RECORDING_S = 10.0
"""Seconds that recording a failure may take."""


async def supervised(
    body: Callable[[], Awaitable[None]],
    *,
    name: str,
    failed: Callable[[Exception], Awaitable[None]] | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> None:
    """Run `body`; an exception in it is logged, handed to `failed`, and goes no further.

    One of the `expected` kinds is part of how such an actor may end, and no error in the log.

    `trio.Cancelled` and other BaseExceptions pass. `failed` runs shielded for at most `RECORDING_S`, so that a
    failure is recorded even while the actor's owner is being cancelled.
    """
    rest: BaseException | None = None
    try:
        await body()
        return
    except Exception as caught:
        fault = caught
    except BaseExceptionGroup as group:
        # A cancellation and a failure at the same moment: the one passes, the other is recorded.
        faults, rest = group.split(Exception)
        if faults is None:
            raise
        fault = faults
    if any(holds(fault, kind) for kind in expected):
        log.info("actor ended", actor=name, cause=str(leaf_of(fault)))
    else:
        log.error("actor failed", actor=name, exc_info=fault)
    if failed is not None:
        await _record(failed, fault, name)
    if rest is not None:
        raise rest


async def _record(failed: Callable[[Exception], Awaitable[None]], fault: Exception, name: str) -> None:
    with trio.move_on_after(RECORDING_S, shield=True) as recording:
        try:
            await failed(fault)
        except Exception:
            log.exception("failure could not be recorded", actor=name)
    if recording.cancelled_caught:
        log.error("failure could not be recorded in time", actor=name, seconds=RECORDING_S)


@contextmanager
def lone_exceptions() -> Iterator[None]:
    """Let one exception leave nested nurseries as itself: the nurseries are the callee's own affair.

    A group with several members passes as it is: none of them is lost.
    """
    lone: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        lone = group
        while isinstance(lone, BaseExceptionGroup) and len(lone.exceptions) == 1:
            lone = lone.exceptions[0]
        if isinstance(lone, BaseExceptionGroup):
            raise
    if lone is not None:
        raise lone


def leaf_of(fault: BaseException) -> BaseException:
    """The first exception inside nested groups, for a text that people read."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault


def holds(fault: BaseException, kind: type[BaseException]) -> bool:
    """Whether `fault` is of `kind`, or is a group with one among its members."""
    if isinstance(fault, BaseExceptionGroup):
        return any(holds(member, kind) for member in fault.exceptions)
    return isinstance(fault, kind)
