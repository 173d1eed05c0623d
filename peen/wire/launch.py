"""What a worker is started with."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from peen.wire.price import Price
from peen.wire.workerstruct import WorkerStruct

MAX_LAUNCH_BYTES: Final = 64 * 1024


class UpstreamConfig(WorkerStruct, frozen=True, kw_only=True):
    """One entry of PEEN_UPSTREAMS. `api_key_env` names a variable; the secret itself is never here.

    `api` is `chat` (the default) or `responses`; without `stream` answers are asked for whole. `prices` are by names of
    models, which may hold `*`. `models` are ids of models that are offered without asking the provider. `reasoning` is
    which answers of chat completions go back with theirs: `always` (the default), `calls` or `never`.
    """

    name: str
    type: str
    base_url: str | None = None
    api_key_env: str | None = None
    image_input: bool = True
    script: str | None = None
    api: str | None = None
    reasoning: str | None = None
    models: list[str] = []
    stream: bool = True
    prices: dict[str, Price] = {}


class WorkerSettings(WorkerStruct, frozen=True, kw_only=True):
    """What a worker needs of the configuration; limits are bytes, counts or milliseconds as named."""

    upstreams: list[UpstreamConfig]
    default_model: str
    max_context_tokens: int | None = None
    output_reserve_tokens: int | None = None
    compaction_mode: Literal["drop-oldest", "summarize"] = "drop-oldest"
    compaction_model: str | None = None
    compaction_max_output_tokens: int = 2048
    compaction_timeout_ms: int = 120_000
    max_tool_rounds: int = 200
    turn_timeout_ms: int | None = None
    max_concurrent_tools: int = 4
    tool_timeout_ms: int = 900_000
    max_tool_result_tokens: int = 8192
    default_command_timeout_ms: int = 120_000
    max_list_entries: int = 1000
    max_list_depth: int = 16
    max_search_matches: int = 200
    max_search_file_bytes: int = 2_097_152
    max_read_bytes: int = 262_144
    max_read_lines: int = 2000
    max_write_bytes: int = 4_194_304
    max_edits: int = 64
    max_diff_bytes: int = 65_536
    max_remove_entries: int = 20_000
    max_command_output_bytes: int = 65_536
    max_image_bytes: int = 5_242_880
    provider_idle_timeout_ms: int = 120_000
    provider_retry_max_delay_ms: int = 60_000


class LaunchDocument(WorkerStruct, frozen=True, kw_only=True):
    """All that a worker is told, once, on its standard input. At most 64 KiB; paths are absolute."""

    session_id: str
    generation_id: str
    credential: str
    socket_path: str
    workspace: str
    config_directory: str
    agent_space: str
    marker: str
    settings: WorkerSettings


decode_launch: Final = msgspec.json.Decoder(LaunchDocument).decode
