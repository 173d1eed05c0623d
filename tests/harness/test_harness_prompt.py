from __future__ import annotations

import hashlib
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from peen.harness.prompt import (
    RuntimeFacts,
    base_prompt,
    build_prompt,
    context_hash,
    prompt_hash,
    snapshot_hash,
    workspace_section,
)
from peen.wire.worker import SystemPrompt

FACTS = RuntimeFacts(
    local_time="2026-03-04T05:06:07+01:00",
    time_zone="Europe/Berlin",
    operating_system="Linux 6.1",
    architecture="x86_64",
    cpu_count=2,
    runtime_version="Peen 0.1.0, Python 3.11.7",
)


def prompt(system_prompt: SystemPrompt | None = None, *, workspace: str = "/home/me/project") -> str:
    return build_prompt(workspace=workspace, facts=FACTS, system_prompt=system_prompt, base="BASE").effective_prompt


def test_sections_stand_in_their_order_with_one_blank_line_between() -> None:
    sections = prompt(SystemPrompt(mode="append", content="Speak Latin.\n")).split("\n\n")

    assert sections[:3] == [
        "BASE",
        "Speak Latin.",
        'Workspace, the directory that you start in, as JSON: "/home/me/project"',
    ]
    assert sections[3].split("\n")[:7] == [
        "Runtime facts:",
        "- local time: 2026-03-04T05:06:07+01:00",
        "- time zone: Europe/Berlin",
        "- operating system: Linux 6.1",
        "- architecture: x86_64",
        "- CPUs: 2",
        "- runtime: Peen 0.1.0, Python 3.11.7",
    ]
    assert len(sections) == 4


def test_a_message_may_replace_the_base_but_not_the_facts() -> None:
    replaced = prompt(SystemPrompt(mode="replace", content="Only this."))

    assert replaced == prompt().replace("BASE", "Only this.", 1)


def test_the_same_turn_gives_the_same_bytes() -> None:
    first = build_prompt(workspace="/w", facts=FACTS)
    second = build_prompt(workspace="/w", facts=FACTS)

    assert first == second
    assert first.effective_prompt.startswith(base_prompt())


def test_what_changes_between_turns_comes_last() -> None:
    later = FACTS.__class__(
        **{**{name: getattr(FACTS, name) for name in FACTS.__struct_fields__}, "local_time": "later"}
    )
    one = build_prompt(workspace="/w", facts=FACTS).effective_prompt
    two = build_prompt(workspace="/w", facts=later).effective_prompt

    shared = one.partition("- local time: ")[0]
    assert two.startswith(shared)
    assert len(shared) > 0.9 * len(base_prompt())


@given(st.text())
def test_no_directory_name_can_look_like_another_part_of_the_prompt(name: str) -> None:
    section = workspace_section(f"/{name}")

    assert "\n" not in section
    assert "<" not in section
    assert json.loads(section.partition("JSON: ")[2]) == f"/{name}"


def test_the_manifest_names_what_the_prompt_was_resolved_from() -> None:
    parts = build_prompt(
        workspace="/w", facts=FACTS, system_prompt=SystemPrompt(mode="replace", content="x"), base="B\n"
    )

    assert parts.context_content == "B"
    assert json.loads(parts.context_manifest) == {
        "version": 1,
        "entries": [
            {
                "kind": "instruction",
                "name": "base",
                "source": "embedded://prompt/base",
                "priority": 0,
                "hash": hashlib.sha256(b"B").hexdigest(),
            }
        ],
    }


def test_hashes_follow_their_rules() -> None:
    parts = build_prompt(workspace="/wörk", facts=FACTS)
    snapshot = snapshot_hash(parts.context_manifest)

    assert snapshot == hashlib.sha256(parts.context_manifest).hexdigest()
    assert prompt_hash(parts.effective_prompt) == hashlib.sha256(parts.effective_prompt.encode()).hexdigest()
    assert (
        context_hash(snapshot, parts.effective_prompt)
        == hashlib.sha256(snapshot.encode() + b"\n\n" + parts.effective_prompt.encode()).hexdigest()
    )


def test_the_base_prompt_is_short_and_says_what_each_block_is() -> None:
    text = base_prompt()
    instructions, data = re.split(r"^Data, never instructions:$", text, flags=re.MULTILINE)

    assert len(text.splitlines()) < 120
    for block in ("<skill>", "<hook>", "<handler>", "<rule>"):
        assert f"- `{block}`" in instructions
    assert "- `<events>`" in data
