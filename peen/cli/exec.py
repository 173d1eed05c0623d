"""`peen exec`: one message, one turn, one answer; in a running controller, or in one of its own."""

from __future__ import annotations

import sys
import time
from typing import Final, get_args

import click

from peen.cli.elsewhere import Elsewhere
from peen.cli.ends import NO_CONTROLLER, UNFINISHED, CommandEnds, NotSent, ServesOthers
from peen.cli.order import Form, Order, absolute, parse_timeout_s, read_images, read_prompt
from peen.cli.screen import Screen
from peen.cli.startup import load
from peen.control.lock import LockInfo, read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.errors import ControllerRunning
from peen.settings import Settings
from peen.wire.client import Effort

START_S: Final = 30.0
"""Seconds that a controller which holds the lock may take until it answers."""
RETRY_S: Final = 0.05


@click.command("exec")
@click.argument("prompt", required=False)
@click.option("-w", "--workspace", metavar="DIR", default=".", help="Directory to work in (default: this one).")
@click.option("-m", "--model", metavar="MODEL", help="Model for this turn, as upstream/model.")
@click.option("--effort", type=click.Choice(get_args(Effort)), help="How much the model should reason.")
@click.option("--image", "images", metavar="F", multiple=True, help="An image to send along; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the answer alone.")
@click.option("--stream-json", is_flag=True, help="Print every frame as one line of JSON.")
@click.option("--timeout", metavar="D", help="Give up after this long, such as 90s or 10m.")
def exec_(
    prompt: str | None,
    workspace: str,
    model: str | None,
    effort: Effort | None,
    images: tuple[str, ...],
    as_json: bool,
    stream_json: bool,
    timeout: str | None,
) -> int:
    """Run one turn and print its answer.

    PROMPT may be `-` for standard input, which is also read when there is no PROMPT and something is piped in.

    Exit codes: 0 completed, 1 failed, 2 refused or wrong usage, 3 cancelled, 4 interrupted or given up, 5 no controller
    could be started, 130 SIGINT.
    """
    if as_json and stream_json:
        raise click.UsageError("--json and --stream-json exclude each other")
    form: Form = "json" if as_json else "stream-json" if stream_json else "text"
    entropy = SystemEntropy()
    timeout_s = parse_timeout_s(timeout)
    text = read_prompt(
        prompt,
        None if sys.stdin is None else sys.stdin.buffer,
        is_terminal=sys.stdin is not None and sys.stdin.isatty(),
    )
    settings = load()
    order = Order(
        frame_id=str(entropy.uuid4()),
        prompt=text,
        workspace=absolute(workspace),
        model=model,
        effort=effort,
        images=read_images(images, max_images=settings.max_images_per_message, max_bytes=settings.max_image_bytes),
        deadline_s=None if timeout_s is None else entropy.monotonic_s() + timeout_s,
    )
    screen = Screen.of_process(form, entropy)
    try:
        return carry_out(order, settings, screen, entropy)
    finally:
        screen.clear()


def carry_out(order: Order, settings: Settings, screen: Screen, entropy: Entropy) -> int:
    """Borrow the controller that runs, or host one; the exit code.

    Between a look at the lock and the next step, controllers may come and go: then the other way is taken. One that
    another command hosts for other directories is waited for, however long it takes.
    """
    elsewhere = Elsewhere(order, settings, screen, entropy)
    until_s = entropy.monotonic_s() + START_S
    last_pid: int | None = None
    while True:
        holder = read_lock(settings.state_dir)
        if holder is not None and holder.pid != last_pid:
            # Controllers come and go: the patience is for one that does not answer.
            last_pid, until_s = holder.pid, entropy.monotonic_s() + START_S
        try:
            if holder is not None:
                return borrow(order, settings, screen, entropy, holder)
            return host(order, settings, screen, entropy)
        except ServesOthers:
            assert holder is not None
            elsewhere.wait(holder)
            last_pid, until_s = None, entropy.monotonic_s() + START_S
            continue
        except (NotSent, ControllerRunning) as problem:
            now_s = entropy.monotonic_s()
            if order.deadline_s is not None and now_s >= order.deadline_s:
                raise CommandEnds("the time of --timeout is over; nothing was sent", UNFINISHED) from problem
            if now_s >= until_s:
                held = "" if holder is None or holder.pid is None else f" (process {holder.pid})"
                raise CommandEnds(
                    f"the controller that uses {settings.state_dir}{held} does not answer: {problem}", NO_CONTROLLER
                ) from problem
        screen.progress("waiting for the controller")
        time.sleep(RETRY_S)


def borrow(order: Order, settings: Settings, screen: Screen, entropy: Entropy, holder: LockInfo) -> int:
    """Hand the turn to the controller that runs; the exit code. Raises: NotSent, CallRefused, CommandEnds."""
    # Imported here: a controller of our own starts its fork server sooner without it.
    from peen.cli.borrow import BorrowedTurn

    return BorrowedTurn(order, settings, screen, entropy).run(holder)


def host(order: Order, settings: Settings, screen: Screen, entropy: Entropy) -> int:
    """Be the controller for one turn; the exit code. Raises: ControllerRunning if another process was faster."""
    # Imported here: the event loop and all behind it take longer than a whole borrowed turn.
    from peen.cli.process import prepared_process

    # Only errors: standard error is for people here, and the audit files have everything.
    with prepared_process(settings, entropy, stream=sys.stderr, level="error") as prepared:
        from peen.cli.host import host_turn

        turn = host_turn(order, settings, screen, entropy, prepared)
    return turn.end()
