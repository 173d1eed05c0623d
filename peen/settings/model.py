"""The settings of one process, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from peen.settings.address import ListenAddress
from peen.settings.directories import check_only_ours, ensure_private_directory
from peen.settings.environment import worker_environment
from peen.settings.upstreams import EMBEDDED, EMBEDDED_MODEL
from peen.wire.launch import UpstreamConfig, WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting under the name of its variable.

    `_ms` is milliseconds, sizes are bytes, None means that nothing is set.
    `upstream_choice` is a sentence for people: which upstreams are used and why. `warnings` are for the log.
    """

    log_level: Literal["debug", "info", "warn", "error"]
    log_format: Literal["text", "json"]
    log_add_source: bool
    log_directory: Path
    log_retention_days: int

    config_dir: Path
    state_dir: Path
    workspace_root: Path
    worker_socket_dir: Path
    crash_recovery: Literal["pause", "resume"]
    system_agent: bool
    agent: str
    shutdown_timeout_ms: int
    worker_idle_timeout_ms: int

    http_listen_address: ListenAddress
    api_token: str | None
    allowed_hosts: tuple[str, ...]
    metrics_listen_address: ListenAddress

    default_agent_space: str
    docker_profiles: tuple[()]
    docker_socket: Path | None
    worker_image: str | None
    host_username: str | None
    host_home: Path | None

    upstreams: tuple[UpstreamConfig, ...]
    default_model: str | None
    compaction_model: str | None
    max_context_tokens: int | None
    output_reserve_tokens: int | None
    compaction_mode: Literal["drop-oldest", "summarize"]
    compaction_max_output_tokens: int
    compaction_timeout_ms: int
    provider_idle_timeout_ms: int
    provider_retry_max_delay_ms: int
    max_session_cost_usd: Decimal
    max_session_tokens: int

    turn_timeout_ms: int | None
    max_concurrent_turns: int
    max_queued_user_messages: int
    max_message_bytes: int
    max_system_prompt_bytes: int
    max_stored_message_bytes: int
    max_images_per_message: int
    max_image_bytes: int
    max_tool_rounds: int

    max_concurrent_tools: int
    tool_timeout_ms: int
    max_tool_result_tokens: int
    default_tool_command_timeout_ms: int
    tool_max_list_entries: int
    tool_max_list_depth: int
    tool_max_search_matches: int
    tool_max_search_file_bytes: int
    tool_max_read_bytes: int
    tool_max_read_lines: int
    tool_max_write_bytes: int
    tool_max_edits: int
    tool_max_diff_bytes: int
    tool_max_remove_entries: int
    tool_max_command_output_bytes: int
    max_job_output_bytes: int
    job_output_min_free_bytes: int | None
    mcp_startup_timeout_ms: int

    default_hook_command_timeout_ms: int
    max_hook_command_output: int
    strict_hooks: bool
    max_pending_events: int
    max_event_summary_bytes: int
    max_event_data_bytes: int
    max_event_wakes_per_hour: int

    max_child_agent_depth: int
    max_child_agent_turns: int
    max_concurrent_agent_runs: int
    max_agent_runs_per_turn: int
    max_agent_run_event_count: int
    max_agent_run_event_bytes: int
    max_adhoc_agent_instruction_bytes: int

    upstream_choice: str
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # The generated one would print the token into whatever log or traceback shows it.
        return f"<Settings config={self.config_dir} state={self.state_dir} listen={self.http_listen_address}>"

    @property
    def control_socket(self) -> Path:
        """Unix socket on which a controller serves commands of the same user."""
        return self.state_dir / "control.sock"

    def worker_settings(self, default_model: str | None = None) -> WorkerSettings:
        """What a worker is told. `default_model` is the resolved one, needed only while PEEN_DEFAULT_MODEL is unset.

        Raises: ValueError if the default model is still unknown.
        """
        model = default_model or self.default_model
        if model is None and self.upstreams == (EMBEDDED,):
            model = EMBEDDED_MODEL
        if model is None:
            raise ValueError("no default model yet: pass the first model of the first upstream")
        return WorkerSettings(
            upstreams=list(self.upstreams),
            default_model=model,
            max_context_tokens=self.max_context_tokens,
            output_reserve_tokens=self.output_reserve_tokens,
            compaction_mode=self.compaction_mode,
            compaction_model=self.compaction_model,
            compaction_max_output_tokens=self.compaction_max_output_tokens,
            compaction_timeout_ms=self.compaction_timeout_ms,
            max_tool_rounds=self.max_tool_rounds,
            turn_timeout_ms=self.turn_timeout_ms,
            max_concurrent_tools=self.max_concurrent_tools,
            tool_timeout_ms=self.tool_timeout_ms,
            max_tool_result_tokens=self.max_tool_result_tokens,
            default_command_timeout_ms=self.default_tool_command_timeout_ms,
            max_list_entries=self.tool_max_list_entries,
            max_list_depth=self.tool_max_list_depth,
            max_search_matches=self.tool_max_search_matches,
            max_search_file_bytes=self.tool_max_search_file_bytes,
            max_read_bytes=self.tool_max_read_bytes,
            max_read_lines=self.tool_max_read_lines,
            max_write_bytes=self.tool_max_write_bytes,
            max_edits=self.tool_max_edits,
            max_diff_bytes=self.tool_max_diff_bytes,
            max_remove_entries=self.tool_max_remove_entries,
            max_command_output_bytes=self.tool_max_command_output_bytes,
            max_image_bytes=self.max_image_bytes,
            provider_idle_timeout_ms=self.provider_idle_timeout_ms,
            provider_retry_max_delay_ms=self.provider_retry_max_delay_ms,
        )

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of a worker process, made from the controller's own."""
        return {**worker_environment(environ, self.upstreams), "PEEN_CONFIG_DIR": str(self.config_dir)}


def prepare_directories(settings: Settings) -> None:
    """Makes the directories of configuration, state and worker sockets where they are missing, with mode 0700.

    Nothing that exists is changed. Raises: ConfigurationInvalid if one is not a directory or cannot be made, or if
    other users can write to the state directory.
    """
    ensure_private_directory("PEEN_CONFIG_DIR", settings.config_dir, example="/etc/peen")
    ensure_private_directory("PEEN_STATE_DIR", settings.state_dir, example="/var/lib/peen")
    check_only_ours("PEEN_STATE_DIR", settings.state_dir, example="/var/lib/peen")
    ensure_private_directory("PEEN_WORKER_SOCKET_DIR", settings.worker_socket_dir, example="/run/peen")
