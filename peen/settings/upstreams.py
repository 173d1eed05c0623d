"""PEEN_UPSTREAMS, and what is used without it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from peen.settings.environment import is_reserved
from peen.wire.launch import UpstreamConfig
from peen.wire.problem import problem_text

KNOWN_TYPES: Final = ("anthropic", "openai", "scripted", "zai-coding")
EMBEDDED: Final = UpstreamConfig(name="scripted", type="scripted")
EMBEDDED_MODEL: Final = "scripted/demo"

_APIS: Final = ("chat", "responses")
_REASONING: Final = ("always", "calls", "never")
_OWNERS: Final = {"anthropic": "Anthropic", "openai": "OpenAI", "zai-coding": "Z.ai"}
"""Who is behind the own address of a type."""
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AMBIENT: Final = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
}
"""Types that a key alone is enough for, in the order of preference: the variables of the key and of the base URL."""


def parse_upstreams(text: str, environ: Mapping[str, str], config_dir: Path) -> tuple[UpstreamConfig, ...]:
    """The upstreams of a JSON list, with every `script` made absolute.

    Raises: ValueError with what is wrong and in which entry. Looks at the disk for scripts only.
    """
    try:
        entries = msgspec.json.decode(text, type=list[UpstreamConfig])
    except msgspec.DecodeError as exc:  # ValidationError included: it names field and entry
        problem = problem_text(exc, whole="the list", kind=list[UpstreamConfig], given=text)
        raise ValueError(f"is not a valid list of upstreams: {problem}") from None
    if not entries:
        raise ValueError("the list is empty: name at least one upstream, or unset it for the embedded one")
    seen: set[str] = set()
    checked = []
    for number, entry in enumerate(entries):
        try:
            checked.append(_checked(entry, seen, environ, config_dir))
        except ValueError as exc:
            raise ValueError(f"entry {number + 1}: {exc}") from None
        seen.add(entry.name)
    return tuple(checked)


def choose_upstreams(environ: Mapping[str, str]) -> tuple[tuple[UpstreamConfig, ...], str]:
    """What is used while PEEN_UPSTREAMS is not set, and a sentence that says why.

    Raises: ValueError if a base URL is needed and wrong.
    """
    found = tuple(_ambient(kind, environ) for kind, (key, _) in _AMBIENT.items() if environ.get(key))
    if found:
        keys = [upstream.api_key_env or "" for upstream in found]
        return found, _explained(found, " and ".join(keys), verb="are" if len(keys) > 1 else "is")
    used = f"using the embedded upstream `scripted` (model {EMBEDDED_MODEL}), which needs no key and no network"
    return (EMBEDDED,), f"PEEN_UPSTREAMS is not set: {used}."


def _ambient(kind: str, environ: Mapping[str, str]) -> UpstreamConfig:
    key, url_variable = _AMBIENT[kind]
    url = environ.get(url_variable) or None
    if url is not None:
        try:
            _check_url(url)
        except ValueError:
            raise ValueError(f"{url_variable} is not an http or https URL") from None
    return UpstreamConfig(name=kind, type=kind, base_url=url, api_key_env=key)


def explain_upstreams(upstreams: tuple[UpstreamConfig, ...], source: str) -> str:
    """The same sentence for configured upstreams. `source` is the variable or file that they come from."""
    return _explained(upstreams, source, verb="is")


def _explained(upstreams: tuple[UpstreamConfig, ...], source: str, *, verb: str) -> str:
    names = ", ".join(f"`{upstream.name}` ({upstream.type})" for upstream in upstreams)
    return f"{source} {verb} set: using the upstream{'s' if len(upstreams) > 1 else ''} {names}."


def _checked(entry: UpstreamConfig, seen: set[str], environ: Mapping[str, str], config_dir: Path) -> UpstreamConfig:
    if not entry.name or "/" in entry.name or not entry.name.isprintable() or " " in entry.name:
        raise ValueError(f"name {entry.name!r} must be non-empty and hold no '/', space or unprintable character")
    if entry.name in seen:
        raise ValueError(f"name {entry.name!r} is used twice")
    if entry.type not in KNOWN_TYPES:
        raise ValueError(f"type {entry.type!r} is not part of this release; known: {', '.join(KNOWN_TYPES)}")
    if entry.base_url is not None:
        _check_url(entry.base_url)
    if entry.api_key_env is not None:
        _check_key_variable(entry.api_key_env, environ)
    _check_remote_fields(entry)
    if entry.script is None:
        return entry
    return msgspec.structs.replace(entry, script=str(_script(entry.script, config_dir)))


def _check_remote_fields(entry: UpstreamConfig) -> None:
    owner = _OWNERS.get(entry.type)
    if owner is not None and entry.base_url is None and entry.api_key_env is None:
        raise ValueError(f"apiKeyEnv is missing: without a baseUrl the provider is {owner}, which wants a key")
    if entry.api is not None and entry.type != "openai":
        raise ValueError(f"api belongs to upstreams of the type 'openai', not {entry.type!r}")
    if entry.api is not None and entry.api not in _APIS:
        raise ValueError(f"api {entry.api!r} is neither {' nor '.join(map(repr, _APIS))}")
    if entry.reasoning is not None and (entry.type != "openai" or entry.api == "responses"):
        raise ValueError("reasoning belongs to upstreams of the type 'openai' that speak chat completions")
    if entry.reasoning is not None and entry.reasoning not in _REASONING:
        raise ValueError(f"reasoning {entry.reasoning!r} is none of {', '.join(map(repr, _REASONING))}")
    if entry.models and owner is None:
        raise ValueError(f"models belongs to upstreams of a provider, not of the type {entry.type!r}")
    for model in entry.models:
        if not model or not model.isprintable() or " " in model:
            raise ValueError(f"models: {model!r} must be the id of a model, without spaces and not empty")
    if not entry.stream and owner is None:
        raise ValueError(f"stream belongs to upstreams of a provider, not of the type {entry.type!r}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or broken brackets
        usable = False
    if not usable:
        raise ValueError("baseUrl is not an http or https URL")


def _check_key_variable(name: str, environ: Mapping[str, str]) -> None:
    if not _VARIABLE_NAME.fullmatch(name):
        # The value is not quoted: a secret pasted here by mistake must not reach a log.
        raise ValueError("apiKeyEnv is not the name of a variable (it never holds the key itself)")
    if is_reserved(name):
        raise ValueError(f"apiKeyEnv {name!r} is a reserved name")
    if not environ.get(name):
        raise ValueError(f"apiKeyEnv {name!r} is not set or empty")


def _script(text: str, config_dir: Path) -> Path:
    if not text or "\0" in text:
        raise ValueError("script is not the path of a file")
    path = config_dir / text  # an absolute text stands for itself
    try:
        found = path.is_file()
    except OSError as exc:  # an unreadable parent, or a name that is too long
        raise ValueError(f"script {path}: {exc.strerror}") from None
    if not found:
        raise ValueError(f"script {path} is not a file")
    return path
