"""What a forked process does until it is a worker: leave the fork server's things behind, wait, become it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Final, NoReturn, TextIO

import trio

from peen.wire.launch import MAX_LAUNCH_BYTES, LaunchDocument, decode_launch

from .orders import Spawn, decode_order, receive
from .proc import end_descendants

EXIT_BROKEN: Final = 70  # the worker crashed
EXIT_NO_PLACE: Final = 71  # its directory cannot be entered
EXIT_NO_DOCUMENT: Final = 65  # its launch document cannot be read

TERMINAL_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_FIRST_FD: Final = 3
_PAST_ALL_FDS: Final = 2**31 - 1

Entry = Callable[[LaunchDocument], int]


def become_subreaper(name: str) -> None:
    """Orphans below this process become its children, and `ps` shows it as `name` (15 bytes at most)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")
    libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def load_entry(name: str) -> Entry:
    """The function that `package.module:function` names."""
    module, _, function = name.partition(":")
    entry: Entry = getattr(import_module(module), function)
    return entry


def live(channel: socket.socket, mask: set[signal.Signals], *, warm: bool) -> NoReturn:
    """Everything a forked process does. `mask` is the signal mask to restore once signals act normally again."""
    status = EXIT_BROKEN
    try:
        os.setsid()
        _close_all_but(channel.fileno())
        _restore_signals(mask)
        become_subreaper("peen-worker")
        if warm:
            _warm_up()
        order = receive(channel)
        if order is None:  # the fork server is gone, and this process was never anybody's worker
            os._exit(0)
        status = _work(decode_order(order[0]), order[1])
    except BaseException:
        traceback.print_exc()
    finally:
        end_descendants()  # the fork server would see to it, but it may be what has died
        _flush()
        # Not sys.exit: what the fork server put on the stack and into atexit is not this process's to end.
        os._exit(status & 0xFF)


def _work(order: object, fds: tuple[int, ...]) -> int:
    assert isinstance(order, Spawn), order
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    os.closerange(_FIRST_FD, _PAST_ALL_FDS)
    sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)  # the ones from before think that they can seek
    cwd = order.cwd.encode("latin-1")
    try:
        os.chdir(cwd)
    except OSError as exc:
        print(f"cannot enter {os.fsdecode(cwd)}: {exc.strerror}", file=sys.stderr)
        return EXIT_NO_PLACE
    os.environb.clear()
    os.environb.update({k.encode("latin-1"): v.encode("latin-1") for k, v in order.environment.items()})
    document = _read_document()
    if document is None:
        return EXIT_NO_DOCUMENT
    entry = load_entry(order.entry)
    gc.enable()
    try:
        return entry(document)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_BROKEN if leaving.code else 0


def _lines_to(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _read_document() -> LaunchDocument | None:
    """The launch document from stdin, which is /dev/null afterwards; None, with a word on stderr, if it is unfit."""
    data = bytearray()
    while len(data) <= MAX_LAUNCH_BYTES and (piece := os.read(0, MAX_LAUNCH_BYTES)):
        data += piece
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if len(data) > MAX_LAUNCH_BYTES:
        print(f"the launch document is longer than {MAX_LAUNCH_BYTES} bytes", file=sys.stderr)
        return None
    try:
        return decode_launch(bytes(data))
    except ValueError as exc:  # msgspec's errors are ValueErrors; their text never quotes a value
        print(f"the launch document cannot be read: {exc}", file=sys.stderr)
        return None


def _close_all_but(fd: int) -> None:
    """A copy of the fork server's channel in a child would hide the server's death from the controller."""
    os.closerange(_FIRST_FD, fd)
    os.closerange(fd + 1, _PAST_ALL_FDS)


def _restore_signals(mask: set[signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (*TERMINAL_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _warm_up() -> None:
    """Run an empty loop once: touches the pages and makes the lazy objects that every worker needs first."""
    trio.run(trio.lowlevel.checkpoint)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it any more
