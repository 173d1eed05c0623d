"""applyPatch: several files added, deleted, changed and moved together; all of them, or none."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import trio
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.changes import require_known
from peen.tool.diff import unified_diff
from peen.tool.disk import Disk, Seen, require_writable
from peen.tool.edit_file import cut_diff, require_small, require_text
from peen.tool.entry import Entry, look_at, require_observed
from peen.tool.filesystem import read_whole
from peen.tool.hunks import place_hunks
from peen.tool.patch import Action, AddFile, DeleteFile, UpdateFile, parse_patch
from peen.tool.paths import Identity, entry_path, failure, identity_of, ledger_key, real_path, resolve_path
from peen.tool.protected import Protected
from peen.tool.splice import apply_splices
from peen.tool.together import Add, Change, Delete, Failure, Move, Update, carry_out
from peen.tool.writing import temporary_name

MAX_PATCH_BYTES: Final = 1024 * 1024
_PROBLEMS_TOLD: Final = 5


class ApplyPatchArguments(ToolArguments, frozen=True, kw_only=True):
    patch: Annotated[str, Meta(min_length=1, description="The whole patch, in the format given above.")]


class PatchedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`bytes` and `sha256` are those of the content that is there now; a deleted file has none."""

    operation: Literal["add", "update", "delete", "move"]
    outcome: Literal["applied", "partial"]
    path: str
    bytes: int
    destination: str | None = None
    sha256: str | None = None


class ApplyPatchResult(ToolResult, frozen=True, kw_only=True, omit_defaults=True):
    """`diff` is that of the updated files. With `error`, `files` are those that could not be put back."""

    files: list[PatchedFile]
    diff: str
    diff_truncated: bool
    error: str | None = None

    @property
    def is_error(self) -> bool:
        return self.error is not None


@dataclass
class _Plan:
    """One action with the real paths that it touches, and then what it takes to carry it out.

    `source` is absent for a new file, `target` for a deleted one; they are the same for an update in place.
    """

    action: Action
    path: Path
    source: Path | None
    target: Path | None
    changes: list[Change] = field(default_factory=list)
    identity: Identity | None = None
    size: int = 0  # of what is there in the end
    changed_bytes: int = 0
    diff: str = ""

    @property
    def paths(self) -> set[Path]:
        return {path for path in (self.source, self.target) if path is not None}


class ApplyPatch(Tool[ApplyPatchArguments]):
    name = "applyPatch"
    description = (
        "Change several files at once: all changes are made, or none. Format, line by line:\n"
        "*** Begin Patch\n"
        "*** Add File: PATH (then every line of the new file, each with + before it)\n"
        "*** Delete File: PATH\n"
        "*** Update File: PATH (optionally followed by *** Move to: NEW PATH; then hunks)\n"
        "@@ (begins a hunk; `@@ LINE` looks for the hunk only behind LINE, a whole line that occurs once)\n"
        " a line that stays\n"
        "-a line that goes\n"
        "+a line that comes\n"
        "*** End of File (optional: the hunk is at the end of the file)\n"
        "*** End Patch\n"
        "Hunks follow the order of the file. Lines with space or - must be whole lines copied exactly, enough of them "
        "to occur once. Existing files must have been read with readFile and be unchanged since; new paths must be "
        "free; each path is named once. Line ends, encoding and mode are kept."
    )
    arguments = ApplyPatchArguments
    repeatable = False

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()

    async def run(self, arguments: ApplyPatchArguments, context: ToolContext) -> ApplyPatchResult:
        size = len(arguments.patch.encode())
        if size > MAX_PATCH_BYTES:
            raise ToolError(
                "limit exceeded", f"the patch has {size} bytes; the limit is {MAX_PATCH_BYTES}, split it up"
            )
        plans = [_located(action, context) for action in parse_patch(arguments.patch)]
        _require_apart(plans)
        async with context.locks.holding(*(path for plan in plans for path in plan.paths)):
            await _verify(plans, context)
            changes = [change for plan in plans for change in plan.changes]
            failed = await trio.to_thread.run_sync(carry_out, changes, self._disk)
            if failed is not None:
                return _told(failed, plans)
            for plan in plans:
                _note(plan, context)
        result = ApplyPatchResult(files=[_outcome(plan) for plan in plans], diff="", diff_truncated=False)
        diff = "".join(plan.diff for plan in plans)
        kept = cut_diff(diff, result, context)
        return msgspec.structs.replace(result, diff=kept, diff_truncated=len(kept) < len(diff))


