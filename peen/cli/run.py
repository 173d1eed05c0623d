"""`peen run`: the controller, in the foreground, until a signal stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from peen.cli.ends import FAILED, INTERRUPTED, CommandEnds
from peen.cli.startup import load
from peen.entropy import Entropy, SystemEntropy
from peen.errors import PeenError
from peen.settings import Settings

if TYPE_CHECKING:
    from peen.control.controller import Controller


@click.command()
def run() -> int:
    """Run the controller in the foreground.

    SIGINT, SIGTERM and SIGHUP stop it in order; a second signal ends it at once.

    Exit codes: 0 clean stop, 1 a wrong setting, a second controller, a start that failed, or a stop that could not
    store the end of a turn.
    """
    try:
        return 0 if serve(load(), SystemEntropy()) else FAILED
    except PeenError as error:
        raise CommandEnds(str(error), FAILED) from error
    except KeyboardInterrupt:  # before the signals were ours
        return INTERRUPTED


def serve(settings: Settings, entropy: Entropy) -> bool:
    """Be the controller; False if its stop could not store the end of a turn. Raises: PeenError if it cannot start."""
    # Imported here: the event loop takes longer than most other commands as a whole.
    from peen.cli.process import prepared_process

    with prepared_process(settings, entropy, stream=None, level=settings.log_level) as prepared:
        import trio

        from peen.cli.hosting import StopRequest, host_controller
        from peen.log import get_logger

        log, request = get_logger(__name__), StopRequest()

        async def body(running: Controller) -> None:
            log.info(
                "serving", api=f"{running.address}/api/v1", socket=f"{running.address}/ws/v1",
                workspace_root=settings.workspace_root, state=settings.state_dir,
            )  # fmt: skip
            # No deadline: this is what the process is for, until a signal comes.
            await request.asked.wait()

        async def controller() -> bool:
            return await host_controller(settings, prepared, body, request, tcp=True, entropy=entropy)

        log.info(settings.upstream_choice)
        is_recorded = trio.run(controller)
        log.info("stopped")
        return is_recorded
