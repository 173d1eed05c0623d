"""PEEN_UPSTREAMS, and what is used without it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from peen.settings.environment import is_reserved
from peen.wire.worker import UpstreamConfig

KNOWN_TYPES: Final = ("openai", "scripted", "zai-coding")
EMBEDDED: Final = UpstreamConfig(name="scripted", type="scripted")
EMBEDDED_MODEL: Final = "scripted/demo"

_APIS: Final = ("chat", "responses")
_CHAT_TYPES: Final = {"openai": "OpenAI", "zai-coding": "Z.ai"}  # who is behind the type's own address

_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ADAPTERS_TO_COME: Final = {"ANTHROPIC_API_KEY": "anthropic"}
_OPENAI_KEY: Final = "OPENAI_API_KEY"
_OPENAI_URL: Final = "OPENAI_BASE_URL"


def parse_upstreams(text: str, environ: Mapping[str, str], config_dir: Path) -> tuple[UpstreamConfig, ...]:
    """The upstreams of a JSON list, with every `script` made absolute.

    Raises: ValueError with what is wrong and in which entry. Looks at the disk for scripts only.
    """
    try:
        entries = msgspec.json.decode(text, type=list[UpstreamConfig])
    except msgspec.DecodeError as exc:  # ValidationError included: it names field and entry
        raise ValueError(f"is not a valid list of upstreams: {exc}") from None
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

    Raises: ValueError if OPENAI_BASE_URL is needed and wrong.
    """
    missing = "".join(
        f"{variable} is set, but the upstream type `{adapter}` is not part of this release. "
        for variable, adapter in _ADAPTERS_TO_COME.items()
        if environ.get(variable)
    )
    if environ.get(_OPENAI_KEY):
        return (_openai(environ),), f"{missing}{_OPENAI_KEY} is set: using the upstream `openai` (openai)."
    used = f"using the embedded upstream `scripted` (model {EMBEDDED_MODEL}), which needs no key and no network"
    return (EMBEDDED,), f"{missing}{'Without another key' if missing else 'PEEN_UPSTREAMS is not set'}: {used}."


def _openai(environ: Mapping[str, str]) -> UpstreamConfig:
    url = environ.get(_OPENAI_URL) or None
    if url is not None:
        try:
            _check_url(url)
        except ValueError:
            raise ValueError(f"{_OPENAI_URL} is not an http or https URL") from None
    return UpstreamConfig(name="openai", type="openai", base_url=url, api_key_env=_OPENAI_KEY)


def explain_upstreams(upstreams: tuple[UpstreamConfig, ...], source: str) -> str:
    """The same sentence for configured upstreams. `source` is the variable or file that they come from."""
    names = ", ".join(f"`{upstream.name}` ({upstream.type})" for upstream in upstreams)
    return f"{source} is set: using the upstream{'s' if len(upstreams) > 1 else ''} {names}."


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
    _check_chat_fields(entry)
    if entry.script is None:
        return entry
    return msgspec.structs.replace(entry, script=str(_script(entry.script, config_dir)))


def _check_chat_fields(entry: UpstreamConfig) -> None:
    owner = _CHAT_TYPES.get(entry.type)
    if owner is not None and entry.base_url is None and entry.api_key_env is None:
        raise ValueError(f"apiKeyEnv is missing: without a baseUrl the provider is {owner}, which wants a key")
    if entry.api is not None and entry.type != "openai":
        raise ValueError(f"api belongs to upstreams of the type 'openai', not {entry.type!r}")
    if entry.api is not None and entry.api not in _APIS:
        raise ValueError(f"api {entry.api!r} is neither {' nor '.join(map(repr, _APIS))}")
    if not entry.stream and owner is None:
        raise ValueError(f"stream belongs to upstreams of the types {' and '.join(map(repr, _CHAT_TYPES))}")


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
