"""What a worker generation is told, and what it is given to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from peen.entropy import Entropy
from peen.wire.launch import WorkerSettings
from peen.worker.link import CallHandler

from .control import Space


@dataclass(frozen=True)
class Limits:
    """Seconds a worker may take. `shutdown_s` for the orderly end, then SIGTERM and `term_s`, then SIGKILL."""

    ready_s: float = 60.0
    hello_s: float = 10.0
    beat_s: float = 20.0
    shutdown_s: float = 10.0
    term_s: float = 10.0
    kill_s: float = 10.0


@dataclass(frozen=True)
class Placement:
    """A session, and where its worker has to run."""

    session_id: str
    workspace: str
    agent_space: str


class GenerationStore(Protocol):
    """Where generations are recorded; each call returns once it is committed."""

    async def create(
        self, session_id: str, generation_id: str, credential_hash: bytes, socket_path: str, agent_space: str,
        workspace: str, /,
    ) -> None: ...  # fmt: skip
    async def starting(self, generation_id: str, pid: int, start_time: int, /) -> None: ...
    async def ready(self, generation_id: str, /) -> None: ...
    async def stopping(self, generation_id: str, /) -> None: ...
    async def ended(
        self, generation_id: str, state: Literal["stopped", "failed"], detail: str, exit_code: int | None, /
    ) -> None: ...


CallsOf = Callable[[str, str], CallHandler]
"""The handler of a worker's calls, given session id and generation id."""

OnLost = Callable[[str, str, str], Awaitable[None]]
"""Told session id, generation id and reason, once the worker is gone and its end recorded."""


@dataclass(frozen=True)
class World:
    """What all generations share."""

    space: Space
    store: GenerationStore
    socket_root: Path
    config_directory: Path
    state_id: str
    settings: WorkerSettings
    entropy: Entropy
    calls: CallsOf
    on_lost: OnLost
    limits: Limits


@dataclass(frozen=True)
class Ending:
    state: Literal["stopped", "failed"]
    detail: str
    exit_code: int | None = None