def _located(action: Action, context: ToolContext) -> _Plan:
    path = resolve_path(action.path, context)
    if isinstance(action, AddFile):
        return _Plan(action, path, None, entry_path(path))
    if isinstance(action, UpdateFile) and action.move_to is None:
        real = real_path(path)  # a link stays, and what it leads to is changed
        return _Plan(action, path, real, real)
    source = entry_path(path)
    Protected(context.workspace).require_free(source)
    if isinstance(action, DeleteFile):
        return _Plan(action, path, source, None)
    return _Plan(action, path, source, entry_path(resolve_path(action.move_to, context)))


def _require_apart(plans: Sequence[_Plan]) -> None:
    """Raises: ToolError if a path is used twice, or lies in another one."""
    used: set[Path] = set()
    for plan in plans:
        if plan.source == plan.target and isinstance(plan.action, UpdateFile) and plan.action.move_to is not None:
            raise ToolError("patch conflict", f"{path_text(str(plan.path))} is moved to itself; leave out the move")
        for path in plan.paths:
            if path in used:
                raise ToolError(
                    "patch conflict", f"{path_text(str(path))} is named twice; put its hunks under one header"
                )
        used |= plan.paths
    for path in used:
        outer = next((parent for parent in path.parents if parent in used), None)
        if outer is not None:
            raise ToolError("patch conflict", f"{path_text(str(path))} would lie in the file {path_text(str(outer))}")


async def _verify(plans: Sequence[_Plan], context: ToolContext) -> None:
    """Look at everything, and plan the changes. Raises: ToolError that names what is wrong, in all the files."""
    problems: list[ToolError] = []
    seen: dict[Identity, _Plan] = {}
    for plan in plans:
        await trio.lowlevel.checkpoint()  # small files are read without one
        try:
            await _prepare(plan, context)
            if plan.identity is not None:
                _require_other_file(seen.setdefault(plan.identity, plan), plan)
        except ToolError as exc:
            problems.append(exc)
    total = sum(plan.changed_bytes for plan in plans)
    limit = context.settings.max_write_bytes
    if not problems and total > limit:
        problems.append(ToolError("limit exceeded", f"{total} bytes would change; the limit is {limit}, split it up"))
    if problems:
        told = [problems[0].text, *(str(problem) for problem in problems[1:_PROBLEMS_TOLD])]
        if len(problems) > _PROBLEMS_TOLD:
            told.append(f"and {len(problems) - _PROBLEMS_TOLD} more")
        raise ToolError(problems[0].kind, "\n".join(told) + "\nNo file was changed.")


def _require_other_file(one: _Plan, other: _Plan) -> None:
    """Raises: ToolError if new content for one would be new content for the other."""
    if one is not other and any(isinstance(change, Update) for change in one.changes + other.changes):
        names = f"{path_text(str(one.path))} and {path_text(str(other.path))}"
        raise ToolError("patch conflict", f"{names} are two names of one file (hard links); change it once")


async def _prepare(plan: _Plan, context: ToolContext) -> None:
    """Verify one action. Raises: ToolError."""
    name = temporary_name(context.entropy)
    match plan.action:
        case AddFile(content=content):
            data = content.encode()
            require_small(len(data), plan.path, context)
            assert plan.target is not None
            _require_free(plan.target)
            plan.size = plan.changed_bytes = len(data)
            plan.changes = [Add(plan.target, data, name)]
        case DeleteFile():
            entry = await _known_entry(plan, context)
            plan.changed_bytes = entry.status.st_size
            plan.changes = [Delete(entry.real, _seen(entry), name)]
        case UpdateFile(hunks=()):
            entry = await _known_entry(plan, context)
            assert plan.target is not None
            _require_free(plan.target)
            plan.size = entry.status.st_size
            plan.changes = [Move(entry.real, plan.target, _seen(entry))]
        case UpdateFile():
            await _prepare_update(plan, plan.action, name, context)


