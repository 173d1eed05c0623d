"""docs/command-line.md: its examples are run, and no command or option is missing from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from peen.cli.main import cli
from peen.testing.daemon import Daemon

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text()
BLOCK = re.compile(r"^```console(?P<where> controller)?\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "…"
"""In an example: anything; alone on a line, any number of lines."""
SEPARATOR = "\x01"


class Example(NamedTuple):
    command: str
    shown: list[str]


def examples(*, with_controller: bool) -> list[Example]:
    """Every `$ command` of the page with the lines below it, in order."""
    found: list[Example] = []
    for block in BLOCK.finditer(PAGE):
        if (block["where"] is not None) is not with_controller:
            continue
        for line in block["lines"].splitlines():
            if line.startswith("$ "):
                found.append(Example(line[2:], []))
            else:
                found[-1].shown.append(line)
    return found


def pattern(shown: list[str]) -> re.Pattern[str]:
    """What an output must match as a whole."""
    lines = [
        r"(?:.*\n)*?" if line == ANY else r"[^\n]*".join(map(re.escape, line.split(ANY))) + r"\n" for line in shown
    ]
    return re.compile("".join(lines))


def play(daemon: Daemon, commands: list[str]) -> list[str]:
    """What a shell prints for each of the commands, which share its variables."""
    programs = daemon.home / "bin"
    programs.mkdir()
    (programs / "peen").write_text(f'#!/bin/sh\nexec {sys.executable} -m peen "$@"\n')
    (programs / "peen").chmod(0o755)
    environment = {
        **daemon.environment, "PYTHONPATH": str(ROOT), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"
    }  # fmt: skip
    text = "exec 2>&1\n" + "".join(f"printf '{SEPARATOR}'\n{command}\n" for command in commands)
    done = subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=daemon.workspace_root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.stdout.split(SEPARATOR)[1:]


@pytest.mark.parametrize("with_controller", [False, True], ids=["alone", "controller"])
def test_every_example_does_what_it_shows(short_path: Path, with_controller: bool) -> None:
    wanted = examples(with_controller=with_controller)
    daemon = Daemon(short_path)
    with ExitStack() as stack:
        if with_controller:
            stack.enter_context(daemon)
        printed = play(daemon, [example.command for example in wanted])

    assert len(wanted) >= 8
    assert len(printed) == len(wanted)
    wrong = [
        (example.command, output)
        for example, output in zip(wanted, printed, strict=True)
        if pattern(example.shown).fullmatch(output) is None
    ]
    assert wrong == []


def test_the_comparison_can_fail() -> None:
    shown = ["a … b", ANY, "end"]

    assert pattern(shown).fullmatch("a x b\nend\n")
    assert pattern(shown).fullmatch("a  b\nmore\nand more\nend\n")
    assert not pattern(shown).fullmatch("a x b\nmore\n")
    assert not pattern(shown).fullmatch("a x\nend\n")
    assert not pattern([]).fullmatch("something\n")


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that people may use, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def sections() -> dict[str, str]:
    """Text below each `## ` heading."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_its_section_and_no_section_is_without_a_command() -> None:
    names = [f"`{name}`" for name, _ in commands(cli, "peen")]

    assert sorted(name for name in sections() if name.startswith("`")) == sorted(names)


def test_every_option_is_named_in_the_section_of_its_command() -> None:
    found = sections()
    unnamed = [
        f"{name} {option}"
        for name, command in commands(cli, "peen")
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in [*parameter.opts, *parameter.secondary_opts]
        if f"`{option}" not in found[f"`{name}`"] and f" {option}" not in found[f"`{name}`"]
    ]

    assert unnamed == []


def test_the_exit_codes_are_those_of_the_program() -> None:
    from peen.cli import ends

    table = re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)

    codes = {value for name, value in vars(ends).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in table} == codes
