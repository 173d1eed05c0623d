"""Configuration: defaults, where values come from, what is refused and how that is said."""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.duration import format_duration_ms
from peen.errors import ConfigurationInvalid
from peen.settings import (
    EMBEDDED_MODEL,
    FileSettingInvalid,
    ListenAddress,
    Settings,
    SettingsInvalid,
    check_open_files,
    command_environment,
    configuration_page,
    load_settings,
    parse_listen_address,
    prepare_directories,
)
from peen.settings.directories import check_separation
from peen.settings.environment import AMBIENT_PROVIDER_KEYS, open_files_warning
from peen.settings.parse import default_value, parse_value
from peen.settings.table import BY_NAME, NUMERIC, VARIABLES, Kind, Variable
from peen.wire.launch import UpstreamConfig

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
AS_THE_SUPERUSER = os.geteuid() == 0


class Deployment:
    """A home directory with nothing in it, and what the operator has set."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.config = self.home / ".config" / "peen"

    def load(self, environ: dict[str, str] | None = None, *, cwd: Path | None = None) -> Settings:
        return load_settings(environ or {}, cwd=cwd or self.home, home=self.home)

    def refusal(self, environ: dict[str, str] | None = None) -> ConfigurationInvalid:
        with pytest.raises(ConfigurationInvalid) as caught:
            self.load(environ)
        return caught.value

    def write_file(self, text: str) -> None:
        self.config.mkdir(parents=True, exist_ok=True)
        (self.config / "peen.yaml").write_text(text)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Shorter than pytest's own: the sockets below a home directory have to fit 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


# --- defaults -------------------------------------------------------------------------------------------------------


def test_with_nothing_set_peen_listens_on_loopback_and_answers_with_the_embedded_upstream(
    deployment: Deployment,
) -> None:
    settings = deployment.load()

    assert settings.http_listen_address == ListenAddress("127.0.0.1", 8080)
    assert settings.config_dir == deployment.home / ".config/peen"
    assert settings.state_dir == deployment.home / ".local/state/peen"
    assert settings.worker_socket_dir == settings.state_dir / "workers"
    assert settings.log_directory == settings.state_dir / "logs"
    assert settings.control_socket == settings.state_dir / "control.sock"
    assert settings.upstreams == (UpstreamConfig(name="scripted", type="scripted"),)
    assert settings.worker_settings().default_model == EMBEDDED_MODEL
    assert settings.warnings == ()


def test_the_limits_have_their_documented_defaults(deployment: Deployment) -> None:
    settings = deployment.load()

    assert settings.turn_timeout_ms is None
    assert settings.max_context_tokens is None
    assert settings.max_tool_rounds == 200
    assert settings.max_child_agent_turns == 64
    assert settings.max_concurrent_turns == 64
    assert settings.tool_timeout_ms == 900_000
    assert settings.worker_idle_timeout_ms == 600_000
    assert settings.provider_idle_timeout_ms == 120_000
    assert settings.provider_retry_max_delay_ms == 60_000
    assert settings.max_session_cost_usd == Decimal(0)
    assert (settings.crash_recovery, settings.system_agent, settings.strict_hooks) == ("pause", False, False)


def test_directories_follow_the_xdg_variables_unless_those_are_relative(deployment: Deployment) -> None:
    settings = deployment.load({"XDG_CONFIG_HOME": "/xdg/config", "XDG_STATE_HOME": "relative"})

    assert settings.config_dir == Path("/xdg/config/peen")
    assert settings.state_dir == deployment.home / ".local/state/peen"


def test_the_root_is_the_home_directory_for_who_starts_in_it_and_else_where_they_start(
    deployment: Deployment, tmp_path: Path
) -> None:
    inside, outside = deployment.home / "code", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()

    assert deployment.load(cwd=inside).workspace_root == deployment.home
    assert deployment.load(cwd=outside).workspace_root == outside


# --- the table ------------------------------------------------------------------------------------------------------


def test_every_row_has_its_field_and_every_field_its_row() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)}

    assert fields - {variable.field for variable in VARIABLES} == {"upstream_choice", "warnings"}
    assert {variable.field for variable in VARIABLES} - fields == set()
    assert len({variable.key for variable in VARIABLES}) == len(VARIABLES)


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.example], ids=lambda v: v.name)
def test_the_example_of_an_error_message_is_a_value_that_works(variable: Variable, deployment: Deployment) -> None:
    deployment.config.mkdir(parents=True)
    (deployment.config / "demo.yaml").write_text("turns: []")
    environ = {variable.name: variable.example, "PEEN_API_TOKEN": "secret"}
    if variable.kind is Kind.DIRECTORY:
        environ[variable.name] = str(deployment.home)
    if variable.name.startswith("PEEN_HOST_"):
        environ = {"PEEN_HOST_USERNAME": "alice", "PEEN_HOST_HOME": "/home/alice"}
    if variable.name in ("PEEN_CONFIG_DIR", "PEEN_STATE_DIR"):
        environ[variable.name] = variable.example

    settings = deployment.load(environ)

    assert getattr(settings, variable.field) is not None
    assert settings.warnings == ()


def test_the_page_of_the_documentation_is_fresh() -> None:
    remedy = "python -c 'from peen.settings import *; print(configuration_page(), end=str())' > docs/configuration.md"
    assert PAGE.read_text() == configuration_page(), remedy


def test_the_page_names_every_variable() -> None:
    page = configuration_page()

    assert [v.name for v in VARIABLES if f"| `{v.name}` |" not in page] == []


def test_the_file_shown_on_the_page_works(deployment: Deployment) -> None:
    _before, _fence, rest = configuration_page().partition("```yaml\n")
    deployment.write_file(rest.partition("```")[0])
    (deployment.config / "demo.yaml").write_text("turns: []")

    settings = deployment.load()

    assert (settings.log_format, settings.turn_timeout_ms, settings.strict_hooks) == ("json", 1_800_000, True)
    assert [upstream.name for upstream in settings.upstreams] == ["demo"]


# --- numbers and durations ------------------------------------------------------------------------------------------


@given(st.integers(min_value=1, max_value=10**12))
def test_a_duration_is_read_to_the_millisecond(ms: int) -> None:
    assert parse_value(BY_NAME["PEEN_TOOL_TIMEOUT"], format_duration_ms(ms)) == ms


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("1h30m", 5_400_000), ("2m", 120_000), ("1.5s", 1500), ("1us", 1)]
)
def test_durations_are_written_as_in_go(deployment: Deployment, text: str, ms: int) -> None:
    assert deployment.load({"PEEN_TURN_TIMEOUT": text}).turn_timeout_ms == ms


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.kind in NUMERIC], ids=lambda v: v.name)
def test_zero_is_the_default_or_where_that_is_documented_a_value(variable: Variable) -> None:
    unlimited = {
        "PEEN_JOB_OUTPUT_MIN_FREE_BYTES",
        "PEEN_MAX_EVENT_WAKES_PER_HOUR",
        "PEEN_MAX_JOB_OUTPUT_BYTES",
        "PEEN_MAX_SESSION_COST_USD",
        "PEEN_MAX_SESSION_TOKENS",
    }

    value = parse_value(variable, "0")

    assert value == (0 if variable.name in unlimited else default_value(variable))


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.kind in NUMERIC], ids=lambda v: v.name)
def test_a_negative_number_is_refused(variable: Variable, deployment: Deployment) -> None:
    refusal = deployment.refusal({variable.name: "-1s" if variable.kind is Kind.DURATION else "-1"})

    assert refusal.variable == variable.name
    assert "negative" in refusal.problem
    assert f"(example: {variable.name}={variable.example})" in str(refusal)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("PEEN_MAX_TOOL_ROUNDS", "1_000", "not a whole number"),
        ("PEEN_MAX_TOOL_ROUNDS", "٣", "not a whole number"),
        ("PEEN_MAX_TOOL_ROUNDS", "9" * 5000, "not a whole number"),
        ("PEEN_MAX_TOOL_ROUNDS", "99999999999", "above 2147483647"),
        ("PEEN_MAX_MESSAGE_BYTES", "4194305", "above 4194304"),
        ("PEEN_TURN_TIMEOUT", "10", "unit"),
        ("PEEN_MAX_SESSION_COST_USD", "1e3", "not an amount"),
        ("LOG_LEVEL", "verbose", "not one of: debug, info, warn, error"),
        ("PEEN_CRASH_RECOVERY", "restart", "not one of: pause, resume"),
        ("PEEN_SYSTEM_AGENT", "perhaps", "neither on nor off"),
        ("PEEN_STATE_DIR", "state", "not an absolute path"),
        ("PEEN_AGENT", "../root", "not a name"),
        ("PEEN_DEFAULT_MODEL", "demo", "not <upstream>/<model>"),
        ("PEEN_DEFAULT_MODEL", "other/demo", "names no configured upstream; known: scripted"),
        ("PEEN_COMPACTION_MAX_OUTPUT_TOKENS", "131072", "not below the context limit of 131072"),
        ("PEEN_METRICS_LISTEN_ADDRESS", "127.0.0.1:0", "not a loopback IP address with a port"),
        ("PEEN_METRICS_LISTEN_ADDRESS", ":9090", "not a loopback IP address with a port"),
        ("PEEN_METRICS_LISTEN_ADDRESS", "localhost:9090", "not a loopback IP address with a port"),
        ("PEEN_ALLOWED_HOSTS", "https://peen.example.org", "not a host or host:port"),
        ("PEEN_ALLOWED_HOSTS", "*.example.org", "not a host or host:port"),
        ("PEEN_HOST_USERNAME", "alice", "PEEN_HOST_HOME is not"),
        ("PEEN_WORKSPACE_ROOT", "/no/such/directory", "not an existing directory"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_reason(deployment: Deployment, name: str, text: str, problem: str) -> None:
    refusal = deployment.refusal({name: text})

    assert refusal.variable == name
    assert problem in refusal.problem
    assert len(str(refusal).splitlines()) == 1


def test_the_output_reserve_must_leave_room_in_the_context(deployment: Deployment) -> None:
    refusal = deployment.refusal({"PEEN_MAX_CONTEXT_TOKENS": "8192", "PEEN_OUTPUT_RESERVE_TOKENS": "8192"})

    assert refusal.variable == "PEEN_OUTPUT_RESERVE_TOKENS"


def test_all_mistakes_are_reported_together_one_a_line(deployment: Deployment) -> None:
    refusal = deployment.refusal(
        {"PEEN_TURN_TIMEOUT": "soon", "PEEN_MAX_TOOL_ROUNDS": "many", "PEEN_HTTP_LISTEN_ADDRESS": "8080"}
    )

    assert isinstance(refusal, SettingsInvalid)
    names = ["PEEN_HTTP_LISTEN_ADDRESS", "PEEN_TURN_TIMEOUT", "PEEN_MAX_TOOL_ROUNDS"]
    assert [problem.variable for problem in refusal.problems] == names
    assert [line.split(":")[0] for line in str(refusal).splitlines()] == names


def test_an_empty_variable_counts_as_not_set(deployment: Deployment) -> None:
    everything_empty = dict.fromkeys([*BY_NAME, "PEEN_WORKSPACE_ROOTS", "PEEN_ENABLE_WORKSPACE_HOOKS"], "")

    assert deployment.load(everything_empty) == deployment.load()


# --- names ----------------------------------------------------------------------------------------------------------


def test_an_unknown_variable_is_warned_of_with_the_nearest_name(deployment: Deployment) -> None:
    settings = deployment.load({"PEEN_TURN_TIMEOUTS": "1m", "PEEN_HOOK_COMMAND_TIMEOUT": "1m", "PEENUT": "x"})

    renamed, unknown = settings.warnings
    assert renamed.startswith("PEEN_HOOK_COMMAND_TIMEOUT is an earlier name")
    assert renamed.endswith("PEEN_DEFAULT_HOOK_COMMAND_TIMEOUT")
    assert unknown.endswith("did you mean PEEN_TURN_TIMEOUT?")


def test_removed_settings_stop_the_start(deployment: Deployment) -> None:
    assert "PEEN_WORKSPACE_ROOT " in deployment.refusal({"PEEN_WORKSPACE_ROOTS": "/a:/b"}).problem
    for off in ("false", "0", "off", "whatever"):
        assert deployment.refusal({"PEEN_ENABLE_WORKSPACE_HOOKS": off}).variable == "PEEN_ENABLE_WORKSPACE_HOOKS"
    assert deployment.load({"PEEN_ENABLE_WORKSPACE_HOOKS": "true"}).warnings == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PEEN_DOCKER_PROFILES", '[{"name":"tools"}]'),
        ("PEEN_DOCKER_SOCKET", "/var/run/docker.sock"),
        ("PEEN_DEFAULT_AGENT_SPACE", "docker:tools"),
    ],
)
def test_docker_spaces_are_refused_and_never_silently_left_out(deployment: Deployment, name: str, text: str) -> None:
    refusal = deployment.refusal({name: text})

    assert refusal.variable == name
    assert "Docker agent spaces are not part of this release" in refusal.problem


# --- peen.yaml ------------------------------------------------------------------------------------------------------


def test_the_file_gives_values_and_the_environment_wins(deployment: Deployment) -> None:
    deployment.write_file(
        "logLevel: debug\nturnTimeout: 5m\nmaxToolRounds: 7\nstrictHooks: on\nmaxSessionCostUsd: 2.50\n"
        "allowedHosts: [a.example, 'b.example:81']\nstateDir: /file/state\nagent:\n"
    )

    settings = deployment.load({"PEEN_MAX_TOOL_ROUNDS": "9", "PEEN_STATE_DIR": ""})

    assert (settings.log_level, settings.turn_timeout_ms, settings.strict_hooks) == ("debug", 300_000, True)
    assert settings.max_tool_rounds == 9
    assert settings.max_session_cost_usd == Decimal("2.5")
    assert settings.allowed_hosts == ("a.example", "b.example:81")
    assert settings.state_dir == Path("/file/state")
    assert settings.agent == "default"


def test_upstreams_may_be_a_list_in_the_file(deployment: Deployment) -> None:
    deployment.write_file("upstreams:\n  - name: demo\n    type: scripted\n    script: s.yaml\n")
    (deployment.config / "s.yaml").write_text("turns: []")

    settings = deployment.load()

    script = str(deployment.config / "s.yaml")
    assert settings.upstreams == (UpstreamConfig(name="demo", type="scripted", script=script),)
    assert "peen.yaml" in settings.upstream_choice


def test_an_unknown_key_is_an_error_that_names_the_nearest(deployment: Deployment) -> None:
    deployment.write_file("turnTimout: 5m\n")

    refusal = deployment.refusal()

    assert isinstance(refusal, FileSettingInvalid)
    assert refusal.key == "turnTimout"
    assert "the nearest one is turnTimeout" in str(refusal)


def test_a_wrong_value_in_the_file_is_named_by_file_and_key(deployment: Deployment) -> None:
    deployment.write_file("maxToolRounds: many\n")

    refusal = deployment.refusal()

    assert refusal.variable == "PEEN_MAX_TOOL_ROUNDS"
    assert str(refusal).startswith(f"{deployment.config / 'peen.yaml'}: maxToolRounds: 'many' is not")
    assert deployment.load({"PEEN_MAX_TOOL_ROUNDS": "5"}).max_tool_rounds == 5  # what is not used is not judged


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n- b\n", "is not a mapping"),
        ("turnTimeout: [1\n", "is not valid YAML"),
        ("turnTimeout: 5m\nturnTimeout: 6m\n", "the key turnTimeout is there twice"),
        ("turnTimeout: 2023-02-31\n", "is not valid YAML"),
        ("turnTimeout: {a: 1}\n", "holds a dict where duration is expected"),
        ("allowedHosts: [1, 2]\n", "holds a list where list of hosts is expected"),
        ("apiToken: secret\n", "agents can read this file"),
        ("configDir: /etc\n", "says where this file is"),
        ("!!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        ("# " + "x" * 1_048_576, "is larger than"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(deployment: Deployment, text: str, problem: str) -> None:
    deployment.write_file(text)

    assert problem in str(deployment.refusal())


# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.8.9.1:1", "127.8.9.1", 1, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:0", "::1", 0, True),
        (":8080", "", 8080, False),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("[::]:80", "::", 80, False),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80, False),
        ("peen.example.org:443", "peen.example.org", 443, False),
    ],
)
def test_listen_addresses(text: str, host: str, port: int, loopback: bool) -> None:
    address = parse_listen_address(text)

    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "8080", "localhost", "::1:80", "[::1]", "[zz]:80", "host:65536", "host:-1", "host:http", "127.1:80",
             "999.0.0.1:80", "a b:80", "-a.org:80", "http://a:80", "127.0.0.1:8080 "],
)  # fmt: skip
def test_what_is_no_listen_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|above"):
        parse_listen_address(text)


def test_an_address_beyond_loopback_needs_a_token(deployment: Deployment) -> None:
    refusal = deployment.refusal({"PEEN_HTTP_LISTEN_ADDRESS": ":8080"})

    assert "PEEN_API_TOKEN must be set" in refusal.problem
    assert len(str(refusal).splitlines()) == 1
    assert deployment.load({"PEEN_HTTP_LISTEN_ADDRESS": ":8080", "PEEN_API_TOKEN": "t"}).api_token == "t"


def test_the_token_is_in_no_message_and_no_repr(deployment: Deployment) -> None:
    refusal = deployment.refusal({"PEEN_API_TOKEN": "hush hush"})
    settings = deployment.load({"PEEN_API_TOKEN": "hush-hush"})

    assert refusal.variable == "PEEN_API_TOKEN"
    assert "hush" not in str(refusal)
    assert "hush" not in repr(settings)


# --- upstreams ------------------------------------------------------------------------------------------------------


def upstreams(*entries: dict[str, Any]) -> dict[str, str]:
    return {"PEEN_UPSTREAMS": msgspec.json.encode(list(entries)).decode()}


def test_a_script_is_found_beside_the_configuration_or_by_its_absolute_path(deployment: Deployment) -> None:
    deployment.write_file("")
    script = deployment.config / "s.yaml"
    script.write_text("turns: []")

    settings = deployment.load(
        upstreams(
            {"name": "a", "type": "scripted", "script": "s.yaml"},
            {"name": "b", "type": "scripted", "script": str(script)},
        )
    )

    assert [upstream.script for upstream in settings.upstreams] == [str(script), str(script)]
    assert settings.upstream_choice == "PEEN_UPSTREAMS is set: using the upstreams `a` (scripted), `b` (scripted)."


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([], "the list is empty"),
        ([{"name": "a", "type": "scripted", "baseURL": "x"}], "[0].baseURL: is not a known field"),
        ([{"name": "a"}], "[0].type: is required"),
        ([{"name": "", "type": "scripted"}], "name '' must be"),
        ([{"name": "a/b", "type": "scripted"}], "name 'a/b' must be"),
        ([{"name": "a", "type": "scripted"}, {"name": "a", "type": "scripted"}], "entry 2: name 'a' is used twice"),
        ([{"name": "a", "type": "zai"}], "type 'zai' is not part of this release; known: anthropic, openai, scripted,"),
        (
            [{"name": "a", "type": "scripted", "prices": {"m": {"input": "1e3", "output": "1"}}}],
            "is not a valid list of upstreams: [0].prices.m.input: must be dollars a million tokens as decimal text, "
            'at most 9 digits and 12 behind the point ("2.50"); got "1e3"',
        ),
        ([{"name": "a", "type": "anthropic"}], "without a baseUrl the provider is Anthropic, which wants a key"),
        ([{"name": "a", "type": "openai"}], "apiKeyEnv is missing: without a baseUrl the provider is OpenAI"),
        ([{"name": "a", "type": "zai-coding"}], "apiKeyEnv is missing: without a baseUrl the provider is Z.ai"),
        ([{"name": "a", "type": "openai", "baseUrl": "http://x", "api": "chats"}], "'chat' nor 'responses'"),
        ([{"name": "a", "type": "zai-coding", "baseUrl": "http://x", "api": "chat"}], "api belongs to upstreams"),
        ([{"name": "a", "type": "openai", "baseUrl": "http://x", "reasoning": "often"}], "'often' is none of"),
        (
            [{"name": "a", "type": "openai", "baseUrl": "http://x", "api": "responses", "reasoning": "calls"}],
            "reasoning belongs to upstreams",
        ),
        ([{"name": "a", "type": "zai-coding", "baseUrl": "http://x", "reasoning": "calls"}], "reasoning belongs to"),
        ([{"name": "a", "type": "scripted", "models": ["m"]}], "models belongs to upstreams"),
        ([{"name": "a", "type": "openai", "baseUrl": "http://x", "models": ["m", ""]}], "'' must be the id"),
        ([{"name": "a", "type": "openai", "baseUrl": "http://x", "models": ["a b"]}], "'a b' must be the id"),
        ([{"name": "a", "type": "scripted", "stream": False}], "stream belongs to upstreams of a provider, not of"),
        ([{"name": "a", "type": "openai", "baseUrl": "http://x", "stream": "no"}], "[0].stream: expected `bool`, got"),
        ([{"name": "a", "type": "scripted", "script": "gone.yaml"}], "gone.yaml is not a file"),
        ([{"name": "a", "type": "scripted", "script": ""}], "script is not the path of a file"),
        ([{"name": "a", "type": "scripted", "script": "/tmp/" + "x" * 300}], "too long"),
        ([{"name": "a", "type": "scripted", "baseUrl": "ftp://x"}], "baseUrl is not"),
        ([{"name": "a", "type": "scripted", "baseUrl": "http://x:port"}], "baseUrl is not"),
        ([{"name": "a", "type": "scripted", "apiKeyEnv": "MY_KEY"}], "'MY_KEY' is not set or empty"),
        ([{"name": "a", "type": "scripted", "apiKeyEnv": "PEEN_API_TOKEN"}], "'PEEN_API_TOKEN' is a reserved name"),
        ([{"name": "a", "type": "scripted", "apiKeyEnv": "PATH"}], "'PATH' is a reserved name"),
    ],
)  # fmt: skip
def test_a_wrong_upstream_is_refused_with_its_reason(
    deployment: Deployment, entries: list[dict[str, Any]], problem: str
) -> None:
    refusal = deployment.refusal(upstreams(*entries))

    assert refusal.variable == "PEEN_UPSTREAMS"
    assert problem in refusal.problem


def test_a_key_pasted_in_place_of_its_variables_name_is_not_repeated(deployment: Deployment) -> None:
    refusal = deployment.refusal(upstreams({"name": "a", "type": "scripted", "apiKeyEnv": "sk-secret"}))

    assert "apiKeyEnv is not the name of a variable" in refusal.problem
    assert "sk-secret" not in str(refusal)


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9/v1"])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_key_is_enough_for_its_upstream(deployment: Deployment, kind: str, url: str | None) -> None:
    key = f"{kind.upper()}_API_KEY"
    environ = {key: "k", f"{kind.upper()}_BASE_URL": url or ""}

    settings = deployment.load(environ)

    assert settings.upstreams == (UpstreamConfig(name=kind, type=kind, base_url=url, api_key_env=key),)
    assert settings.upstream_choice == f"{key} is set: using the upstream `{kind}` ({kind})."
    assert settings.child_environment(environ)[key] == "k"


def test_two_keys_give_two_upstreams(deployment: Deployment) -> None:
    settings = deployment.load({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})

    assert [upstream.name for upstream in settings.upstreams] == ["anthropic", "openai"]
    assert settings.upstream_choice == (
        "ANTHROPIC_API_KEY and OPENAI_API_KEY are set: using the upstreams `anthropic` (anthropic), `openai` (openai)."
    )


@pytest.mark.parametrize("kind", ["OPENAI", "ANTHROPIC"])
def test_a_wrong_address_beside_a_key_is_refused(deployment: Deployment, kind: str) -> None:
    refusal = deployment.refusal({f"{kind}_API_KEY": "k", f"{kind}_BASE_URL": "ftp://secret@host"})

    assert refusal.problem == f"{kind}_BASE_URL is not an http or https URL"


def test_the_default_model_is_the_configured_one_or_the_one_that_was_found(deployment: Deployment) -> None:
    found_later = deployment.load(upstreams({"name": "a", "type": "scripted"}))
    configured = deployment.load({**upstreams({"name": "a", "type": "scripted"}), "PEEN_DEFAULT_MODEL": "a/m/x"})

    assert configured.worker_settings().default_model == "a/m/x"
    assert found_later.worker_settings("a/demo").default_model == "a/demo"
    with pytest.raises(ValueError, match="no default model yet"):
        found_later.worker_settings()


def test_a_worker_is_told_its_limits(deployment: Deployment) -> None:
    settings = deployment.load({
        "PEEN_TOOL_MAX_READ_LINES": "11", "PEEN_DEFAULT_TOOL_COMMAND_TIMEOUT": "3s", "PEEN_TURN_TIMEOUT": "9s",
        "PEEN_MAX_CONTEXT_TOKENS": "64000",
    })  # fmt: skip

    told = settings.worker_settings()

    assert (told.max_read_lines, told.default_command_timeout_ms, told.turn_timeout_ms) == (11, 3000, 9000)
    assert told.max_context_tokens == 64_000


# --- what processes inherit -----------------------------------------------------------------------------------------


def test_a_worker_inherits_the_keys_it_needs_and_no_secret_of_the_controller(deployment: Deployment) -> None:
    environ = {
        "PATH": "/bin", "MY_KEY": "k", "ANTHROPIC_API_KEY": "other", "PEEN_API_TOKEN": "t", "PEEN_STATE_DIR": "/s",
        "PEEN_WORKSPACE_ROOT": str(deployment.home), "PEEN_HTTP_LISTEN_ADDRESS": ":1", "PEEN_LOG_DIRECTORY": "/l",
        "PEEN_WORKER_SOCKET_DIR": "/w", "DOCKER_HOST": "unix:///d", "PEEN_TOOL_TIMEOUT": "1m",
        **upstreams({"name": "a", "type": "scripted", "apiKeyEnv": "MY_KEY"}),
    }  # fmt: skip

    child = deployment.load(environ).child_environment(environ)

    assert child == {
        "PATH": "/bin", "MY_KEY": "k", "PEEN_TOOL_TIMEOUT": "1m", "PEEN_UPSTREAMS": environ["PEEN_UPSTREAMS"],
        "PEEN_CONFIG_DIR": str(deployment.config),
    }  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["PATH", "HOME", "MY_KEY", "PAGER", "EDITOR", "PEEN_API_TOKEN", "PEEN_ANYTHING", "_PEEN_SPACE",
                         *sorted(AMBIENT_PROVIDER_KEYS)]),
        st.text(min_size=1, max_size=3),
    )
)  # fmt: skip
def test_a_command_inherits_no_key_and_nothing_of_peen(environ: dict[str, str]) -> None:
    child = command_environment(environ, [UpstreamConfig(name="a", type="x", api_key_env="MY_KEY")])

    expected: dict[str, str] = {name: environ[name] for name in ("PATH", "HOME", "_PEEN_SPACE") if name in environ}
    expected |= {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
    expected["EDITOR"] = environ.get("EDITOR", "false")
    assert child == expected


def test_the_limit_on_open_files_is_raised_as_far_as_allowed() -> None:
    program = (
        "import resource; from peen.settings import check_open_files;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256)); warning = check_open_files();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), warning)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.startswith("(256, 256) only 256 files may be open at once")
    assert open_files_warning(4096) is None
    assert open_files_warning(resource.RLIM_INFINITY) is None


def test_enough_open_files_need_no_warning() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert (check_open_files() is None) == (before[1] == resource.RLIM_INFINITY or before[1] >= 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# --- directories ----------------------------------------------------------------------------------------------------

PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map(tuple)
NOISE = st.lists(st.sampled_from(["/", "/./", "/x/../"]), min_size=4, max_size=4)


@given(PATHS, PATHS, NOISE, NOISE)
def test_two_directories_clash_exactly_if_one_path_begins_with_the_other(
    one: tuple[str, ...], other: tuple[str, ...], noise: list[str], more: list[str]
) -> None:
    def spelled(parts: tuple[str, ...], between: list[str]) -> Path:
        return Path("/no-such-root" + "".join(gap + part for gap, part in zip(between, parts, strict=False)))

    shorter = min(len(one), len(other))

    problem = check_separation(spelled(one, noise), spelled(other, more))

    assert (problem is not None) == (one[:shorter] == other[:shorter])


@pytest.mark.parametrize("target_exists", [False, True])
def test_directories_are_compared_behind_their_links_even_before_they_exist(
    deployment: Deployment, tmp_path: Path, target_exists: bool
) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    if target_exists:
        (tmp_path / "real").mkdir()

    refusal = deployment.refusal(
        {"PEEN_CONFIG_DIR": str(tmp_path / "real/config"), "PEEN_STATE_DIR": str(tmp_path / "alias/config/state")}
    )

    assert refusal.variable == "PEEN_STATE_DIR"
    assert "neither may contain the other" in refusal.problem


def test_a_directory_that_cannot_be_resolved_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")

    for broken in ("loop", "file/state"):
        assert "cannot be resolved" in deployment.refusal({"PEEN_STATE_DIR": str(tmp_path / broken)}).problem


def test_socket_paths_must_fit_what_the_system_allows(deployment: Deployment) -> None:
    control = len("/control.sock")
    worker = len("/00000000-0000-4000-8000-000000000000/worker.sock")

    def of_length(size: int) -> str:
        return "/" + "s" * (size - 1)

    deployment.load({"PEEN_STATE_DIR": of_length(107 - control), "PEEN_WORKER_SOCKET_DIR": of_length(107 - worker)})

    both = deployment.refusal(
        {"PEEN_STATE_DIR": of_length(108 - control), "PEEN_WORKER_SOCKET_DIR": of_length(108 - worker)}
    )
    assert isinstance(both, SettingsInvalid)
    assert [problem.variable for problem in both.problems] == ["PEEN_STATE_DIR", "PEEN_WORKER_SOCKET_DIR"]
    assert "has 108 bytes, the system allows 107" in str(both)


def test_missing_directories_are_made_for_this_user_alone(deployment: Deployment) -> None:
    settings = deployment.load()
    before = os.umask(0)
    try:
        prepare_directories(settings)
    finally:
        os.umask(before)

    made = [settings.config_dir, settings.state_dir, settings.worker_socket_dir, deployment.home / ".local"]
    assert [oct(path.stat().st_mode & 0o7777) for path in made] == ["0o700"] * 4
    prepare_directories(settings)


def test_loading_creates_nothing(deployment: Deployment) -> None:
    deployment.load()

    assert list(deployment.home.iterdir()) == []


def test_a_file_in_the_place_of_a_directory_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")

    for name, path in [("PEEN_STATE_DIR", "file"), ("PEEN_CONFIG_DIR", "file"), ("PEEN_STATE_DIR", "dangling")]:
        settings = deployment.load({name: str(tmp_path / path)})
        with pytest.raises(ConfigurationInvalid, match="is not a directory") as caught:
            prepare_directories(settings)
        assert caught.value.variable == name
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_state_directory_that_others_can_write_is_refused_and_left_as_it_is(
    deployment: Deployment, mode: int
) -> None:
    settings = deployment.load()
    settings.state_dir.mkdir(parents=True)
    settings.state_dir.chmod(mode)

    with pytest.raises(ConfigurationInvalid, match=r"other users can write .* chmod go-w"):
        prepare_directories(settings)

    assert settings.state_dir.stat().st_mode & 0o7777 == mode


@pytest.mark.skipif(not AS_THE_SUPERUSER, reason="only the superuser can give a directory away")
def test_a_state_directory_of_another_user_is_refused(deployment: Deployment) -> None:
    settings = deployment.load()
    settings.state_dir.mkdir(parents=True, mode=0o700)
    os.chown(settings.state_dir, 65534, 65534)

    with pytest.raises(ConfigurationInvalid, match="belongs to another user"):
        prepare_directories(settings)
