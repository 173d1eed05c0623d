"""A controller with a worker and two of its commands, to be killed: prints all pids below it, then waits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import structlog
import trio
from space_kit import ask, running

from peen.space.proc import all_stats, descendants


async def main(root: Path) -> None:
    async with running(root, spares=1, state_id=f"killed-{os.getpid()}") as world:
        link = await world.supervisor.ensure(world.place)
        await ask(link, "orphan")
        await ask(link, "orphan bare")
        print(json.dumps(await all_five()), flush=True)
        await trio.sleep_forever()


async def all_five() -> list[int]:
    """Fork server, spare, worker and two commands; the spare is forked in a quiet moment, so it is looked for."""
    for _ in range(200):
        below = descendants([os.getpid()], all_stats())
        if len(below) == 5:
            return below
        await trio.sleep(0.05)
    raise AssertionError(below)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is for the pids
    trio.run(main, Path(sys.argv[1]))
