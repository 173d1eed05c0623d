"""The system prompt of a turn: built once when the turn starts, and the same bytes in each of its requests.

Pure: what it depends on is passed in. What changes least comes first, so that a provider can reuse its work.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Final, Literal

import msgspec
from msgspec import Struct

from peen.wire.worker import SystemPrompt

BASE_SOURCE: Final = "embedded://prompt/base"
MANIFEST_VERSION: Final = 1
_SECTION_BREAK: Final = "\n\n"
_FRESHNESS: Final = (
    "These facts were taken when this turn started; the local time is the hour in which it did, and `date` tells the "
    "exact time. What you learned in training is older: check versions, dates and "
    "interfaces against the machine or the project instead of relying on memory."
)


class RuntimeFacts(Struct, frozen=True, kw_only=True):
    """The machine and the moment.

    `local_time` is the hour, in RFC 3339 with its offset, `time_zone` an IANA name where known.
    """

    local_time: str
    time_zone: str
    operating_system: str
    architecture: str
    cpu_count: int
    runtime_version: str


class ManifestEntry(Struct, frozen=True, kw_only=True):
    """One part of the harness; `hash` is the SHA-256 of its text, `priority` its layer, broad first."""

    kind: Literal["instruction", "rule", "skill", "agent", "event-handler", "hook"]
    name: str
    source: str
    priority: int
    hash: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What a prompt was resolved from: instructions, skills, agents, handlers, hooks, each in resolution order."""

    version: int
    entries: list[ManifestEntry]


class PromptParts(Struct, frozen=True, kw_only=True):
    """A frozen prompt and where it came from.

    `context_manifest` is the manifest's JSON, `context_content` the text of its instructions as they were resolved,
    before a message's own system prompt was applied.
    """

    effective_prompt: str
    context_manifest: bytes
    context_content: str


@cache
def base_prompt() -> str:
    """The embedded operating rules, without blank lines around them."""
    return resources.files("peen.harness").joinpath("base_prompt.md").read_text("utf-8").strip()


def build_prompt(
    *, workspace: str, facts: RuntimeFacts, system_prompt: SystemPrompt | None = None, base: str | None = None
) -> PromptParts:
    """The prompt of one turn in `workspace` (an absolute path).

    `system_prompt` comes with the message and is added to the base or takes its place; `base` stands for the
    embedded one, if given. Sections are joined by one blank line.
    """
    resolved = base_prompt() if base is None else base.strip()
    sections = [*_opening(resolved, system_prompt), workspace_section(workspace), facts_section(facts)]
    entry = ManifestEntry(kind="instruction", name="base", source=BASE_SOURCE, priority=0, hash=sha256_hex(resolved))
    return PromptParts(
        effective_prompt=_SECTION_BREAK.join(sections),
        context_manifest=msgspec.json.encode(Manifest(version=MANIFEST_VERSION, entries=[entry])),
        context_content=resolved,
    )


def workspace_section(workspace: str) -> str:
    """Names the workspace as JSON, so that no directory name can look like another part of the prompt."""
    path = msgspec.json.encode(workspace).decode().replace("<", "\\u003c").replace(">", "\\u003e")
    return f"Workspace, the directory that you start in, as JSON: {path}"


def facts_section(facts: RuntimeFacts) -> str:
    """The runtime facts, one a line, and what they mean."""
    return "\n".join(
        (
            "Runtime facts:",
            f"- local time: {facts.local_time}",
            f"- time zone: {facts.time_zone}",
            f"- operating system: {facts.operating_system}",
            f"- architecture: {facts.architecture}",
            f"- CPUs: {facts.cpu_count}",
            f"- runtime: {facts.runtime_version}",
            _FRESHNESS,
        )
    )


def prompt_hash(effective_prompt: str) -> str:
    """SHA-256 of the prompt, lower-case hexadecimal."""
    return sha256_hex(effective_prompt)


def snapshot_hash(context_manifest: bytes) -> str:
    """SHA-256 of the manifest's JSON, lower-case hexadecimal."""
    return hashlib.sha256(context_manifest).hexdigest()


def context_hash(snapshot: str, effective_prompt: str) -> str:
    """SHA-256 of the snapshot's hash, two newlines and the prompt: one name for all that an agent was told."""
    return sha256_hex(f"{snapshot}\n\n{effective_prompt}")


def sha256_hex(text: str) -> str:
    """SHA-256 of the text's UTF-8, lower-case hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _opening(resolved: str, system_prompt: SystemPrompt | None) -> list[str]:
    if system_prompt is None:
        return [resolved]
    own = system_prompt.content.strip()
    return [own] if system_prompt.mode == "replace" else [resolved, own]
