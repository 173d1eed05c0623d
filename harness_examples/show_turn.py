"""Reads the frames of `peen exec --stream-json` on standard input and prints the turn for people.

A client in one page: fold the content blocks, show tool calls and results, stop at the acknowledgement.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> int:
    state = 1
    for line in sys.stdin:
        frame = json.loads(line)
        show(frame)
        if frame["type"] == "turn.completed":
            state = 0
    return state


def show(frame: dict[str, Any]) -> None:
    data = frame["data"]
    match frame["type"]:
        case "turn.started":
            print(f"  turn started with {data['model']}")
        case "tool.use":
            print(f"  -> {data['name']} {json.dumps(data['arguments'])}")
        case "tool.result":
            mark = "failed" if data["isError"] else "ok"
            print(f"  <- {data['name']} {mark}: {first_line(data['content'])}")
        case "turn.completed":
            print("  answer:")
            for line in data["text"].splitlines():
                print(f"    {line}")
        case "turn.failed":
            print(f"  failed: {data['reason']}: {data.get('error', '')}")


def first_line(text: str, limit: int = 100) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
