"""`peen doctor` itself: looks, in the order in which things depend on each other, and tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from peen.cli.client import CallRefused, Client, ConnectionLost
from peen.cli.discovery import ask_upstreams
from peen.cli.doctor.finding import Finding, fail, ok, warn
from peen.cli.doctor.machine import look_at_machine, look_at_newest
from peen.cli.doctor.places import look_at_places
from peen.cli.doctor.providers import look_at_upstreams
from peen.cli.doctor.running import ANSWER_S, look_at_controller
from peen.cli.ends import COMPLETED, FAILED, CommandEnds
from peen.cli.reach import endpoint
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.control.lock import LockInfo, read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.errors import ConfigurationInvalid
from peen.settings import Settings
from peen.wire.rest import ModelList

ASK_S: Final = 15.0
"""How long an upstream may take to list its models."""


@click.command()
def doctor() -> int:
    """Look for what is wrong, and say how to mend it. Changes nothing.

    A line a finding: ok, warn (it works, but you should know) or fail. Works with and without a running controller.

    Exit codes: 0 nothing fails, 1 something does.
    """
    has_failed = False
    for finding in examine(SystemEntropy()):
        has_failed = has_failed or finding.level == "fail"
        echo(finding.line())
    return FAILED if has_failed else COMPLETED


def examine(entropy: Entropy) -> Iterator[Finding]:
    """Everything, as it is found. What settings are needed for is left out while they are wrong."""
    try:
        settings = load()
    except ConfigurationInvalid as wrong:
        for line in str(wrong).splitlines():
            yield fail("settings", line, mend="correct it where it is set, in the environment or in peen.yaml")
    except CommandEnds as end:
        yield fail("settings", str(end), mend="do that first")
    else:
        yield from _examine(settings, entropy)
    yield from look_at_machine(os.environ, Path(os.path.expanduser("~")), entropy)


def _examine(settings: Settings, entropy: Entropy) -> Iterator[Finding]:
    for text in settings.warnings:
        yield warn("settings", text, mend="correct its name, or unset it")
    if not settings.warnings:
        yield ok("settings", "all are valid")
    yield from look_at_places(settings)
    try:
        holder = read_lock(settings.state_dir)
    except ConfigurationInvalid as wrong:
        yield fail("controller", wrong.problem, mend="remove that file")
        holder = None
    except OSError as error:
        yield fail("controller", f"its lock cannot be read: {error.strerror}", mend="mend the state directory")
        holder = None
    yield from look_at_controller(settings, holder, entropy)
    offers = ask_upstreams(settings, entropy, within_s=ASK_S)
    yield from look_at_upstreams(settings, offers, _listed(settings, holder, entropy))
    if settings.state_dir.is_dir():
        yield look_at_newest(settings.state_dir, entropy.now_ms())


def _listed(settings: Settings, holder: LockInfo | None, entropy: Entropy) -> set[str] | None:
    """Upstreams whose models the running controller has; None if that is not known."""
    if holder is None:
        return None
    try:
        answer = Client(endpoint(settings, holder), entropy, call_s=ANSWER_S).get("/api/v1/models")
    except (ConnectionLost, CallRefused):
        return None
    return {model.connection_name for model in msgspec.json.decode(answer, type=ModelList).models}
