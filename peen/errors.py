"""Every failure that a caller of Peen can handle, as one tree.

    PeenError
    ├── Refused                    the request must change: `status` and `code` go to the client
    │   ├── ValidationFailed         400 VALIDATION_FAILED
    │   ├── BadRequest               400 BAD_REQUEST
    │   ├── NotAcceptable            406 BAD_REQUEST
    │   ├── InvalidSessionId         400 INVALID_SESSION_ID
    │   ├── Unauthorized             401 UNAUTHORIZED
    │   ├── ForbiddenOrigin          403 FORBIDDEN_ORIGIN
    │   ├── ForbiddenHost            403 FORBIDDEN_HOST
    │   ├── WorkspaceNotAllowed      403 WORKSPACE_NOT_ALLOWED
    │   ├── AgentSpaceNotAllowed     403 AGENT_SPACE_NOT_ALLOWED
    │   ├── NotFound                 404 NOT_FOUND
    │   ├── SessionNotFound          404 SESSION_NOT_FOUND
    │   ├── WorkspaceNotFound        404 WORKSPACE_NOT_FOUND
    │   ├── Conflict                 409 CONFLICT
    │   ├── TurnCancelled            409 TURN_CANCELLED
    │   ├── QueueFull                409 USER_MESSAGE_QUEUE_FULL
    │   └── SessionBusy              409 SESSION_BUSY
    ├── ConfigurationInvalid       the operator must change a setting
    ├── ControllerRunning          another controller owns the state directory
    ├── StorageError               a database file: always names the file
    │   ├── StorageFull              507 STORAGE_FULL; nothing of the change was written
    │   ├── StorageFailed            an I/O error; nothing of the change was written
    │   ├── StorageDamaged           the file is not a sound database
    │   ├── StorageNewer             written by a later release
    │   └── StorageNotWritable       the file or its directory cannot be written
    ├── StaleClaim                 a replaced holder or generation wrote: stop, never retry
    ├── StepConflict               a step was completed before with another payload
    ├── LinkLost                   the other end of a worker socket is gone
    ├── WorkerFailed               a worker process could not be started or did not answer
    └── ModelError                 a model call failed: `retryable` says whether trying again can help

A bug is not a PeenError: it crashes its actor and is seen in the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class PeenError(Exception):
    """Root of what a caller can handle."""

    code: ClassVar[str] = "INTERNAL_SERVER_ERROR"
    status: ClassVar[int] = 500


class Refused(PeenError):
    """The request cannot be served as it is. The text is safe to show to the one who asked."""

    code: ClassVar[str] = "BAD_REQUEST"
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class ValidationFailed(Refused):
    """A field breaks its rule; the message names the field and the remedy."""

    code = "VALIDATION_FAILED"


class BadRequest(Refused):
    code = "BAD_REQUEST"


class NotAcceptable(Refused):
    code = "BAD_REQUEST"
    status = 406


class InvalidSessionId(Refused):
    code = "INVALID_SESSION_ID"


class Unauthorized(Refused):
    code = "UNAUTHORIZED"
    status = 401


class ForbiddenOrigin(Refused):
    code = "FORBIDDEN_ORIGIN"
    status = 403


class ForbiddenHost(Refused):
    code = "FORBIDDEN_HOST"
    status = 403


class WorkspaceNotAllowed(Refused):
    code = "WORKSPACE_NOT_ALLOWED"
    status = 403


class AgentSpaceNotAllowed(Refused):
    code = "AGENT_SPACE_NOT_ALLOWED"
    status = 403


class NotFound(Refused):
    code = "NOT_FOUND"
    status = 404


class SessionNotFound(Refused):
    code = "SESSION_NOT_FOUND"
    status = 404


class WorkspaceNotFound(Refused):
    code = "WORKSPACE_NOT_FOUND"
    status = 404


class Conflict(Refused):
    """The thing is not in the state that the request is for (any more)."""

    code = "CONFLICT"
    status = 409


class TurnCancelled(Refused):
    """A Stop came while the message waited to be accepted; nothing was stored."""

    code = "TURN_CANCELLED"
    status = 409


class QueueFull(Refused):
    code = "USER_MESSAGE_QUEUE_FULL"
    status = 409


class SessionBusy(Refused):
    code = "SESSION_BUSY"
    status = 409


class ConfigurationInvalid(PeenError):
    """A setting is wrong. `variable` is its environment name, `problem` what is wrong, `example` a value that works."""

    code = "CONFIGURATION_INVALID"

    def __init__(self, variable: str, problem: str, *, example: str) -> None:
        super().__init__(f"{variable}: {problem} (example: {variable}={example})")
        self.variable, self.problem, self.example = variable, problem, example


class ControllerRunning(PeenError):
    """Another live controller holds the state directory."""

    code = "CONTROLLER_RUNNING"

    def __init__(self, lock: Path, *, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{lock} is held by {holder}: one controller at a time may use a state directory")
        self.lock, self.pid = lock, pid


class StorageError(PeenError):
    """A database file failed. The message names the file; nothing of the failing change was written."""

    code = "STORAGE_ERROR"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class StorageFull(StorageError):
    code = "STORAGE_FULL"
    status = 507


class StorageFailed(StorageError):
    code = "STORAGE_FAILED"


class StorageDamaged(StorageError):
    code = "STORAGE_DAMAGED"


class StorageNewer(StorageError):
    code = "STORAGE_NEWER"


class StorageNotWritable(StorageError):
    code = "STORAGE_NOT_WRITABLE"


class StaleClaim(PeenError):
    """Another holder, generation or control revision owns this execution now. A retry can never succeed."""

    code = "STALE_CLAIM"


class StepConflict(PeenError):
    """A step that is already complete was completed again with a different payload."""

    code = "STEP_CONFLICT"


class LinkLost(PeenError):
    """The socket between controller and worker closed. Whether the last call took effect is unknown."""

    code = "LINK_LOST"


class WorkerFailed(PeenError):
    """A worker process could not be launched, did not report ready, or was refused."""

    code = "WORKER_FAILED"


class ModelError(PeenError):
    """A model call failed. `kind` is one word for log and turn reason; `retryable` says if it may be repeated.

    `retry_after_ms` is the wait that the provider asked for, if it named one. `unsent` says that the request cannot
    have reached the provider. `images` are the hashes (SHA-256, hex) of images that the error points to.
    """

    code = "MODEL_ERROR"

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        retryable: bool,
        status: int | None = None,
        retry_after_ms: int | None = None,
        unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.retryable, self.http_status = kind, retryable, status
        self.retry_after_ms, self.unsent = retry_after_ms, unsent
        self.images: tuple[str, ...] = ()
