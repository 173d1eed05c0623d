"""`peen prune`: remove the sessions that nobody has used for long."""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec

from peen.cli.client import CallRefused
from peen.cli.ends import FAILED, REFUSED, CommandEnds
from peen.cli.reach import running_controller
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.duration import format_duration_ms, parse_duration_ms
from peen.entropy import SystemEntropy
from peen.wire.rest import Prune, Pruned, encode

PRUNE_S: Final = 3600.0
"""Every session is removed in many small steps, one after the other."""


@click.command()
@click.option("--older-than", required=True, metavar="D", help="How long a session was left alone, such as 720h.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def prune(older_than: str, yes: bool) -> None:
    """Remove every session that was not used for D, for good. Their directories are left alone.

    Sessions that run stay, and so do sessions with paused work. Asks first; where there is no terminal to ask on, it
    needs --yes. Needs a running controller.
    """
    try:
        age_ms = parse_duration_ms(older_than)
    except ValueError as wrong:
        raise CommandEnds(f"--older-than: {wrong}", REFUSED) from wrong
    if age_ms <= 0:
        raise CommandEnds("--older-than: must be longer than 0s", REFUSED)
    client = running_controller(load(), SystemEntropy(), call_s=PRUNE_S)
    if not yes:
        _confirm(format_duration_ms(age_ms))
    try:
        answer = client.post("/api/v1/maintenance/prune", encode(Prune(older_than=older_than)))
    except CallRefused as refused:
        raise CommandEnds(str(refused), REFUSED) from refused
    told = msgspec.json.decode(answer, type=Pruned)
    echo(f"deleted={told.deleted}\tkeptPaused={told.kept_paused}\tfreedBytes={told.freed_bytes}")


def _confirm(age: str) -> None:
    """Ask on the terminal. Raises: CommandEnds unless the answer is yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandEnds("there is no terminal to ask on; to prune without being asked, add --yes", REFUSED)
    # Not click.confirm: it writes a space to standard output.
    print(f"Delete every session that was not used for {age}, for good? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandEnds("nothing was deleted", FAILED)
