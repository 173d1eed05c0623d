"""The work on LangGraph with its SQLite saver: `python -m bench.peers.langgraph_steps [--whole]`.

One node that goes back to itself, `durability="sync"`. The context is a DeltaChannel, which saves what was appended;
with `--whole` it is a channel that adds lists, of which every checkpoint holds the whole value.
"""

from __future__ import annotations

import operator
import sqlite3
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel  # type: ignore[import-not-found]
from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]
from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]

from bench.peers.work import WARM_UP_STEPS, Clock, Message, check, message, parser, tell


def extend(context: list[Message], writes: Sequence[list[Message]]) -> list[Message]:
    return [*context, *(appended for write in writes for appended in write)]


class Appended(TypedDict):
    """A checkpoint holds what the step appended."""

    context: Annotated[list[Message], DeltaChannel(extend)]


class Whole(TypedDict):
    """A checkpoint holds the whole context."""

    context: Annotated[list[Message], operator.add]


def append(state: dict[str, list[Message]]) -> dict[str, list[Message]]:
    return {"context": [message(len(state["context"]))]}


def build(saver: Any, steps: int, *, whole: bool) -> Any:
    """A graph of `steps` steps."""
    graph = StateGraph(Whole if whole else Appended)
    graph.add_node("append", append)
    graph.add_edge(START, "append")
    graph.add_conditional_edges("append", lambda now: "append" if len(now["context"]) < steps else END)
    return graph.compile(checkpointer=saver)


def run(saver: Any, steps: int, *, whole: bool) -> int:
    """Messages in the context after the last step."""
    settings = {"configurable": {"thread_id": str(steps)}, "recursion_limit": steps + 1}
    found = build(saver, steps, whole=whole).invoke({"context": []}, settings, durability="sync")
    return len(found["context"])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--whole", action="store_true")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        connection = sqlite3.connect(Path(name) / "langgraph.sqlite", check_same_thread=False)
        connection.execute("PRAGMA synchronous=FULL")
        saver = SqliteSaver(connection)
        run(saver, WARM_UP_STEPS, whole=arguments.whole)
        with Clock() as clock:
            found = run(saver, arguments.steps, whole=arguments.whole)
        connection.close()
    check(found, arguments.steps)
    tell(arguments.steps, clock.seconds, version=version("langgraph"))


if __name__ == "__main__":
    main()
