"""Logs: what a line holds and never holds, and the daily audit files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from peen.entropy import SeededEntropy
from peen.errors import ConfigurationInvalid
from peen.log import Logging, configure_logging, digest, get_logger
from peen.log.audit import DAY_MS, FLUSH_AFTER_MS

NOON_MS = 1_700_049_600_000  # 2023-11-15T12:00:00Z
log = get_logger("peen.test")


class Run:
    """One configured log with everything that it wrote."""

    def __init__(self, handle: Logging, stream: io.StringIO, directory: Path, entropy: SeededEntropy) -> None:
        self.handle, self.stream, self.directory, self.entropy = handle, stream, directory, entropy

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def files(self) -> list[str]:
        return sorted(os.listdir(self.directory))

    def audit(self, name: str = "20231115-000000.log") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines()]


@contextmanager
def running(
    tmp_path: Path,
    *,
    level: str = "info",
    form: Literal["text", "json"] = "json",
    source: bool = False,
    days: int = 14,
    stream: io.StringIO | None = None,
) -> Iterator[Run]:
    entropy = SeededEntropy(1, start_ms=NOON_MS)
    stream = stream if stream is not None else io.StringIO()
    directory = tmp_path / "logs"
    with configure_logging(level, form, source, directory, days, entropy, stream=stream) as handle:
        yield Run(handle, stream, directory, entropy)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path) as started:
        yield started


# --- lines ----------------------------------------------------------------------------------------------------------


def test_a_line_has_time_level_logger_event_and_its_fields(run: Run) -> None:
    log.info("worker ready", generation_id="g1", pid=7)

    assert run.stream.getvalue() == (
        '{"timestamp":"2023-11-15T12:00:00.000Z","level":"info","logger":"peen.test","event":"worker ready",'
        '"generation_id":"g1","pid":7}\n'
    )


def test_the_text_form_is_one_line_that_no_value_can_break(tmp_path: Path) -> None:
    with running(tmp_path, form="text") as run:
        log.warning("odd\nname \x1b[31m", path=Path("/a b"), plain="x", empty="", quote='a"b', n=1.5, gone=None)

    assert run.stream.getvalue() == (
        r"2023-11-15T12:00:00.000Z WARN  peen.test odd\nname \u001b[31m "
        r'path="/a b" plain=x empty="" quote="a\"b" n=1.5 gone=null'
        "\n"
    )


def test_the_stream_has_its_level_and_the_audit_file_has_everything(run: Run) -> None:
    log.debug("a")
    log.info("b")
    log.error("c")
    run.handle.flush()

    assert [line["event"] for line in run.lines()] == ["b", "c"]
    assert [(line["level"], line["event"]) for line in run.audit()] == [("debug", "a"), ("info", "b"), ("error", "c")]


def test_placeholders_are_filled_and_misfits_are_left(run: Run) -> None:
    log.info("took %s of %d", "5 s", 3)
    log.info("took %d", "no number")
    log.info("100%")

    assert [line["event"] for line in run.lines()] == ["took 5 s of 3", "took %d", "100%"]


def test_bound_fields_stay_and_a_field_never_hides_the_head(run: Run) -> None:
    log.bind(session_id="s").info("x", level="mine", timestamp="never", logger="me")

    (line,) = run.lines()
    assert (line["session_id"], line["level"], line["level_"]) == ("s", "info", "mine")
    assert (line["timestamp_"], line["logger"], line["logger_"]) == ("never", "peen.test", "me")


def test_an_exception_brings_its_traceback(run: Run) -> None:
    try:
        raise LookupError("no such thing")
    except LookupError as error:
        log.exception("failed")
        given = error
    log.warning("later", exc_info=given, cause=given)

    first, second = run.lines()
    assert first["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert first["exception"].endswith("LookupError: no such thing")
    assert second["exception"] == first["exception"]
    assert second["cause"] == "LookupError: no such thing"


def test_the_source_is_the_line_that_logged(tmp_path: Path) -> None:
    with running(tmp_path, source=True) as run:
        log.info("here")
        structlog.get_logger("other").info("there")

    assert [re.sub(r"\d+", "n", line["source"]) for line in run.lines()] == [f"{__name__}:n", f"{__name__}:n"]


def test_loggers_of_structlog_and_of_libraries_come_along(run: Run) -> None:
    structlog.get_logger("peen.tool").info("started", prompt="hush")
    logging.getLogger("hypercorn.error").info("chatter")
    logging.getLogger("hypercorn.error").warning("slow %s", "100%")
    logging.getLogger("quart.app").error("bad")

    assert [(line["logger"], line["level"], line["event"]) for line in run.lines()] == [
        ("peen.tool", "info", "started"),
        ("hypercorn.error", "warn", "slow 100%"),
        ("quart.app", "error", "bad"),
    ]
    assert run.lines()[0]["prompt"] == digest("hush")


def test_closing_gives_the_previous_configuration_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = list(logging.getLogger().handlers)
    with running(tmp_path / "outer") as outer:
        with running(tmp_path / "inner") as inner:
            log.info("inner")
        log.info("outer")
        inner.handle.close()
    log.info("unheard")
    log.warning("heard")

    assert [line["event"] for line in inner.lines()] == ["inner"]
    assert [line["event"] for line in outer.lines()] == ["outer"]
    assert logging.getLogger().handlers == handlers
    out, err = capsys.readouterr()
    assert (out, err.split(" ", 1)[1]) == ("", "WARN  peen.test heard\n")


def test_one_shot_commands_keep_standard_output_for_the_answer() -> None:
    program = (
        "import sys\nfrom peen.entropy import SystemEntropy\nfrom peen.log import configure_logging, get_logger\n"
        "with configure_logging('info', 'text', False, None, 14, SystemEntropy(), stream=sys.stderr):\n"
        "    get_logger('a').info('progress')\n    print('answer')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "answer\n"
    assert "progress" in done.stderr


# --- what a line never holds ----------------------------------------------------------------------------------------

SECRET = "the-words-nobody-may-read"


@pytest.mark.parametrize(
    "key",
    ["content", "message_text", "messageText", "prompt", "systemPrompt", "arguments", "tool_result", "stdout",
     "api_key", "apiKey", "API-KEY", "token", "bearerToken", "credential", "authorization", "password"],
)  # fmt: skip
@pytest.mark.parametrize("value", [SECRET, SECRET.encode(), {"a": SECRET}, [SECRET]], ids=lambda v: type(v).__name__)
def test_content_and_credentials_become_size_and_digest(run: Run, key: str, value: object) -> None:
    log.info("x", **{key: value})
    log.info("x", nested={key: value})

    written = run.stream.getvalue()
    assert SECRET not in written
    assert re.findall(r"<\d+ bytes, sha256 [0-9a-f]{64}>", written)


def test_a_digest_is_the_size_and_sha256_of_the_utf8_text() -> None:
    assert digest("é") == f"<2 bytes, sha256 {hashlib.sha256('é'.encode()).hexdigest()}>"
    assert digest(b"\xff") == f"<1 bytes, sha256 {hashlib.sha256(bytes([255])).hexdigest()}>"


def test_names_that_only_resemble_those_are_left_alone(run: Run) -> None:
    log.info("x", max_tokens=5, prompt_tokens=6, content=7, contents="list", token_count=8, result=None)

    line = run.lines()[0]
    assert (line["max_tokens"], line["prompt_tokens"], line["content"], line["token_count"]) == (5, 6, 7, 8)
    assert (line["contents"], line["result"]) == ("list", None)


def test_an_object_shows_its_type_and_nothing_of_itself(run: Run) -> None:
    class Frame:
        def __repr__(self) -> str:
            return SECRET

    log.info("x", frame=Frame(), data=b"raw", items={"deep": {"deep": {"deep": {"deep": {"deep": SECRET}}}}})

    line = run.lines()[0]
    assert SECRET not in run.stream.getvalue()
    assert line["frame"].endswith("Frame>")
    assert line["data"] == digest(b"raw")


def test_a_long_value_is_cut(run: Run) -> None:
    log.info("x", line="y" * 5000)

    assert run.lines()[0]["line"] == "y" * 4096 + "… (904 more characters)"


def test_an_exception_without_a_text_is_still_named(run: Run) -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log.error("x", cause=Hostile(), exc_info=Hostile())

    (line,) = run.lines()
    assert "Hostile" in line["cause"]
    assert "Hostile" in line["exception"]


ODD: st.SearchStrategy[object] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.uuids(), st.datetimes(),
        st.text(st.characters(exclude_categories=())), st.just(object()),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)),
    max_leaves=10,
)  # fmt: skip


@given(event=st.text(st.characters(exclude_categories=())), fields=st.dictionaries(st.text(), ODD))
def test_no_event_and_no_value_makes_a_log_call_raise_or_write_what_is_no_line(
    event: str, fields: dict[str, object]
) -> None:
    stream = io.StringIO()
    fields.pop("exc_info", None)
    with configure_logging("info", "json", False, None, 14, SeededEntropy(1), stream=stream) as handle:
        log.info(event, **fields)

    lines = stream.getvalue().split("\n")[:-1]
    assert len(lines) + handle.lines_dropped == 1
    assert all(isinstance(json.loads(line), dict) for line in lines)


# --- audit files ----------------------------------------------------------------------------------------------------


def test_directory_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with running(tmp_path) as run:
            log.info("x")
    finally:
        os.umask(before)

    assert oct(run.directory.stat().st_mode & 0o7777) == "0o700"
    assert oct((run.directory / "20231115-000000.log").stat().st_mode & 0o7777) == "0o600"


def test_a_new_file_begins_at_midnight_utc(run: Run) -> None:
    run.entropy.advance(DAY_MS // 2 - 1)
    log.debug("last of the day")
    run.entropy.advance(1)
    log.info("first of the day")

    assert run.files() == ["20231115-000000.log", "20231116-000000.log"]
    assert [line["event"] for line in run.audit()] == ["last of the day"]
    assert [line["timestamp"] for line in run.audit("20231116-000000.log")] == ["2023-11-16T00:00:00.000Z"]


def test_old_files_are_deleted_and_other_files_are_not(tmp_path: Path) -> None:
    kept = ["20231112-000000.log", "20231201-000000.log", "20230101-000000.log.gz", "x20230101-000000.log",
            "20231399-000000.log", "notes.txt"]  # fmt: skip
    (tmp_path / "logs").mkdir(mode=0o700)
    for name in [*kept, "20231111-000000.log", "19700101-000000.log"]:
        (tmp_path / "logs" / name).write_text("")
    (tmp_path / "logs" / "20200101-000000.log").mkdir()

    with running(tmp_path, days=3) as run:
        log.info("x")
        assert run.files() == sorted([*kept, "20200101-000000.log", "20231115-000000.log"])
        run.entropy.advance(DAY_MS)
        log.info("y")

    assert "20231112-000000.log" not in run.files()


def test_a_second_process_of_the_day_appends(tmp_path: Path) -> None:
    for event in ("first", "second"):
        with running(tmp_path) as run:
            log.info(event)

    assert [line["event"] for line in run.audit()] == ["first", "second"]


def test_debug_lines_wait_a_second_at_most_and_others_not_at_all(run: Run) -> None:
    log.debug("a")
    assert run.files() == []
    run.entropy.advance(FLUSH_AFTER_MS)
    log.debug("b")
    assert len(run.audit()) == 2
    log.debug("c")
    log.info("d")

    assert len(run.audit()) == 4


def test_waiting_lines_are_bounded_by_size(run: Run) -> None:
    for _ in range(20):
        log.debug("x", line="y" * 4000)

    assert len(run.audit()) >= 16


def test_lines_of_many_threads_stay_whole(run: Run) -> None:
    def write() -> None:
        for number in range(200):
            log.debug("x", number=number)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.handle.flush()

    assert sorted(line["number"] for line in run.audit()) == sorted(list(range(200)) * 8)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, *, after: int) -> Iterator[None]:
    """The kernel's own words for a full disk, once `after` more bytes are written to any file."""
    real: Callable[[int, Any], int] = os.write
    left = after

    def write(fd: int, data: Any) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, bytes(data)[:left])
        left -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        yield


