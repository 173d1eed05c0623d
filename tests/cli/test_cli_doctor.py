"""What is wrong is found, and how to mend it is said."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_canned import answer, canned, environment_in, settings_in
from disk_kit import unwritable

from peen.cli.discovery import Offer
from peen.cli.doctor.finding import Finding
from peen.cli.doctor.machine import (
    EARLIEST_MS,
    docker_sockets,
    look_at_clock,
    look_at_docker,
    look_at_newest,
    look_at_open_files,
    look_at_ripgrep,
    look_at_user,
)
from peen.cli.doctor.places import file_system_of, look_at_file_system, look_at_private, look_at_room
from peen.cli.doctor.providers import look_at_default, look_at_upstreams
from peen.cli.doctor.running import look_at_controller, look_at_port
from peen.cli.main import main
from peen.control.lock import ControllerLock, LockInfo
from peen.entropy import SystemEntropy
from peen.model.stream import ModelInfo
from peen.settings import ListenAddress, Settings, load_settings
from peen.tool.base import ToolError

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/with\\040space rw shared:1 - tmpfs tmpfs rw
32 22 0:42 / /home2 rw - xfs /dev/sdb rw
"""


def seen(found: Finding) -> tuple[str, str]:
    """Level and text, and the promise that what is wrong can be mended."""
    assert (found.mend is None) == (found.level == "ok"), found
    return found.level, found.line()


