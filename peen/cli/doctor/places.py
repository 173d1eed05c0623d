"""Directories: that they are there or can be made, who may read and change them, and how much room is left."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peen.cli.doctor.finding import Finding, fail, ok, warn
from peen.settings import Settings, contains
from peen.store.reserve import RESERVE_BYTES

LOW_BYTES: Final = 256 * 1024 * 1024
"""Less than this is gone soon where agents build software."""
_OTHERS_WRITE: Final = 0o022
_OTHERS_READ: Final = 0o055
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"})
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_DATABASE: Final = "peen.db"


def look_at_places(settings: Settings) -> Iterator[Finding]:
    """Everything about directories that these settings name."""
    yield look_at_private("configuration", "PEEN_CONFIG_DIR", settings.config_dir, is_secret=False)
    yield look_at_private("state", "PEEN_STATE_DIR", settings.state_dir, is_secret=True)
    for about, variable, path in (
        ("worker sockets", "PEEN_WORKER_SOCKET_DIR", settings.worker_socket_dir),
        ("audit files", "PEEN_LOG_DIRECTORY", settings.log_directory),
    ):
        # What lies in the state directory is as private as that is, and was looked at with it.
        if os.path.exists(path) or not contains(settings.state_dir, path):
            yield look_at_private(about, variable, path, is_secret=True)
    yield look_at_workspace_root(settings.workspace_root)
    yield look_at_room(settings.state_dir)
    yield look_at_file_system(settings.state_dir, Path("/proc/self/mountinfo").read_text())


def look_at_private(about: str, variable: str, path: Path, *, is_secret: bool) -> Finding:
    """A directory of Peen's own. Without `is_secret` others may read it."""
    elsewhere = f"set {variable} to a directory of yours"
    if not os.path.lexists(path):
        return _not_there(about, path, mend=elsewhere)
    try:
        found = path.stat()
    except OSError as error:
        return fail(about, f"{path} cannot be looked at: {error.strerror}", mend=elsewhere)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return fail(about, f"{path} is not a directory", mend=f"move it away, or {elsewhere}")
    if found.st_uid not in (os.geteuid(), 0):
        return fail(about, f"{path} belongs to another user (uid {found.st_uid})", mend=elsewhere)
    if mode & _OTHERS_WRITE:
        # A controller refuses a state directory like that; in the others, what is planted there is believed.
        return fail(about, f"other users can write to {path} (mode {mode:04o})", mend=f"chmod go-w {path}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail(about, f"this user may not read and write {path} (mode {mode:04o})", mend=f"chmod u+rwx {path}")
    if is_secret and mode & _OTHERS_READ:
        return warn(about, f"other users can read {path} (mode {mode:04o})", mend=f"chmod go-rx {path}")
    return ok(about, f"{path} (mode {mode:04o})")


def look_at_workspace_root(root: Path) -> Finding:
    if not os.access(root, os.R_OK | os.X_OK):
        return fail("workspaces", f"this user may not read {root}", mend="set PEEN_WORKSPACE_ROOT to another directory")
    if not os.access(root, os.W_OK):
        # Its subdirectories may be writable all the same.
        return warn("workspaces", f"this user may not write to {root} itself", mend="work in directories below it")
    return ok("workspaces", f"below {root}")


def look_at_room(state_dir: Path) -> Finding:
    """Space on the disk of the state directory, and whether the reserve for the worst day is there."""
    about, mend = "disk", f"make room on the disk of {state_dir}, or move PEEN_STATE_DIR"
    space = os.statvfs(_existing(state_dir))
    free_bytes = space.f_bavail * space.f_frsize
    free = f"{free_bytes // (1024 * 1024)} MiB free"
    database = state_dir / _DATABASE
    reserve = database.with_name(f"{_DATABASE}.reserve")
    if not os.path.exists(reserve) and (free_bytes < RESERVE_BYTES or os.path.exists(database)):
        lacks = f"the reserve of {RESERVE_BYTES // (1024 * 1024)} MiB, by which a full disk stops nothing half-way"
        return fail(about, f"{free}; without {lacks}", mend=mend)
    if space.f_files and not space.f_favail:
        return fail(about, "no more files can be made on it (it has no free inodes)", mend=mend)
    if free_bytes < LOW_BYTES:
        return warn(about, free, mend=mend)
    return ok(about, free)


def look_at_file_system(state_dir: Path, mounts: str) -> Finding:
    """The kind of file system below the state directory. `mounts` is the text of /proc/self/mountinfo."""
    about, kind = "file system", file_system_of(Path(os.path.realpath(state_dir)), mounts)
    if kind in _NETWORK:
        return warn(
            about, f"{state_dir} is on a network file system ({kind}), where locks and synced writes may not hold",
            mend="set PEEN_STATE_DIR to a directory on a local disk",
        )  # fmt: skip
    return ok(about, kind)


def file_system_of(path: Path, mounts: str) -> str:
    """Type of the file system that holds `path`, whose links are resolved."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields, _, source = line.partition(" - ")
        # Later lines hide earlier ones at the same place.
        place = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields.split()[4]))
        if contains(place, path) and len(place.parts) >= best:
            best, kind = len(place.parts), source.split()[0]
    return kind


def _not_there(about: str, path: Path, *, mend: str) -> Finding:
    above = _existing(path)
    if not above.is_dir():
        return fail(about, f"{path} cannot be made, since {above} is not a directory", mend=mend)
    if not os.access(above, os.W_OK | os.X_OK):
        return fail(about, f"{path} cannot be made, since this user may not write to {above}", mend=mend)
    return ok(about, f"{path} is made at the first start")


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if os.path.exists(place))