async def _prepare_update(plan: _Plan, action: UpdateFile, name: str, context: ToolContext) -> None:
    assert plan.source is not None
    assert plan.target is not None
    moves = plan.source != plan.target
    if moves:
        _require_no_link(plan)
        _require_free(plan.target)
    shown = path_text(str(plan.path))
    file = await read_whole(plan.source, max_bytes=context.settings.max_write_bytes)
    require_text(file, shown)
    require_known(plan.source, file.sha256, None, context, file.data)
    require_writable(plan.source)
    splices = place_hunks(file.data, action.hunks, path=shown)
    grown = sum(len(splice.new) - (splice.end - splice.start) for splice in splices)
    plan.size = len(file.data) + grown
    require_small(plan.size, plan.path, context)
    seen = Seen(file.sha256, file.status)
    plan.identity = identity_of(file.status)
    plan.changed_bytes = sum(len(splice.new) + splice.end - splice.start for splice in splices)
    plan.diff = unified_diff(shown, file.data, splices)
    update = Update(plan.target, plan.source, seen, functools.partial(apply_splices, splices=splices), name)
    plan.changes = [Move(plan.source, plan.target, seen), update] if moves else [update]


async def _known_entry(plan: _Plan, context: ToolContext) -> Entry:
    """The file that is to be deleted or moved as it is. Raises: ToolError."""
    assert plan.source is not None
    _require_no_link(plan)
    limit = context.settings.max_write_bytes
    entry = await trio.to_thread.run_sync(look_at, plan.source, limit, abandon_on_cancel=True)
    if entry.is_directory:
        raise ToolError("not regular", f"{path_text(str(plan.path))} is a directory; use movePath or removePath")
    require_observed(entry, None, context)
    plan.identity = identity_of(entry.status)
    return entry


def _require_no_link(plan: _Plan) -> None:
    if plan.source is not None and plan.source.is_symlink():
        raise ToolError(
            "not regular",
            f"{path_text(str(plan.path))} is a symbolic link; name the file it leads to, or use movePath or removePath",
        )


def _require_free(target: Path) -> None:
    try:
        target.lstat()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise failure(exc, target) from exc
    raise ToolError("already exists", f"{path_text(str(target))} already exists; update it, or choose another path")


def _seen(entry: Entry) -> Seen:
    assert entry.sha256 is not None
    return Seen(entry.sha256, entry.status)


def _note(plan: _Plan, context: ToolContext) -> None:
    """What the agent knows of the files from now on."""
    ledger = context.ledger
    match plan:
        case _Plan(source=Path() as source, target=None):
            ledger.removed([ledger_key(source)])
        case _Plan(source=Path() as source, target=Path() as target) if source != target:
            ledger.moved(ledger_key(source), ledger_key(target))
    for change in plan.changes:
        if isinstance(change, Add | Update):
            ledger.saw_content(ledger_key(change.real), change.sha256, change.outline)


def _outcome(plan: _Plan, *, stuck: Sequence[Change] | None = None) -> PatchedFile:
    operation: Literal["add", "update", "delete", "move"]
    match plan:
        case _Plan(source=None):
            operation = "add"
        case _Plan(target=None):
            operation = "delete"
        case _:
            operation = "update" if plan.source == plan.target else "move"
    written = next((change for change in plan.changes if isinstance(change, Add | Update)), None)
    return PatchedFile(
        operation=operation,
        outcome="applied" if stuck is None or len(stuck) == len(plan.changes) else "partial",
        path=path_text(str(plan.path)),
        destination=path_text(str(plan.target)) if operation == "move" else None,
        bytes=plan.size,
        sha256=written.sha256 if written is not None else None,
    )


def _told(failed: Failure, plans: Sequence[_Plan]) -> ApplyPatchResult:
    """Raises: ToolError if everything is as it was; else the result says what is not."""
    if not failed.stuck:
        raise ToolError(failed.problem.kind, f"{failed.problem.text}\nNo file was changed.")
    stuck = {id(change) for change in failed.stuck}
    files = [
        _outcome(plan, stuck=left)
        for plan in plans
        if (left := [change for change in plan.changes if id(change) in stuck])
    ]
    return ApplyPatchResult(
        files=files,
        diff="",
        diff_truncated=False,
        error=f"{failed.problem}. It could not all be undone: the files named here are changed, all others are as they "
        "were. Look at them before you go on; the old content may be beside them, as .peen-*.old",
    )
