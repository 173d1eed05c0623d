"""Which directories may be workspaces, and the one name under which each is known."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from peen.errors import ValidationFailed, WorkspaceNotAllowed, WorkspaceNotFound
from peen.settings import contains, lexical_path, overlap

_MAX_PATH_BYTES: Final = 4095
_MAX_NAME_BYTES: Final = 255


class WorkspacePolicy:
    """The rules of one deployment. Paths are absolute; `root` exists.

    No error names a directory that the client did not name itself.
    """

    def __init__(self, root: Path, state_dir: Path, config_dir: Path) -> None:
        self._roots = _both_names(root)
        self._state = _both_names(state_dir)
        self._config = _both_names(config_dir)

    @property
    def root(self) -> Path:
        """The canonical root."""
        return self._roots[1]

    def resolve(self, text: str) -> Path:
        """The canonical path (no links, `..` or doubled slashes) of a workspace that exists and is allowed.

        Raises: ValidationFailed if the text is no absolute path of a directory; WorkspaceNotAllowed if it lies outside
        the root or touches the directories of Peen, before anything says whether it exists; WorkspaceNotFound if it
        is missing.
        """
        _check_text(text)
        # Judged by its text first, so that a path outside the root does not even cause a look at the disk.
        if not self._inside_root(lexical_path(text)):
            raise _not_allowed()
        path = Path(os.path.realpath(text))
        if not self._inside_root(path) or self._is_private(path):
            raise _not_allowed()
        _check_directory(path)
        return path

    def check_again(self, workspace: str) -> None:
        """See that the canonical path of an open session is still the same, allowed directory.

        Raises: as `resolve`, with what became of it.
        """
        try:
            now = self.resolve(workspace)
        except (ValidationFailed, WorkspaceNotAllowed, WorkspaceNotFound) as refused:
            raise type(refused)(f"the session's workspace cannot be used any more: {refused}") from None
        if str(now) != workspace:
            raise WorkspaceNotFound("the session's workspace was replaced by a symbolic link; put the directory back")

    def _inside_root(self, path: Path) -> bool:
        return any(contains(root, path) for root in self._roots)

    def _is_private(self, path: Path) -> bool:
        """Agents write to their workspace: the state must be out of reach, and so must the whole configuration."""
        return any(overlap(state, path) for state in self._state) or any(
            contains(path, config) for config in self._config
        )


def _both_names(path: Path) -> tuple[Path, Path]:
    return lexical_path(path), Path(os.path.realpath(path))


def _check_text(text: str) -> None:
    if not text:
        raise ValidationFailed("workspace: must not be empty")
    if not text.startswith("/"):
        raise ValidationFailed("workspace: must be an absolute path")
    if "\0" in text:
        raise ValidationFailed("workspace: must not hold a NUL character")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise ValidationFailed("workspace: must be valid UTF-8") from None
    if len(encoded) > _MAX_PATH_BYTES or any(len(name) > _MAX_NAME_BYTES for name in encoded.split(b"/")):
        raise ValidationFailed(
            f"workspace: is too long: a path has at most {_MAX_PATH_BYTES} bytes, a name in it {_MAX_NAME_BYTES}"
        )


def _check_directory(path: Path) -> None:
    try:
        found = os.lstat(path)
        str(path).encode()
    except (FileNotFoundError, NotADirectoryError):
        raise WorkspaceNotFound("workspace directory does not exist") from None
    except UnicodeEncodeError:  # the text was sound, but a link leads to a name that is not
        raise ValidationFailed("workspace: leads to a name that is not valid UTF-8") from None
    except OSError as exc:  # no permission, or the path behind the links is too long
        raise ValidationFailed(f"workspace: cannot be opened: {exc.strerror}") from None
    if stat.S_ISLNK(found.st_mode):  # what is left of a loop
        raise ValidationFailed("workspace: is a loop of symbolic links")
    if not stat.S_ISDIR(found.st_mode):
        raise ValidationFailed("workspace: is not a directory")


def _not_allowed() -> WorkspaceNotAllowed:
    # One text for every reason: what differs would map the deployment for whoever probes it.
    return WorkspaceNotAllowed(
        "a workspace must be the workspace root (GET /api/v1/workspace-roots) or lie in it, "
        "and must not be, hold or lie in a directory that Peen keeps for itself"
    )