def test_a_full_disk_drops_lines_and_the_file_says_so_once_there_is_room(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.info("before")
    with full_disk(monkeypatch, after=10):
        log.info("torn")
        log.info("lost")
    log.info("after")

    before, torn, report, after = (run.directory / "20231115-000000.log").read_text().splitlines()
    assert torn == before[:10]
    assert json.loads(report) | {"timestamp": ""} == {
        "timestamp": "", "level": "warn", "logger": "peen.log", "event": "log lines dropped", "lines": 2,
    }  # fmt: skip
    assert json.loads(after)["event"] == "after"
    assert run.handle.lines_dropped == 2
    assert [line["event"] for line in run.lines()] == ["before", "torn", "lost", "after"]


def test_half_a_line_of_an_earlier_process_is_closed_first(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o700)
    (tmp_path / "logs" / "20231115-000000.log").write_text('{"half":')

    with running(tmp_path) as run:
        log.info("x")

    half, whole = (run.directory / "20231115-000000.log").read_text().splitlines()
    assert (half, json.loads(whole)["event"]) == ('{"half":', "x")


def test_a_directory_that_vanishes_costs_lines_and_nothing_else(run: Run) -> None:
    log.info("x")
    (run.directory / "20231115-000000.log").unlink()
    run.directory.rmdir()
    run.entropy.advance(DAY_MS)
    log.info("y")
    run.directory.mkdir(mode=0o700)
    log.info("z")

    assert [line["event"] for line in run.audit("20231116-000000.log")] == ["log lines dropped", "z"]


def test_no_link_is_followed_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o700)
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "logs" / "20231115-000000.log").symlink_to(tmp_path / "victim")

    with running(tmp_path) as run:
        log.info("x")
        assert run.handle.lines_dropped == 1

    assert (tmp_path / "victim").read_text() == "kept"


