"""Every setting, one row each. Parsing, checking, `peen.yaml` keys and the documentation all read this table."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

_MIB: Final = 1024 * 1024
_ANY_SIZE: Final = 2**31 - 1


class Kind(enum.Enum):
    """How a value is written. The text is what the documentation shows."""

    DURATION = "duration"
    COUNT = "number"
    BYTES = "bytes"
    TOKENS = "tokens"
    USD = "US dollars"
    SWITCH = "on or off"
    CHOICE = "word"
    NAME = "name"
    MODEL = "upstream/model"
    TEXT = "text"
    SECRET = "secret"
    DIRECTORY = "absolute path"
    ADDRESS = "host:port"
    HOSTS = "list of hosts"
    UPSTREAMS = "JSON list of upstreams"
    PROFILES = "JSON list of profiles"
    DOCKER_SOCKET = "path of a socket"


NUMERIC: Final = (Kind.DURATION, Kind.COUNT, Kind.BYTES, Kind.TOKENS, Kind.USD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One setting.

    `default` is written as the environment would have it and goes through the same parser; None means that nothing
    is set, and `unset` says what happens then. `least`/`most` bound whole numbers (milliseconds for a duration).
    `zero` says what 0 means: the built-in default, or a value of its own. `in_file` is false for what `peen.yaml` may
    not hold.
    """

    name: str
    kind: Kind
    meaning: str
    example: str
    section: str
    default: str | None = None
    unset: str = ""
    words: tuple[str, ...] = ()
    most: int = _ANY_SIZE
    zero: Literal["default", "value"] = "default"
    in_file: bool = True

    @property
    def field(self) -> str:
        """Attribute of `Settings`."""
        return self.name.removeprefix("PEEN_").lower() + ("_ms" if self.kind is Kind.DURATION else "")

    @property
    def key(self) -> str:
        """Key in `peen.yaml`."""
        first, *rest = self.name.removeprefix("PEEN_").lower().split("_")
        return first + "".join(word.capitalize() for word in rest)


def _logging() -> list[Variable]:
    section = "Logging"
    return [
        Variable(name="LOG_LEVEL", kind=Kind.CHOICE, section=section, words=("debug", "info", "warn", "error"),
                 default="info", example="debug", meaning="Least level of what goes to standard output."),
        Variable(name="LOG_FORMAT", kind=Kind.CHOICE, section=section, words=("text", "json"), default="text",
                 example="json", meaning="Form of the lines on standard output."),
        Variable(name="LOG_ADD_SOURCE", kind=Kind.SWITCH, section=section, default="off", example="on",
                 meaning="Adds the source position to every line."),
        Variable(name="PEEN_LOG_DIRECTORY", kind=Kind.DIRECTORY, section=section, unset="`PEEN_STATE_DIR/logs`",
                 example="/var/log/peen", meaning="Where the daily audit files go."),
        Variable(name="PEEN_LOG_RETENTION_DAYS", kind=Kind.COUNT, section=section, default="14", most=36_500,
                 example="30", meaning="Audit files older than this many days are deleted."),
    ]  # fmt: skip


