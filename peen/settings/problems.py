"""Configuration errors: found one by one, reported together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peen.errors import ConfigurationInvalid, PeenError


class FileSettingInvalid(ConfigurationInvalid):
    """A value of `peen.yaml` is wrong. `variable` is the environment name that the key stands for.

    The message names the file and the key, since that is what the operator has to change.
    """

    def __init__(self, variable: str, problem: str, *, example: str, file: Path, key: str) -> None:
        PeenError.__init__(self, f"{file}: {key}: {problem} (example: {key}: {example})")
        self.variable, self.problem, self.example = variable, problem, example
        self.file, self.key = file, key


class SettingsInvalid(ConfigurationInvalid):
    """Several settings are wrong. The message has one line for each; the fields are those of the first."""

    def __init__(self, problems: Sequence[ConfigurationInvalid]) -> None:
        PeenError.__init__(self, "\n".join(str(problem) for problem in problems))
        first = problems[0]
        self.variable, self.problem, self.example = first.variable, first.problem, first.example
        self.problems = tuple(problems)


class Problems:
    """What was found so far, so that an operator mends everything in one go."""

    def __init__(self) -> None:
        self._found: list[ConfigurationInvalid] = []

    def add(self, problem: ConfigurationInvalid) -> None:
        self._found.append(problem)

    def raise_if_any(self) -> None:
        """Raises: the problem itself if there is one, `SettingsInvalid` if there are several."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise SettingsInvalid(self._found)
