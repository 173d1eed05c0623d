"""The work on DBOS with SQLite, as it is installed: `python -m bench.peers.dbos_steps [--whole]`.

A step is given the context and returns the message, which is what DBOS saves of it. With `--whole` it returns the
context, as a step must whose successors are to see it unchanged.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dbos import DBOS  # type: ignore[import-not-found]
from sqlalchemy import Engine, event  # type: ignore[import-not-found]

from bench.peers.work import WARM_UP_STEPS, Clock, Message, check, message, parser, tell


def append_message(context: list[Message]) -> Message:
    return message(len(context))


def append_whole(context: list[Message]) -> list[Message]:
    return [*context, message(len(context))]


def sync_fully(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--whole", action="store_true")
    arguments = options.parse_args()
    event.listen(Engine, "connect", sync_fully)
    step = DBOS.step()(append_whole if arguments.whole else append_message)

    def run(count: int) -> int:
        context: list[Message] = []
        for _ in range(count):
            context = step(context) if arguments.whole else [*context, step(context)]
        return len(context)

    workflow = DBOS.workflow()(run)
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{Path(name) / 'dbos.sqlite'}"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        DBOS.launch()
        workflow(WARM_UP_STEPS)
        with Clock() as clock:
            found = workflow(arguments.steps)
        DBOS.destroy()
    check(found, arguments.steps)
    tell(arguments.steps, clock.seconds, version=version("dbos"))


if __name__ == "__main__":
    main()
