"""Imports point down the actor tree. The order is the one that docs/architecture.md explains."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "peen"

ORDER = [
    "__main__",
    "cli",
    "control",
    "hub",
    "session",
    "space",
    "worker",
    "turn",
    "job",
    "execution",
    "model",
    "harness",
    "context",
    "tool",
    "feed",
    "store",
]
"""Each package may import those behind it. Model, harness, context and tool have no business with each other."""
SIBLINGS = {"model", "harness", "context", "tool"}
LEAVES = {"brand", "errors", "ids", "entropy", "duration", "patience", "log", "actors", "settings", "wire", "__init__"}
"""Anyone may import them; they import only each other."""
TESTING = "testing"


def test_no_module_imports_upwards_or_sideways() -> None:
    upward = [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {target}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, target in imports_of(path)
        if not may_import(room_of(path), target)
    ]

    assert upward == []


def test_every_package_has_its_place_in_the_order() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")}

    assert rooms - set(ORDER) - LEAVES == {TESTING}


def test_the_rule_refuses_an_upward_import() -> None:
    assert not may_import("store", "session")
    assert not may_import("tool", "model")
    assert not may_import("wire", "store")
    assert not may_import("turn", "testing")
    assert may_import("cli", "testing")
    assert may_import("session", "store")


def may_import(room: str, target: str) -> bool:
    if room in (target, TESTING) or target in LEAVES:
        return True
    if target == TESTING:
        return room == "cli"  # `peen dev` offers the public fakes
    if room in LEAVES or {room, target} <= SIBLINGS:
        return False
    return ORDER.index(target) > ORDER.index(room)


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and first part below `peen` of every import, relative ones resolved."""
    package = ["peen", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(level=0, module=str(module), names=names):
                modules = [f"peen.{name.name}" for name in names] if module == "peen" else [module]
            case ast.ImportFrom(level=level, module=module, names=names):
                base = package[: len(package) - level + 1]
                modules = [".".join([*base, *([module] if module else []), name.name]) for name in names]
            case _:
                continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "peen" and len(parts) > 1:
                yield node.lineno, "__init__" if parts[1].startswith("__") else parts[1]