def _places() -> list[Variable]:
    section = "Directories and process"
    return [
        Variable(name="PEEN_CONFIG_DIR", kind=Kind.DIRECTORY, section=section, example="/etc/peen", in_file=False,
                 unset="`$XDG_CONFIG_HOME/peen`, else `~/.config/peen`",
                 meaning="Trusted harness layer, prompt files and `peen.yaml`."),
        Variable(name="PEEN_STATE_DIR", kind=Kind.DIRECTORY, section=section, example="/var/lib/peen",
                 unset="`$XDG_STATE_HOME/peen`, else `~/.local/state/peen`",
                 meaning="Databases, logs, sockets and `controller.lock`; never given to a worker."),
        Variable(name="PEEN_WORKSPACE_ROOT", kind=Kind.DIRECTORY, section=section, example="/srv/work",
                 unset="the home directory if the start directory lies in it, else the start directory",
                 meaning="The one directory that a workspace must be or lie in. It must exist."),
        Variable(name="PEEN_WORKER_SOCKET_DIR", kind=Kind.DIRECTORY, section=section, example="/run/peen",
                 unset="`PEEN_STATE_DIR/workers`",
                 meaning="Root of the sessions' socket directories. The longest socket path must fit 107 bytes."),
        Variable(name="PEEN_CRASH_RECOVERY", kind=Kind.CHOICE, section=section, words=("pause", "resume"),
                 default="pause", example="resume",
                 meaning="Whether work that a crash or a shutdown interrupted waits, or goes on at the next start."),
        Variable(name="PEEN_SYSTEM_AGENT", kind=Kind.SWITCH, section=section, default="off", example="on",
                 meaning="Enables the deployment's one system session."),
        Variable(name="PEEN_AGENT", kind=Kind.NAME, section=section, default="default", example="reviewer",
                 meaning="Agent definition of the root conversation."),
        Variable(name="PEEN_SHUTDOWN_TIMEOUT", kind=Kind.DURATION, section=section, default="30s", example="1m",
                 meaning="Limit on the whole orderly stop; what still runs then is killed."),
        Variable(name="PEEN_WORKER_IDLE_TIMEOUT", kind=Kind.DURATION, section=section, default="10m", example="1h",
                 meaning="A worker with no turn, child or job is stopped after this; the next message starts another."),
    ]  # fmt: skip


def _http() -> list[Variable]:
    section = "HTTP"
    return [
        Variable(name="PEEN_HTTP_LISTEN_ADDRESS", kind=Kind.ADDRESS, section=section, default="127.0.0.1:8080",
                 example="127.0.0.1:8080",
                 meaning="REST, WebSocket and browser app. `:8080` is every interface, port 0 a free one. An address "
                         "that is not loopback needs `PEEN_API_TOKEN`."),
        Variable(name="PEEN_API_TOKEN", kind=Kind.SECRET, section=section, example="a-long-random-text",
                 in_file=False, unset="no authentication",
                 meaning="Bearer token that REST and WebSocket clients must send."),
        Variable(name="PEEN_ALLOWED_HOSTS", kind=Kind.HOSTS, section=section, default="",
                 example="peen.example.org,10.0.0.5:8080", unset="none",
                 meaning="Further values of the `Host` header that are accepted, separated by commas."),
        Variable(name="PEEN_METRICS_LISTEN_ADDRESS", kind=Kind.ADDRESS, section=section, default="127.0.0.1:9090",
                 example="127.0.0.1:9090",
                 meaning="Metrics listener: a loopback IP address with a port. Checked, not served in this release."),
    ]  # fmt: skip


def _spaces() -> list[Variable]:
    section = "Agent spaces"
    later = "Docker agent spaces are not part of this release: a value is refused."
    return [
        Variable(name="PEEN_DEFAULT_AGENT_SPACE", kind=Kind.CHOICE, section=section, words=("control",),
                 default="control", example="control", meaning="Agent space of a session that names none."),
        Variable(name="PEEN_DOCKER_PROFILES", kind=Kind.PROFILES, section=section, default="[]", example="[]",
                 meaning=later),
        Variable(name="PEEN_DOCKER_SOCKET", kind=Kind.DOCKER_SOCKET, section=section, example="", unset="none",
                 meaning=later),
        Variable(name="PEEN_WORKER_IMAGE", kind=Kind.TEXT, section=section, example="peen:latest", unset="none",
                 meaning="Image that replaces every profile's. Checked, not used in this release."),
        Variable(name="PEEN_HOST_USERNAME", kind=Kind.NAME, section=section, example="alice", unset="none",
                 meaning="Account to recreate in containers; goes with `PEEN_HOST_HOME`. Checked, not used in this "
                         "release."),
        Variable(name="PEEN_HOST_HOME", kind=Kind.DIRECTORY, section=section, example="/home/alice", unset="none",
                 meaning="Home of that account; goes with `PEEN_HOST_USERNAME`."),
    ]  # fmt: skip


