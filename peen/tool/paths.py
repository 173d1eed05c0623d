"""From what a model writes as a path to a file that may safely be opened."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from peen.tool.base import ErrorKind, ToolContext, ToolError
from peen.tool.bounds import path_text

Identity = tuple[int, int]
"""Device and inode: one file or directory, whatever names it has."""

_KINDS: Final[dict[int, tuple[ErrorKind, str]]] = {
    errno.EACCES: ("permission denied", "{path} may not be accessed by this account"),
    errno.EPERM: ("permission denied", "{path} may not be changed by this account"),
    errno.EROFS: ("permission denied", "{path} is on a read-only file system"),
    errno.ENOTDIR: ("not a directory", "a part of {path} is not a directory"),
    errno.ELOOP: ("not regular", "{path} is a loop of symbolic links"),
    errno.EISDIR: ("not regular", "{path} is a directory; use listFiles"),
    errno.ENXIO: ("not regular", "{path} is not a regular file"),
    errno.EEXIST: ("already exists", "{path} already exists"),
    errno.ENOTEMPTY: ("directory not empty", "{path} is not empty"),
    errno.EBUSY: ("permission denied", "{path} is in use by the system, for example as a mount point"),
    errno.ENAMETOOLONG: ("validation failed", "the path is too long"),
    errno.ENOSPC: ("limit exceeded", "no space is left on the device of {path}; nothing was changed"),
    errno.EDQUOT: ("limit exceeded", "the disk quota for {path} is used up; nothing was changed"),
}
_TYPES: Final = (
    (stat.S_ISDIR, "a directory; use listFiles"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_MAX_NAMES_COMPARED: Final = 2000
_SHOWN_BYTE: Final = re.compile(rb"\\x([89a-f][0-9a-f])")


def resolve_path(text: str | None, context: ToolContext) -> Path:
    """The absolute path that a model means: empty is the current directory, `~` the home, relative from the former.

    Links are not followed and `..` is kept, since `link/..` is not what a simplified path would say.
    Raises: ToolError.
    """
    if text and "\0" in text:
        raise ToolError("validation failed", "a path cannot hold a NUL character")
    if not text:
        return context.directory
    if text == "~" or text.startswith("~/"):
        return _as_there(context.home / text[2:].lstrip("/"))
    return _as_there(context.directory / text)


def _as_there(path: Path) -> Path:
    r"""The path, or where only that exists, the one whose bytes are shown as `\xNN` since they are not UTF-8."""
    if "\\x" not in str(path) or os.path.lexists(path):
        return path
    raw = Path(os.fsdecode(_SHOWN_BYTE.sub(lambda found: bytes([int(found[1], 16)]), os.fsencode(path))))
    there = os.path.lexists(raw) or (os.path.lexists(raw.parent) and not os.path.lexists(path.parent))
    return raw if there else path


def real_path(path: Path) -> Path:
    """`path` with every symbolic link followed, whether or not its last part exists. Raises: ToolError for a loop."""
    try:
        return path.resolve()
    except OSError as exc:
        raise failure(exc, path) from exc
    except RuntimeError as exc:  # how pathlib reports a loop before Python 3.13
        raise ToolError("not regular", f"{path_text(str(path))} is a loop of symbolic links") from exc


def entry_path(path: Path) -> Path:
    """The real name of the directory entry that `path` means: a link in its last part is not followed.

    The entry need not exist. Raises: ToolError for a loop of links above it.
    """
    if path.name in ("", ".."):  # `/`, or the directory above some other: never itself a link
        return real_path(path)
    return real_path(path.parent) / path.name


def ledger_key(real: Path) -> str:
    """The name of a real path in the ledger."""
    return path_text(str(real))


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def status_of(path: Path) -> os.stat_result:
    """`stat` that follows links. Raises: ToolError; for a missing file it names a similar one, if there is one."""
    try:
        return path.stat()
    except OSError as exc:
        raise failure(exc, path) from exc


def regular_status_of(path: Path) -> os.stat_result:
    """As `status_of`, and refuses what is not a regular file, before anything is opened."""
    status = status_of(path)
    require_regular(status, path)
    return status


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raises: ToolError unless `status` is that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = next((words for is_kind, words in _TYPES if is_kind(status.st_mode)), "not a regular file")
        raise ToolError("not regular", f"{path_text(str(path))} is {kind}")


@contextlib.contextmanager
def told_to_the_model(path: Path) -> Iterator[None]:
    """A failed system call on `path` becomes a ToolError."""
    try:
        yield
    except OSError as exc:
        raise failure(exc, path) from exc


def failure(problem: OSError, path: Path) -> ToolError:
    """The error that a model gets for a failed system call on `path`."""
    shown = path_text(str(path))
    if problem.errno == errno.ENOENT:
        return ToolError("not found", f"{shown} does not exist{_similar(path)}")
    kind, text = _KINDS.get(problem.errno or 0, ("failed", "{path}: {reason}"))
    return ToolError(kind, text.format(path=shown, reason=problem.strerror or str(problem)))


def _similar(path: Path) -> str:
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _MAX_NAMES_COMPARED)]
    except OSError:
        return f"; nor does {path_text(str(path.parent))}" if not path.parent.exists() else ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"; did you mean {path_text(near[0])}?" if near else ""
