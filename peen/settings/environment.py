"""Which variables a worker, a command, a hook or an MCP server gets to see."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from typing import Final

from peen.wire.launch import UpstreamConfig

WANTED_OPEN_FILES: Final = 4096

AMBIENT_PROVIDER_KEYS: Final = frozenset({
    "AI_GATEWAY_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "AZURE_OPENAI_API_KEY", "CEREBRAS_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN", "COHERE_API_KEY", "CO_API_KEY", "DASHSCOPE_API_KEY", "DEEPSEEK_API_KEY",
    "FIREWORKS_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "GROQ_API_KEY",
    "MISTRAL_API_KEY", "MOONSHOT_API_KEY", "NVIDIA_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_API_KEY",
    "OPENROUTER_API_KEY", "PERPLEXITY_API_KEY", "TOGETHER_API_KEY", "XAI_API_KEY", "ZAI_API_KEY", "ZHIPUAI_API_KEY",
})  # fmt: skip
"""Keys that may lie in the operator's environment for other programs; no command of an agent inherits them."""

_NEVER_TO_A_WORKER: Final = frozenset({
    "DOCKER_HOST", "PEEN_ALLOWED_HOSTS", "PEEN_API_TOKEN", "PEEN_DEFAULT_AGENT_SPACE",
    "PEEN_DEFAULT_EXECUTION_PROFILE", "PEEN_DOCKER_PROFILES", "PEEN_DOCKER_SOCKET", "PEEN_EXECUTION_PROFILES",
    "PEEN_HTTP_LISTEN_ADDRESS", "PEEN_LOG_DIRECTORY", "PEEN_LOG_RETENTION_DAYS", "PEEN_METRICS_LISTEN_ADDRESS",
    "PEEN_STATE_DIR", "PEEN_WORKSPACE_ROOT", "PEEN_WORKSPACE_ROOTS",
})  # fmt: skip
_NEVER_PREFIXES: Final = ("PEEN_WORKER_", "PEEN_HOST_")

_RESERVED: Final = frozenset({
    "DOCKER_HOST", "EDITOR", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "HOME", "LANG", "LOGNAME", "PAGER", "PATH", "PWD",
    "SHELL", "TERM", "TMPDIR", "USER",
})  # fmt: skip
_RESERVED_PREFIXES: Final = ("PEEN_", "_PEEN_", "LC_", "LD_", "LOG_", "PYTHON", "XDG_")


def is_reserved(name: str) -> bool:
    """A variable that means something else already, so that no upstream may keep its key in it."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)


def worker_environment(environ: Mapping[str, str], upstreams: Iterable[UpstreamConfig]) -> dict[str, str]:
    """What a worker process inherits: no secret of the controller, but the keys its upstreams name."""
    needed = key_variables(upstreams)
    return {
        name: value
        for name, value in environ.items()
        if name in needed
        or not (name in _NEVER_TO_A_WORKER or name in AMBIENT_PROVIDER_KEYS or name.startswith(_NEVER_PREFIXES))
    }


def command_environment(environ: Mapping[str, str], upstreams: Iterable[UpstreamConfig]) -> dict[str, str]:
    """What commands, hooks and MCP servers inherit: nothing of Peen, no provider key, and no pager or prompt.

    `environ` is the worker's. The caller adds its own marks afterwards.
    """
    secret = key_variables(upstreams) | AMBIENT_PROVIDER_KEYS
    kept = {name: value for name, value in environ.items() if name not in secret and not name.startswith("PEEN_")}
    # Without a terminal a pager or a password prompt would wait for ever.
    return {"EDITOR": "false", **kept, "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def key_variables(upstreams: Iterable[UpstreamConfig]) -> frozenset[str]:
    """Names of the variables that hold the upstreams' keys."""
    return frozenset(upstream.api_key_env for upstream in upstreams if upstream.api_key_env is not None)


def check_open_files() -> str | None:
    """Raises the soft limit on open files to the hard one; a warning if even that is below `WANTED_OPEN_FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems refuse "unlimited" although it is their hard limit
            pass
        else:
            soft = hard
    return open_files_warning(soft)


def open_files_warning(soft: int) -> str | None:
    """The warning for a soft limit of `soft` descriptors, or None if that is enough."""
    if soft == resource.RLIM_INFINITY or soft >= WANTED_OPEN_FILES:
        return None
    return (
        f"only {soft} files may be open at once; many sessions need {WANTED_OPEN_FILES} or more "
        f"(raise the limit with `ulimit -n`, or LimitNOFILE= of the service)"
    )
