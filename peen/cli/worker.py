"""`peen worker`: a session's worker process, started with its launch document on standard input."""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec

from peen.cli.ends import REFUSED, CommandEnds

MAX_DOCUMENT_BYTES: Final = 65_536


@click.command(hidden=True)
def worker() -> int:
    """Run a session's worker. For the controller; people have no use for it."""
    from peen.wire.launch import decode_launch
    from peen.worker.main import worker_main

    if sys.stdin is None or sys.stdin.isatty():
        raise CommandEnds("a worker gets its launch document on standard input, from the controller", REFUSED)
    data = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise CommandEnds(f"the launch document is larger than {MAX_DOCUMENT_BYTES} bytes", REFUSED)
    try:
        document = decode_launch(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommandEnds(f"the launch document cannot be read: {error}", REFUSED) from None
    return worker_main(document)
