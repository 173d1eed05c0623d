"""Where things lie: defaults, which directory may contain which, and their creation."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from peen.errors import ConfigurationInvalid

MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket: the kernel's 108 bytes less the closing zero."""
_OTHERS_CAN_WRITE: Final = 0o022


def default_config_dir(environ: Mapping[str, str], home: Path) -> Path:
    """`$XDG_CONFIG_HOME/peen`, else `~/.config/peen`."""
    return _xdg(environ, "XDG_CONFIG_HOME", home / ".config") / "peen"


def default_state_dir(environ: Mapping[str, str], home: Path) -> Path:
    """`$XDG_STATE_HOME/peen`, else `~/.local/state/peen`."""
    return _xdg(environ, "XDG_STATE_HOME", home / ".local" / "state") / "peen"


def default_workspace_root(cwd: Path, home: Path) -> Path:
    """The home directory if `cwd` is or lies in it (by any name), else `cwd`."""
    return home if contains(Path(os.path.realpath(home)), Path(os.path.realpath(cwd))) else cwd


def lexical_path(path: str | Path) -> Path:
    """The path without `.`, `..`, doubled and trailing slashes, by its text alone."""
    normal = os.path.normpath(path)
    # POSIX lets exactly two leading slashes mean something of their own; Linux does not use that.
    return Path("/" + normal.lstrip("/")) if normal.startswith("//") else Path(normal)


def contains(outer: Path, inner: Path) -> bool:
    """`inner` is `outer` or lies in it; both lexical."""
    return inner.is_relative_to(outer)


def overlap(one: Path, other: Path) -> bool:
    """The two are equal or one lies in the other; both lexical."""
    return contains(one, other) or contains(other, one)


def resolve_path(path: Path) -> Path:
    """The path with its links followed; what does not exist yet is taken from the deepest ancestor that does.

    Raises: OSError if it cannot be resolved (a loop of links, a file in the way, no permission).
    """
    try:
        return Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        return Path(os.path.realpath(path))


def check_separation(config_dir: Path, state_dir: Path) -> str | None:
    """What is wrong with this pair of directories, or None. Neither may be, contain or lie in the other."""
    if overlap(lexical_path(config_dir), lexical_path(state_dir)):
        return f"{state_dir} and PEEN_CONFIG_DIR={config_dir} must differ and neither may contain the other"
    resolved = []
    for name, path in (("PEEN_CONFIG_DIR", config_dir), ("PEEN_STATE_DIR", state_dir)):
        try:
            resolved.append(resolve_path(path))
        except OSError as exc:
            return f"{name}={path} cannot be resolved: {exc.strerror}"
    config, state = resolved
    if overlap(config, state):
        return (
            f"{state_dir} and PEEN_CONFIG_DIR={config_dir} lead to {state} and {config}: "
            f"they must differ and neither may contain the other"
        )
    return None


def socket_too_long(path: Path) -> str | None:
    """What is wrong if a socket with this path could not be bound, else None."""
    size = len(os.fsencode(path))
    if size <= MAX_SOCKET_PATH_BYTES:
        return None
    limit = f"the system allows {MAX_SOCKET_PATH_BYTES}"
    return f"the socket path {path} has {size} bytes, {limit}: use a shorter directory"


def ensure_private_directory(variable: str, path: Path, *, example: str) -> None:
    """Makes the directory with mode 0700 if it is missing, parents included. An existing one is left as it is.

    Raises: ConfigurationInvalid if it is something else, or cannot be made.
    """
    try:
        for missing in reversed([path, *path.parents]):
            if not missing.is_dir():
                missing.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():  # else another process made it at the same moment
            raise ConfigurationInvalid(variable, f"{missing} is not a directory", example=example) from None
    except OSError as exc:
        problem = f"{path} cannot be created: {exc.strerror}"
        raise ConfigurationInvalid(variable, problem, example=example) from None


def check_only_ours(variable: str, path: Path, *, example: str) -> None:
    """Raises: ConfigurationInvalid if anyone but this user and root could change what is in the directory."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigurationInvalid(variable, f"{path} belongs to another user (uid {found.st_uid})", example=example)
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS_CAN_WRITE:
        problem = f"other users can write to {path} (mode {mode:04o}); mend it with: chmod go-w {path}"
        raise ConfigurationInvalid(variable, problem, example=example)


def _xdg(environ: Mapping[str, str], name: str, fallback: Path) -> Path:
    value = environ.get(name, "")
    return Path(value) if value.startswith("/") else fallback  # a relative one is to be ignored, the standard says
