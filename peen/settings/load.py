"""Environment and `peen.yaml` to one checked `Settings`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from peen.errors import ConfigurationInvalid
from peen.settings.directories import (
    check_separation,
    default_config_dir,
    default_state_dir,
    default_workspace_root,
    socket_too_long,
)
from peen.settings.model import Settings
from peen.settings.parse import default_value, parse_value
from peen.settings.problems import Problems
from peen.settings.source import Source, check_removed, read_source, unknown_variables
from peen.settings.table import BY_NAME, VARIABLES, Variable
from peen.settings.upstreams import choose_upstreams, explain_upstreams, parse_upstreams

Refuse = Callable[[str, str], None]
"""Notes one problem: name of the variable, what is wrong."""

_ASSUMED_CONTEXT_TOKENS: Final = 131_072  # of a model that publishes no window
_SESSION_PART: Final = str(uuid.UUID(int=0))  # every session's directory name has this length


def load_settings(environ: Mapping[str, str], *, cwd: Path, home: Path) -> Settings:
    """The settings of this process. `cwd` and `home` (absolute) are what the defaults of directories come from.

    Reads `peen.yaml` and looks at directories; creates and changes nothing. Raises: ConfigurationInvalid; if several
    settings are wrong its message has a line for each.
    """
    problems = Problems()
    config_dir = _config_dir(environ, home, problems)
    problems.raise_if_any()  # without it the file is unknown, and every further complaint might be wrong
    source = read_source(environ, config_dir, problems)
    check_removed(environ, problems)
    values: dict[str, Any] = {variable.field: _value(variable, source, problems) for variable in VARIABLES}
    values["config_dir"] = config_dir
    _fill_in(values, environ, cwd=cwd, home=home)

    def refuse(name: str, problem: str) -> None:
        problems.add(source.invalid(BY_NAME[name], problem))

    _take_upstreams(values, source, refuse)
    _check_places(values, refuse)
    _check_access(values, refuse)
    _check_models(values, refuse)
    problems.raise_if_any()
    return Settings(**values, warnings=unknown_variables(environ))


def _config_dir(environ: Mapping[str, str], home: Path, problems: Problems) -> Path:
    variable = BY_NAME["PEEN_CONFIG_DIR"]
    text = environ.get(variable.name)
    if text:
        try:
            value = parse_value(variable, text)
            assert isinstance(value, Path)
            return value
        except ValueError as exc:
            problems.add(ConfigurationInvalid(variable.name, str(exc), example=variable.example))
    return default_config_dir(environ, home)


def _value(variable: Variable, source: Source, problems: Problems) -> object:
    text = source.text(variable)
    if text is not None:
        try:
            return parse_value(variable, text)
        except ValueError as exc:
            problems.add(source.invalid(variable, str(exc)))
    return default_value(variable)


def _fill_in(values: dict[str, Any], environ: Mapping[str, str], *, cwd: Path, home: Path) -> None:
    """The defaults that depend on the machine or on other settings."""
    values["state_dir"] = values["state_dir"] or default_state_dir(environ, home)
    values["workspace_root"] = values["workspace_root"] or default_workspace_root(cwd, home)
    values["worker_socket_dir"] = values["worker_socket_dir"] or values["state_dir"] / "workers"
    values["log_directory"] = values["log_directory"] or values["state_dir"] / "logs"


def _take_upstreams(values: dict[str, Any], source: Source, refuse: Refuse) -> None:
    text = values["upstreams"]
    try:
        if text is None:
            values["upstreams"], values["upstream_choice"] = choose_upstreams(source.environ)
            return
        upstreams = parse_upstreams(text, source.environ, values["config_dir"])
    except ValueError as exc:
        refuse("PEEN_UPSTREAMS", str(exc))
        # No complaint about models of upstreams that are not known.
        values["upstreams"], values["upstream_choice"] = None, ""
    else:
        place = source.place(BY_NAME["PEEN_UPSTREAMS"])
        values["upstreams"], values["upstream_choice"] = upstreams, explain_upstreams(upstreams, place)


def _check_places(values: dict[str, Any], refuse: Refuse) -> None:
    problem = check_separation(values["config_dir"], values["state_dir"])
    if problem is not None:
        refuse("PEEN_STATE_DIR", problem)
    root: Path = values["workspace_root"]
    if not os.path.isdir(root):
        refuse("PEEN_WORKSPACE_ROOT", f"{root} is not an existing directory")
    control = socket_too_long(values["state_dir"] / "control.sock")
    if control is not None:
        refuse("PEEN_STATE_DIR", control)
    worker = socket_too_long(values["worker_socket_dir"] / _SESSION_PART / "worker.sock")
    if worker is not None:
        refuse("PEEN_WORKER_SOCKET_DIR", worker)
    if (values["host_username"] is None) != (values["host_home"] is None):
        given, other = "PEEN_HOST_USERNAME", "PEEN_HOST_HOME"
        if values["host_username"] is None:
            given, other = other, given
        refuse(given, f"is set, but {other} is not: set both or neither")


def _check_access(values: dict[str, Any], refuse: Refuse) -> None:
    address = values["http_listen_address"]
    if not address.is_loopback and values["api_token"] is None:
        refuse(
            "PEEN_HTTP_LISTEN_ADDRESS",
            f"{address} can be reached from other machines, so PEEN_API_TOKEN must be set; or listen on loopback",
        )


def _check_models(values: dict[str, Any], refuse: Refuse) -> None:
    if values["upstreams"] is not None:
        known = [upstream.name for upstream in values["upstreams"]]
        for name in ("PEEN_DEFAULT_MODEL", "PEEN_COMPACTION_MODEL"):
            model = values[BY_NAME[name].field]
            if model is not None and model.partition("/")[0] not in known:
                refuse(name, f"{model!r} names no configured upstream; known: {', '.join(known)}")
    limit = values["max_context_tokens"] or _ASSUMED_CONTEXT_TOKENS
    for name in ("PEEN_COMPACTION_MAX_OUTPUT_TOKENS", "PEEN_OUTPUT_RESERVE_TOKENS"):
        tokens = values[BY_NAME[name].field]
        if tokens is not None and tokens >= limit:
            refuse(name, f"{tokens} is not below the context limit of {limit} tokens (PEEN_MAX_CONTEXT_TOKENS)")