def test_a_reader_that_went_away_does_not_stop_the_audit(tmp_path: Path) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with running(tmp_path, stream=Broken()) as run:
        log.info("x")
        log.info("y")
        assert run.handle.lines_dropped == 1

    assert [line["event"] for line in run.audit()] == ["x", "y"]


def test_a_closed_stream_is_no_error_for_the_caller(tmp_path: Path) -> None:
    stream = io.StringIO()
    with running(tmp_path, stream=stream) as run:
        stream.close()
        log.info("x")

    assert [line["event"] for line in run.audit()] == ["x"]


def test_a_log_directory_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    for name, problem in (("file", "is not a directory"), ("file/logs", "cannot be created"), ("open", "chmod go-w")):
        with pytest.raises(ConfigurationInvalid, match=problem) as caught:
            configure_logging("info", "text", False, tmp_path / name, 14, SeededEntropy(1))
        assert caught.value.variable == "PEEN_LOG_DIRECTORY"


def test_a_line_below_the_level_costs_less_than_a_microsecond() -> None:
    with configure_logging("info", "json", False, None, 14, SeededEntropy(1), stream=io.StringIO()):
        best_s = min(timeit.repeat(lambda: log.debug("x", session_id="s", size=1), number=10_000, repeat=7)) / 10_000

    assert best_s < 1e-6