def _models() -> list[Variable]:
    section = "Models and context"
    return [
        Variable(name="PEEN_UPSTREAMS", kind=Kind.UPSTREAMS, section=section,
                 example='[{"name":"demo","type":"scripted","script":"demo.yaml"}]',
                 unset="the embedded upstream `scripted` with its model `scripted/demo`",
                 meaning="Upstreams; see below for the fields."),
        Variable(name="PEEN_DEFAULT_MODEL", kind=Kind.MODEL, section=section, example="scripted/demo",
                 unset="the first model of the first upstream", meaning="Model of a message that names none."),
        Variable(name="PEEN_COMPACTION_MODEL", kind=Kind.MODEL, section=section, example="scripted/demo",
                 unset="the default model",
                 meaning="Model that writes summaries; with `summarize` a start is refused if it does not exist."),
        Variable(name="PEEN_MAX_CONTEXT_TOKENS", kind=Kind.TOKENS, section=section, example="131072",
                 unset="the model's published window, else 131072", meaning="Context limit."),
        Variable(name="PEEN_OUTPUT_RESERVE_TOKENS", kind=Kind.TOKENS, section=section, example="16384",
                 unset="16384 or a quarter of the window, the smaller",
                 meaning="Left free for the answer: prompt budget = context limit - reserve."),
        Variable(name="PEEN_COMPACTION_MODE", kind=Kind.CHOICE, section=section, words=("drop-oldest", "summarize"),
                 default="drop-oldest", example="summarize",
                 meaning="What happens to a history over the budget; docs/context.md tells more."),
        Variable(name="PEEN_COMPACTION_MAX_OUTPUT_TOKENS", kind=Kind.TOKENS, section=section, default="2048",
                 example="4096", meaning="Length of a summary; below the context limit."),
        Variable(name="PEEN_COMPACTION_TIMEOUT", kind=Kind.DURATION, section=section, default="2m", example="5m",
                 meaning="Limit on one summary, with every attempt at it."),
        Variable(name="PEEN_PROVIDER_IDLE_TIMEOUT", kind=Kind.DURATION, section=section, default="2m", example="5m",
                 meaning="Silence of a provider after which its request counts as failed and is tried again."),
        Variable(name="PEEN_PROVIDER_RETRY_MAX_DELAY", kind=Kind.DURATION, section=section, default="1m",
                 example="2m", meaning="Longest `Retry-After` that is waited for; beyond it the turn fails."),
        Variable(name="PEEN_MAX_SESSION_COST_USD", kind=Kind.USD, section=section, default="0", zero="value",
                 most=1_000_000, example="2.50",
                 meaning="Cost limit of one session over root and children, as far as prices are known; 0 is none."),
        Variable(name="PEEN_MAX_SESSION_TOKENS", kind=Kind.TOKENS, section=section, default="0", zero="value",
                 most=2**53, example="5000000",
                 meaning="Token limit of one session, read and written, as far as providers report them; 0 is none."),
    ]  # fmt: skip


def _turns() -> list[Variable]:
    section = "Turns and messages"
    return [
        Variable(name="PEEN_TURN_TIMEOUT", kind=Kind.DURATION, section=section, example="30m", unset="none",
                 meaning="Limit on a whole turn."),
        Variable(name="PEEN_MAX_CONCURRENT_TURNS", kind=Kind.COUNT, section=section, default="64", example="16",
                 meaning="Turns that run at once in the deployment; further ones wait."),
        Variable(name="PEEN_MAX_QUEUED_USER_MESSAGES", kind=Kind.COUNT, section=section, default="16", example="32",
                 meaning="Messages that may wait for the root conversation, and for each child agent."),
        Variable(name="PEEN_MAX_MESSAGE_BYTES", kind=Kind.BYTES, section=section, default="262144", most=4 * _MIB,
                 example="524288", meaning="One user message."),
        Variable(name="PEEN_MAX_SYSTEM_PROMPT_BYTES", kind=Kind.BYTES, section=section, default="65536",
                 most=4 * _MIB, example="131072", meaning="The system prompt that a message may carry."),
        Variable(name="PEEN_MAX_STORED_MESSAGE_BYTES", kind=Kind.BYTES, section=section, default="1048576",
                 most=16 * _MIB, example="2097152", meaning="One stored message."),
        Variable(name="PEEN_MAX_IMAGES_PER_MESSAGE", kind=Kind.COUNT, section=section, default="4", example="8",
                 meaning="Images of one message."),
        Variable(name="PEEN_MAX_IMAGE_BYTES", kind=Kind.BYTES, section=section, default="5242880",
                 most=16 * _MIB, example="10485760", meaning="One image, decoded."),
        Variable(name="PEEN_MAX_TOOL_ROUNDS", kind=Kind.COUNT, section=section, default="200", example="50",
                 meaning="Model rounds of one root turn."),
    ]  # fmt: skip


