"""Where the text of a setting comes from: the environment, else `peen.yaml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from peen.errors import ConfigurationInvalid
from peen.settings.parse import parse_switch
from peen.settings.problems import FileSettingInvalid, Problems
from peen.settings.table import BY_KEY, BY_NAME, RENAMED, Kind, Variable

FILE_NAME: Final = "peen.yaml"
_MAX_FILE_BYTES: Final = 1024 * 1024
_OTHER_KNOWN: Final = ("PEEN_ENABLE_WORKSPACE_HOOKS",)


@dataclass(frozen=True, slots=True)
class Source:
    """Environment and file together. An empty value in the environment counts as not set."""

    environ: Mapping[str, str]
    file: Path
    from_file: Mapping[str, str]

    def text(self, variable: Variable) -> str | None:
        """The text as written, the environment first; None if neither has it."""
        return self.environ.get(variable.name) or self.from_file.get(variable.key) or None

    def invalid(self, variable: Variable, problem: str) -> ConfigurationInvalid:
        """The error for a value of this variable, in the words of the place where it was written."""
        if self.environ.get(variable.name) or variable.key not in self.from_file:
            return ConfigurationInvalid(variable.name, problem, example=variable.example)
        return FileSettingInvalid(variable.name, problem, example=variable.example, file=self.file, key=variable.key)

    def place(self, variable: Variable) -> str:
        """Where the value stands, for people."""
        return variable.name if self.environ.get(variable.name) else f"{variable.key} in {self.file}"


def read_source(environ: Mapping[str, str], config_dir: Path, problems: Problems) -> Source:
    """Reads `peen.yaml` if there is one and checks its keys. What is wrong with it goes to `problems`."""
    file = config_dir / FILE_NAME
    from_file: dict[str, str] = {}
    for key, value in _read_file(file, problems).items():
        variable = BY_KEY.get(key)
        if variable is None:
            problems.add(_unknown_key(file, key))
        elif not variable.in_file:
            problem = "cannot be set here: agents can read this file"
            if variable.name == "PEEN_CONFIG_DIR":
                problem = "cannot be set here: it says where this file is"
            problems.add(ConfigurationInvalid(variable.name, f"{file}: {key} {problem}", example=variable.example))
        else:
            try:
                from_file[key] = _as_text(variable, value)
            except ValueError as exc:
                problems.add(FileSettingInvalid(variable.name, str(exc), example=variable.example, file=file, key=key))
    return Source(environ, file, from_file)


def check_removed(environ: Mapping[str, str], problems: Problems) -> None:
    """Refuses settings whose meaning is gone, where ignoring them would be dangerous."""
    if environ.get("PEEN_WORKSPACE_ROOTS"):
        problem = "was removed: set PEEN_WORKSPACE_ROOT to the one directory that holds every workspace, and unset this"
        problems.add(ConfigurationInvalid("PEEN_WORKSPACE_ROOTS", problem, example=""))
    hooks = environ.get("PEEN_ENABLE_WORKSPACE_HOOKS")
    try:
        allowed = not hooks or parse_switch(hooks)
    except ValueError:
        allowed = False
    if not allowed:
        problem = "workspace hooks can no longer be switched off: unset it"
        problems.add(ConfigurationInvalid("PEEN_ENABLE_WORKSPACE_HOOKS", problem, example="true"))


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """One warning for each PEEN_* variable that means nothing, with the nearest name that does."""
    warnings = []
    for name in sorted(environ):
        if not name.startswith("PEEN_") or name in BY_NAME or name in _OTHER_KNOWN or name == "PEEN_WORKSPACE_ROOTS":
            continue
        if name in RENAMED:
            warnings.append(f"{name} is an earlier name and has no effect; it is now {RENAMED[name]}")
            continue
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        warnings.append(f"{name} is not a setting and has no effect" + (f"; did you mean {near[0]}?" if near else ""))
    return tuple(warnings)


def _read_file(file: Path, problems: Problems) -> dict[str, object]:
    def refuse(problem: str) -> dict[str, object]:
        problems.add(ConfigurationInvalid("PEEN_CONFIG_DIR", f"{file}: {problem}", example=str(file.parent)))
        return {}

    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):  # a file in the directory's place is reported when it is made
        return {}
    except OSError as exc:
        return refuse(f"cannot be read: {exc.strerror}")
    if len(content) > _MAX_FILE_BYTES:
        return refuse(f"is larger than {_MAX_FILE_BYTES} bytes")
    # Only who has such a file pays for the parser.
    import yaml

    try:
        document = yaml.safe_load(content)
        # The parser keeps the last of two equal keys in silence.
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError) as exc:  # ValueError: a date such as 2023-02-31
        return refuse(f"is not valid YAML: {' '.join(str(exc).split())}")
    if document is None:
        return {}
    if not isinstance(document, dict) or not isinstance(node, yaml.MappingNode):
        return refuse("is not a mapping of keys to values")
    keys = [key.value for key, _value in node.value]
    for twice in sorted({key for key in keys if keys.count(key) > 1}):
        refuse(f"the key {twice} is there twice")
    return {str(key): value for key, value in document.items()}


def _unknown_key(file: Path, key: str) -> ConfigurationInvalid:
    near = difflib.get_close_matches(key, BY_KEY, n=1, cutoff=0.0)[0]
    return FileSettingInvalid(
        "PEEN_CONFIG_DIR",
        f"is not a setting; the nearest one is {near}",
        example=BY_KEY[near].example,
        file=file,
        key=key,
    )


def _as_text(variable: Variable, value: object) -> str:
    """A YAML value as the environment would write it. Raises: ValueError if the kind of value makes no sense here."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        if variable.kind in (Kind.UPSTREAMS, Kind.PROFILES):
            try:
                return msgspec.json.encode(value).decode()
            except TypeError as exc:  # a key that is a list, for example
                raise ValueError(f"holds something that JSON cannot: {exc}") from None
        if variable.kind is Kind.HOSTS and all(isinstance(item, str) for item in value):
            return ",".join(value)
    raise ValueError(f"holds a {type(value).__name__} where {variable.kind.value} is expected")
