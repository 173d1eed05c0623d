"""What every tool is given, and what it gives back."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Literal, TypeVar

import msgspec

from peen.entropy import Entropy, SystemEntropy
from peen.errors import PeenError
from peen.tool.ledger import Ledger, LedgerDelta
from peen.tool.work import RetainedWork
from peen.wire.launch import WorkerSettings

if TYPE_CHECKING:
    from peen.tool.jobs import SessionJobs
    from peen.tool.locks import FileLocks

ErrorKind = Literal[
    "not observed",
    "hash required",
    "stale hash",
    "already exists",
    "not found",
    "permission denied",
    "not a directory",
    "not regular",
    "binary",
    "directory not empty",
    "limit exceeded",
    "match not found",
    "match not unique",
    "overlap",
    "invalid patch",
    "patch conflict",
    "context not found",
    "context not unique",
    "command start failed",
    "conflict",
    "validation failed",
    "failed",
]
BYTES_PER_TOKEN = 4
"""How many bytes of a result count as one token; a rule of thumb, on the safe side for code and prose."""
PROMPT_SHARE: Final = 4
"""One result takes at most this part of what the model can be given at all."""
MIN_RESULT_TOKENS: Final = 16
"""Even where the model can take next to nothing, a result can say that it was cut."""


class ToolError(PeenError):
    """The call failed in a way that the model can act on: the text says what happened and what to do next."""

    code = "TOOL_ERROR"

    def __init__(self, kind: ErrorKind, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind, self.text = kind, text


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of what a model sends. A field that Peen does not know is refused: a typo must not look like success."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what a tool returns. It is encoded as JSON and becomes the content of the tool message."""

    @property
    def is_error(self) -> bool:
        """Whether the call failed although there is more to say than a text."""
        return False


@dataclass(frozen=True)
class ToolContext:
    """The world of one agent as its tools see it.

    `directory` is where relative paths start; `environment` is what commands inherit, already free of secrets;
    `locks` is shared by all agents of the worker, `ledger` is this agent's own. `prompt_budget_tokens` is what the
    model's window leaves for input, if that is known. `work` is the session's paused work as the call in question may
    decide about it, `jobs` are its commands. `image_input` says whether the model can be shown images.
    """

    directory: Path
    home: Path
    workspace: Path
    settings: WorkerSettings
    ledger: Ledger
    environment: Mapping[str, str]
    locks: FileLocks
    entropy: Entropy = field(default_factory=SystemEntropy)
    prompt_budget_tokens: int | None = None
    work: RetainedWork | None = None
    jobs: SessionJobs | None = None
    image_input: bool = True

    @property
    def max_result_bytes(self) -> int:
        """Bytes that the content of one result may have: the configured limit, or the share of a small window."""
        tokens = self.settings.max_tool_result_tokens
        if self.prompt_budget_tokens is not None:
            tokens = min(tokens, max(self.prompt_budget_tokens // PROMPT_SHARE, MIN_RESULT_TOKENS))
        return tokens * BYTES_PER_TOKEN


@dataclass(frozen=True)
class ToolImage:
    """The content of an image file, in a format that models take. `path` is how the model is told of it."""

    path: str
    data: bytes


@dataclass(frozen=True)
class WithImage:
    """A result, and an image that the model is to see when the round is over."""

    result: ToolResult
    image: ToolImage


@dataclass(frozen=True)
class ToolOutcome:
    """What a call came to. `content` goes to the model; `ledger` is saved, so that a restored agent knows as much."""

    content: str
    is_error: bool
    ledger: LedgerDelta
    image: ToolImage | None = None


A = TypeVar("A", bound=ToolArguments)


class Tool(abc.ABC, Generic[A]):
    """One tool. It keeps no state of an agent: that is in the context.

    `repeatable` says that an interrupted call may simply be made again, because it changes nothing.
    `own_deadline` says that the call limits itself, so that the general time limit of tools does not apply.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    repeatable: ClassVar[bool]
    own_deadline: ClassVar[bool] = False
    arguments: type[A]

    @abc.abstractmethod
    async def run(self, arguments: A, context: ToolContext) -> ToolResult | WithImage:
        """Carry out one call. Raises: ToolError for what the model can act on; anything else is a fault of Peen."""