def _tools() -> list[Variable]:
    def limit(name: str, kind: Kind, default: str, meaning: str, *, example: str, most: int = _ANY_SIZE) -> Variable:
        return Variable(
            name=name, kind=kind, section="Tools", default=default, meaning=meaning, example=example, most=most
        )

    return [
        limit("PEEN_MAX_CONCURRENT_TOOLS", Kind.COUNT, "4", "Calls of one round that run at once.", example="8"),
        limit("PEEN_TOOL_TIMEOUT", Kind.DURATION, "15m", "Every call except runCommand and waitJob.", example="5m"),
        limit("PEEN_MAX_TOOL_RESULT_TOKENS", Kind.TOKENS, "8192", "A result as the model gets it.", example="16384",
              most=1_000_000),
        limit("PEEN_DEFAULT_TOOL_COMMAND_TIMEOUT", Kind.DURATION, "2m",
              "Wait of runCommand and waitJob that name none; a longer one may be named.", example="5m"),
        limit("PEEN_TOOL_MAX_LIST_ENTRIES", Kind.COUNT, "1000", "Entries of one listFiles.", example="2000"),
        limit("PEEN_TOOL_MAX_LIST_DEPTH", Kind.COUNT, "16", "Depth of listFiles.", example="8"),
        limit("PEEN_TOOL_MAX_SEARCH_MATCHES", Kind.COUNT, "200", "Matches of one searchText.", example="500"),
        limit("PEEN_TOOL_MAX_SEARCH_FILE_BYTES", Kind.BYTES, "2097152", "Larger files are not searched.",
              example="4194304"),
        limit("PEEN_TOOL_MAX_READ_BYTES", Kind.BYTES, "262144", "A file that readFile reads.", example="524288"),
        limit("PEEN_TOOL_MAX_READ_LINES", Kind.COUNT, "2000", "Lines of one readFile.", example="4000"),
        limit("PEEN_TOOL_MAX_WRITE_BYTES", Kind.BYTES, "4194304",
              "A file that writeFile, editFile or applyPatch writes.", example="8388608"),
        limit("PEEN_TOOL_MAX_EDITS", Kind.COUNT, "64", "Edits of one editFile.", example="128"),
        limit("PEEN_TOOL_MAX_DIFF_BYTES", Kind.BYTES, "65536", "A returned diff.", example="131072"),
        limit("PEEN_TOOL_MAX_REMOVE_ENTRIES", Kind.COUNT, "20000", "Entries of one removePath.", example="1000"),
        limit("PEEN_TOOL_MAX_COMMAND_OUTPUT_BYTES", Kind.BYTES, "65536", "Output kept of a command, each stream.",
              example="131072"),
        Variable(name="PEEN_MAX_JOB_OUTPUT_BYTES", kind=Kind.BYTES, section="Tools", default="1073741824", zero="value",
                 most=2**50, example="104857600",
                 meaning="Output stored of one command; later output is not; 0 is no limit."),
        Variable(name="PEEN_JOB_OUTPUT_MIN_FREE_BYTES", kind=Kind.BYTES, section="Tools", zero="value", most=2**50,
                 example="1073741824", unset="5 % of the disk, at least 16 and at most 512 MiB",
                 meaning="With less free space on the disk of PEEN_STATE_DIR no output of commands is stored; 0 is no "
                         "floor."),
        limit("PEEN_MCP_STARTUP_TIMEOUT", Kind.DURATION, "10s", "Start of one MCP server.", example="30s"),
    ]  # fmt: skip