@pytest.fixture
def settings(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PEEN_UPSTREAMS", "PEEN_DEFAULT_MODEL", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


# --- the whole ------------------------------------------------------------------------------------------------------


def levels_of(out: str) -> dict[str, set[str]]:
    """What was looked at, with the levels that it got."""
    found: dict[str, set[str]] = {}
    for line in out.splitlines():
        level, _, rest = line.partition(" ")
        found.setdefault(rest.strip().partition(":")[0], set()).add(level)
    return found


def test_it_looks_at_everything_and_changes_nothing(
    settings: Settings, short_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(short_path.rglob("*"))

    assert main(["doctor"]) == 0

    out, err = capfd.readouterr()
    assert err == ""
    levels = levels_of(out)
    assert list(levels) == [
        "settings", "configuration", "state", "workspaces", "disk", "file system", "controller", "port", "upstreams",
        "upstream scripted", "default model", "clock", "open files", "ripgrep", "user", "Docker",
    ]  # fmt: skip
    assert all("fail" not in found for found in levels.values())
    assert sorted(short_path.rglob("*")) == before


def test_what_fails_is_exit_one(
    settings: Settings, busy_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEEN_HTTP_LISTEN_ADDRESS", f"127.0.0.1:{busy_port}")
    monkeypatch.setenv("PEEN_TURN_TIMEUOT", "1m")

    assert main(["doctor"]) == 1

    levels = levels_of(capfd.readouterr().out)
    assert levels["port"] == {"fail"}
    assert levels["settings"] == {"warn"}


def test_wrong_settings_are_a_line_each_and_the_machine_is_looked_at_all_the_same(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEEN_MAX_TOOL_ROUNDS", "many")
    monkeypatch.setenv("PEEN_UPSTREAMS", '[{"name":"a","type":"openai","apiKeyEnv":"NOT_SET_ANYWHERE"}]')

    assert main(["doctor"]) == 1

    out = capfd.readouterr().out
    assert out.count("fail  settings: ") == 2
    assert "NOT_SET_ANYWHERE" in out
    assert {"open files", "ripgrep", "clock", "Docker"} <= set(levels_of(out))


def test_a_running_controller_is_asked_whether_it_answers(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    info = LockInfo.of_this_process(control_socket=settings.control_socket, address="http://127.0.0.1:8080")
    listed = {"models": [], "default": "scripted/demo"}
    asked: list[str] = []
    with (
        ControllerLock.acquire(settings.state_dir, info),
        canned(settings.control_socket, answer(200, {"status": "ok"}, asked), answer(200, listed, asked)),
    ):
        assert main(["doctor"]) == 0

    out = capfd.readouterr().out
    assert f"ok    controller: process {os.getpid()} uses {settings.state_dir} and answers\n" in out
    assert "ok    port: http://127.0.0.1:8080, by the running controller\n" in out
    assert "warn  upstream scripted: it answers now, but did not when the controller started" in out
    assert [line.split()[1] for line in asked] == ["/ready", "/api/v1/models"]


def test_a_controller_that_holds_the_lock_and_does_not_answer_fails(settings: Settings) -> None:
    info = LockInfo.of_this_process(control_socket=settings.control_socket)

    (found,) = look_at_controller(settings, info, SystemEntropy())

    assert seen(found)[0] == "fail"
    assert "does not answer" in found.says


# --- places ---------------------------------------------------------------------------------------------------------


def look(path: Path, *, is_secret: bool = True) -> tuple[str, str]:
    return seen(look_at_private("state", "PEEN_STATE_DIR", path, is_secret=is_secret))


@pytest.mark.parametrize(
    ("mode", "is_secret", "level", "says"),
    [
        (0o700, True, "ok", "mode 0700"),
        (0o755, True, "warn", "chmod go-rx"),
        (0o755, False, "ok", "mode 0755"),
        (0o770, True, "fail", "chmod go-w"),
        (0o702, False, "fail", "chmod go-w"),
    ],
)
def test_who_else_may_use_a_directory_is_seen(
    short_path: Path, mode: int, is_secret: bool, level: str, says: str
) -> None:
    place = short_path / "d"
    place.mkdir()
    place.chmod(mode)

    found = look(place, is_secret=is_secret)

    assert found[0] == level
    assert says in found[1]


def test_a_directory_that_can_be_made_is_fine_and_one_that_cannot_is_not(short_path: Path) -> None:
    (short_path / "file").touch()

    assert look(short_path / "a" / "b")[0] == "ok"
    assert look(short_path / "file")[0] == "fail"
    assert look(short_path / "file" / "below")[0] == "fail"
    (short_path / "dangling").symlink_to(short_path / "nowhere")
    assert look(short_path / "dangling")[0] == "fail"
    assert not (short_path / "a").exists()


def test_a_directory_that_this_user_may_not_use_fails(short_path: Path) -> None:
    with unwritable(short_path / "d"):
        assert look(short_path / "d")[0] == "fail"
        assert look(short_path / "d" / "below")[0] == "fail"


def test_a_spent_reserve_is_noticed(short_path: Path) -> None:
    assert seen(look_at_room(short_path / "not" / "there"))[0] in ("ok", "warn")
    (short_path / "peen.db").touch()
    assert seen(look_at_room(short_path))[0] == "fail"
    (short_path / "peen.db.reserve").touch()
    assert seen(look_at_room(short_path))[0] in ("ok", "warn")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/a/state", "nfs4"),
        ("/home/with space/x", "tmpfs"),
        ("/home2", "xfs"),
        ("/homeless", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_point(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_warned_of() -> None:
    assert seen(look_at_file_system(Path("/home/a/state"), MOUNTS))[0] == "warn"
    assert seen(look_at_file_system(Path("/home2/state"), MOUNTS))[0] == "ok"


# --- ports ----------------------------------------------------------------------------------------------------------


def test_a_port_is_free_or_not(busy_port: int) -> None:
    level, line = seen(look_at_port(ListenAddress("127.0.0.1", busy_port)))
    assert level == "fail"
    assert "in use" in line
    assert seen(look_at_port(ListenAddress("", busy_port)))[0] == "fail"
    assert seen(look_at_port(ListenAddress("127.0.0.1", 0)))[0] == "ok"


def test_a_free_port_is_still_free_afterwards() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    assert seen(look_at_port(ListenAddress("127.0.0.1", port)))[0] == "ok"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


def test_an_address_of_another_machine_fails() -> None:
    assert seen(look_at_port(ListenAddress("192.0.2.1", 8080)))[0] == "fail"


# --- upstreams ------------------------------------------------------------------------------------------------------


def offer(upstream: str, *names: str, failure: str | None = None) -> Offer:
    infos = tuple(ModelInfo(name=f"{upstream}/{name}", connection_name=upstream, model_id=name) for name in names)
    return Offer(upstream, infos, failure, 5)


def test_each_upstream_is_told_with_the_variable_of_its_key_and_never_the_key(short_path: Path) -> None:
    environment = {
        **environment_in(short_path),
        "PEEN_UPSTREAMS": '[{"name":"a","type":"openai","apiKeyEnv":"THE_KEY"},{"name":"b","type":"scripted"}]',
        "THE_KEY": "sk-secret",
    }
    settings = load_settings(environment, cwd=short_path, home=short_path)

    found = list(look_at_upstreams(settings, [offer("a", failure="401 no"), offer("b")], None))

    assert [seen(finding)[0] for finding in found] == ["ok", "fail", "fail", "fail"]
    lines = "\n".join(finding.line() for finding in found)
    assert "upstream a: 401 no; its key is in THE_KEY" in lines
    assert "sk-secret" not in lines


def test_the_default_model_must_be_offered() -> None:
    assert seen(look_at_default("a/x", ["a/y", "a/x"]))[0] == "ok"
    assert seen(look_at_default("a/x", ["a/y"]))[0] == "fail"
    assert seen(look_at_default(None, []))[0] == "fail"
    assert "a/y" in seen(look_at_default(None, ["a/y", "a/x"]))[1]


# --- the machine ----------------------------------------------------------------------------------------------------


def test_few_open_files_are_warned_of() -> None:
    assert seen(look_at_open_files(100))[0] == "warn"
    assert seen(look_at_open_files(65_536)) == ("ok", "ok    open files: up to 65536")
    assert seen(look_at_open_files(resource.RLIM_INFINITY))[0] == "ok"


def test_ripgrep_must_be_there_and_run(short_path: Path) -> None:
    def missing() -> Path:
        raise ToolError("command start failed", "ripgrep (rg) is not installed")

    broken = short_path / "rg"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)

    assert seen(look_at_ripgrep(missing))[0] == "fail"
    assert seen(look_at_ripgrep(lambda: broken))[0] == "fail"
    assert seen(look_at_ripgrep(lambda: short_path / "nothing"))[0] == "fail"
    assert seen(look_at_ripgrep(lambda: Path(sys.executable)))[0] == "ok"


def test_a_clock_that_stands_in_the_past_fails_and_one_that_went_back_is_warned_of(short_path: Path) -> None:
    now_ms = SystemEntropy().now_ms()
    assert seen(look_at_clock(EARLIEST_MS - 1))[0] == "fail"
    assert seen(look_at_clock(now_ms))[0] == "ok"

    (short_path / "peen.db").touch()
    assert seen(look_at_newest(short_path, now_ms))[0] == "ok"
    assert seen(look_at_newest(short_path, now_ms - 3_600_000))[0] == "warn"


def test_root_is_warned_of() -> None:
    assert seen(look_at_user(0))[0] == "warn"
    assert seen(look_at_user(1000))[0] == "ok"


def test_a_docker_socket_that_can_be_reached_is_warned_of(short_path: Path) -> None:
    path = short_path / "docker.sock"
    assert seen(look_at_docker([path]))[0] == "ok"

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert seen(look_at_docker([path]))[0] == "ok"  # nobody listens yet
        listener.listen()
        level, line = seen(look_at_docker([short_path / "other", path]))

    assert level == "warn"
    assert str(path) in line


def test_docker_is_looked_for_where_it_usually_is() -> None:
    found = docker_sockets({"DOCKER_HOST": "unix:///x/d.sock", "XDG_RUNTIME_DIR": "/run/user/7"}, Path("/home/u"))

    assert found == [
        Path("/x/d.sock"), Path("/var/run/docker.sock"), Path("/run/user/7/docker.sock"),
        Path("/home/u/.docker/run/docker.sock"),
    ]  # fmt: skip
    assert docker_sockets({"DOCKER_HOST": "tcp://1.2.3.4:2375"}, Path("/h"))[0] == Path("/var/run/docker.sock")
