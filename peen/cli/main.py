"""`peen` itself: finds the command, runs it, and turns what it raises into words and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from peen import __version__
from peen.cli.ends import COMPLETED, FAILED, INTERRUPTED, CommandEnds, code_of, say
from peen.cli.lazy import LazyGroup
from peen.cli.streams import OutputFailed, is_unread
from peen.errors import PeenError

_COMMANDS: Final = {
    "run": "peen.cli.run:run",
    "exec": "peen.cli.exec:exec_",
    "session": "peen.cli.session:session",
    "job": "peen.cli.job:job",
    "stop": "peen.cli.stop:stop",
    "control": "peen.cli.control:control",
    "models": "peen.cli.models:models",
    "doctor": "peen.cli.doctor.command:doctor",
    "prune": "peen.cli.prune:prune",
    "worker": "peen.cli.worker:worker",
    "dev": "peen.cli.dev:dev",
}

GC_WHILE_STARTING: Final = 100_000
"""New objects between two collections, until a controller serves; commands that make none rarely reach it."""


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="peen", message="%(prog)s %(version)s")
def cli() -> None:
    """A durable coding-agent service: everything is stored before it is shown.

    Settings come from the environment and from peen.yaml in the configuration directory. Nothing needs to be set to
    try it out: `peen exec "list"`.
    """


def program() -> NoReturn:
    """`peen` as a process: `main`, then the end without taking the interpreter apart, which would need 10 to 40 ms.

    Whatever has an end of its own to see to (databases, logs, fork servers) has done so when `main` returns.
    """
    # Imports make objects that stay: looking through them again and again finds nothing, and takes a tenth of a start.
    gc.set_threshold(GC_WHILE_STARTING, *gc.get_threshold()[1:])
    try:
        code = main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # ValueError: it was closed
            code = code or FAILED
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (the process' own unless given); its exit code."""
    try:
        code = cli.main(arguments, prog_name="peen", standalone_mode=False)
    except click.ClickException as refused:
        refused.show()
        return refused.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.exceptions.Exit as done:
        return done.exit_code
    except CommandEnds as end:
        say(str(end))
        return end.code
    except PeenError as error:
        say(str(error))
        return code_of(error)
    except OutputFailed as lost:
        return _unprinted(lost)
    except SystemExit:  # click's own way to end when nobody reads its help, and then it keeps the reason to itself
        if not is_unread(1):
            raise
        return _unprinted(OutputFailed(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))))
    except OSError as failure:
        if _is_of_click(failure):
            return _unprinted(OutputFailed(failure))
        if failure.errno != errno.ENOSPC:  # a bug
            raise
        say(f"{failure.strerror}: free some in the directories of PEEN_STATE_DIR and PEEN_LOG_DIRECTORY")
        return FAILED
    return code if isinstance(code, int) else 0


def _unprinted(lost: OutputFailed) -> int:
    """Who reads has seen enough: that is no failure. Anything else is one."""
    lost.silence()
    if lost.is_unread:
        return COMPLETED
    say(str(lost))
    return FAILED


def _is_of_click(failure: OSError) -> bool:
    """It comes from printing a help text, which click does by itself."""
    *_, (frame, _) = traceback.walk_tb(failure.__traceback__)
    return bool(frame.f_globals["__name__"] == "click.utils")
