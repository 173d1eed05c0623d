"""The files of the published folder, and writing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from peen.wire import launch, rest, worker
from peen.wire.operations import OPERATIONS
from peen.wire.publish.asyncapi import asyncapi_document
from peen.wire.publish.envelope import Schema
from peen.wire.publish.frames import client_frames, server_frames
from peen.wire.publish.golden import socket_golden
from peen.wire.publish.goldenworker import worker_golden
from peen.wire.publish.guide import readme
from peen.wire.publish.openapi import openapi_document
from peen.wire.publish.schemas import Schemas, bundle, stand_alone
from peen.wire.publish.workerdoc import FRAMES, worker_document

GOLDEN: Final = "golden/"
WIDTH: Final = 120


class GoldenChanged(Exception):
    """Published examples would change. `names` are their files; nothing was written."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"golden frames would change: {', '.join(names)}")
        self.names = names


def files() -> dict[str, bytes]:
    """Path below the folder -> content. The same for the same code."""
    return {
        "README.md": readme().encode(),
        "asyncapi.yaml": to_yaml(asyncapi_document()),
        "openapi.yaml": to_yaml(openapi_document()),
        "worker.yaml": to_yaml(worker_document()),
        **{f"schemas/{name}.json": _pretty(schema) for name, schema in schema_documents().items()},
        **{f"{GOLDEN}{name}.json": frame + b"\n" for name, frame in {**socket_golden(), **worker_golden()}.items()},
    }


def schema_documents() -> dict[str, Schema]:
    """Name -> a JSON Schema that stands alone."""
    answers = {operation.answer for operation in OPERATIONS if not operation.media}
    bodies = {operation.body for operation in OPERATIONS if operation.body is not None}
    rest_structs = _reachable(answers | bodies | {rest.ErrorBody})
    launched: set[type[Struct]] = {launch.LaunchDocument}
    methods = {struct for table in (worker.CALLS, worker.COMMANDS) for pair in table.values() for struct in pair}
    worker_structs = launched | methods | {frame for frames in FRAMES.values() for frame in frames}
    return {
        **{f"rest.{name}": bundle(struct) for name, struct in sorted(rest_structs.items())},
        **_frame_schemas(),
        **{f"worker.{s.__name__}": bundle(s) for s in sorted(worker_structs, key=lambda s: s.__name__)},
    }


def write(folder: Path, *, change_golden: bool) -> list[str]:
    """Bring `folder` up to date; the names that changed. Files of structures that are gone are removed.

    Raises: GoldenChanged if an example that exists would change or go, and `change_golden` is False.
    """
    wanted = files()
    kept = ["README.md", *(f"{kind}.yaml" for kind in ("openapi", "asyncapi", "worker"))]
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    old = {name: path.read_bytes() for name, path in found.items() if "/" in name or name in kept}
    changed = sorted(name for name in {*wanted, *old} if wanted.get(name) != old.get(name))
    touched = [name for name in changed if name.startswith(GOLDEN) and name in old]
    if touched and not change_golden:
        raise GoldenChanged(touched)
    for name in changed:
        path = folder / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[name])
    return changed


def _frame_schemas() -> dict[str, Schema]:
    documents = {}
    for frame in [*client_frames(), *server_frames()]:
        schemas = Schemas("#/$defs/")
        documents[f"frame.{frame.type}"] = stand_alone(frame.type, frame.schema(schemas), schemas)
    return documents


def _reachable(structs: set[type[Struct]]) -> dict[str, type[Struct]]:
    schemas = Schemas("")
    for struct in structs:
        schemas.ref(struct)
    return schemas.structs


class _Dumper(yaml.SafeDumper):
    """Repeats what occurs twice instead of naming it, and keeps paragraphs readable."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(document: dict[str, Any]) -> bytes:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH).encode()


def _pretty(document: Schema) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