def _hooks() -> list[Variable]:
    section = "Hooks and session events"
    return [
        Variable(name="PEEN_DEFAULT_HOOK_COMMAND_TIMEOUT", kind=Kind.DURATION, section=section, default="30s",
                 example="1m", meaning="A hook command that names no timeout of its own."),
        Variable(name="PEEN_MAX_HOOK_COMMAND_OUTPUT", kind=Kind.BYTES, section=section, default="65536",
                 example="131072", meaning="Standard output and standard error of a hook command, each."),
        Variable(name="PEEN_STRICT_HOOKS", kind=Kind.SWITCH, section=section, default="off", example="on",
                 meaning="An invalid `hooks.yaml` fails the turn instead of warning."),
        Variable(name="PEEN_MAX_PENDING_EVENTS", kind=Kind.COUNT, section=section, default="256", example="512",
                 meaning="Waiting session events that are kept in memory; all of them are stored."),
        Variable(name="PEEN_MAX_EVENT_SUMMARY_BYTES", kind=Kind.BYTES, section=section, default="4096",
                 example="8192", meaning="Summary of a session event."),
        Variable(name="PEEN_MAX_EVENT_DATA_BYTES", kind=Kind.BYTES, section=section, default="65536",
                 example="131072", meaning="Encoded data of a session event."),
        Variable(name="PEEN_MAX_EVENT_WAKES_PER_HOUR", kind=Kind.COUNT, section=section, default="60", zero="value",
                 example="20", meaning="Turns that events may start in one session in an hour; 0 is no limit."),
    ]  # fmt: skip


def _children() -> list[Variable]:
    section = "Child agents"
    return [
        Variable(name="PEEN_MAX_CHILD_AGENT_DEPTH", kind=Kind.COUNT, section=section, default="5", example="3",
                 meaning="Depth at which an agent can launch no further one."),
        Variable(name="PEEN_MAX_CHILD_AGENT_TURNS", kind=Kind.COUNT, section=section, default="64", example="16",
                 meaning="Model rounds of one child."),
        Variable(name="PEEN_MAX_CONCURRENT_AGENT_RUNS", kind=Kind.COUNT, section=section, default="4", example="8",
                 meaning="Children of one session that run at once; further ones wait."),
        Variable(name="PEEN_MAX_AGENT_RUNS_PER_TURN", kind=Kind.COUNT, section=section, default="32", example="8",
                 meaning="All descendants of one root turn."),
        Variable(name="PEEN_MAX_AGENT_RUN_EVENT_COUNT", kind=Kind.COUNT, section=section, default="2000",
                 example="500", meaning="Events of a child that are kept in memory."),
        Variable(name="PEEN_MAX_AGENT_RUN_EVENT_BYTES", kind=Kind.BYTES, section=section, default="65536",
                 example="131072", meaning="Size of those events; the oldest go first."),
        Variable(name="PEEN_MAX_ADHOC_AGENT_INSTRUCTION_BYTES", kind=Kind.BYTES, section=section, default="65536",
                 example="131072", meaning="Instructions of an agent that is defined at its launch."),
    ]  # fmt: skip


VARIABLES: Final[tuple[Variable, ...]] = (
    *_logging(), *_places(), *_http(), *_spaces(), *_models(), *_turns(), *_tools(), *_hooks(), *_children(),
)  # fmt: skip
BY_NAME: Final = {variable.name: variable for variable in VARIABLES}
BY_KEY: Final = {variable.key: variable for variable in VARIABLES}

RENAMED: Final = {
    "PEEN_TOOL_COMMAND_TIMEOUT": "PEEN_DEFAULT_TOOL_COMMAND_TIMEOUT",
    "PEEN_HOOK_COMMAND_TIMEOUT": "PEEN_DEFAULT_HOOK_COMMAND_TIMEOUT",
    "PEEN_EXECUTION_PROFILES": "PEEN_DOCKER_PROFILES",
    "PEEN_DEFAULT_EXECUTION_PROFILE": "PEEN_DEFAULT_AGENT_SPACE",
}
"""Earlier names: set, they change nothing, and the warning names the new one."""
