"""LiteLLM's proxy, a server that others wrote, as a process: with mocked models, and before `peen dev upstream`.

It needs more than a hundred packages, so it has an environment of its own, which is made when it is first wanted and
kept: `PEEN_TEST_LITELLM_ENV`, or a folder in the user's cache. Where it cannot be had, the tests that want it fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

VERSION: Final = "1.108.7"
KEY: Final = "sk-peen-0123456789abcdef0123456789abcdef"
INSTALL_S: Final = 900.0
READY_S: Final = 120.0
STOP_S: Final = 15.0

MOCKS: Final = '''
"""Answers with a tool call, then with the call's result: what a configuration can mock is text alone, in a stream."""

from litellm import ModelResponse
from litellm.integrations.custom_logger import CustomLogger

CALL = {"id": "call_7", "type": "function", "function": {"name": "readFile", "arguments": '{"path":"notes.txt"}'}}


class Mocks(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if data["model"] != "mock-calls":
            return data
        results = [message for message in data["messages"] if message["role"] == "tool"]
        for message in data["messages"]:
            if isinstance(message["content"], list):
                results += [part for part in message["content"] if part["type"] == "tool_result"]
        if results:
            data["mock_response"] = f"{len(results)} call has returned"
        else:
            said = {"role": "assistant", "content": "I read.", "tool_calls": [CALL]}
            choice = {"index": 0, "finish_reason": "tool_calls", "message": said}
            data["mock_response"] = ModelResponse(model="mock-calls", choices=[choice])
        return data


hook = Mocks()
'''


def environment() -> Path:
    """The interpreter that has LiteLLM. Raises: AssertionError with what pip said if it cannot be installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = Path(os.environ.get("PEEN_TEST_LITELLM_ENV") or cache / "peen-tests" / f"litellm-{VERSION}")
    python = place / "bin" / "python"
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place.with_name(place.name + ".lock")):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(place)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                  f"litellm[proxy]=={VERSION}"])  # fmt: skip
            (place / "complete").touch()
    return python


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S
    )
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    assert done.returncode == 0, f"LiteLLM cannot be had: {' '.join(command[:4])} failed: {said}"


class LiteLlmProxy:
    """A running proxy that offers these models. Leaving the block ends it."""

    def __init__(self, home: Path, models: Mapping[str, Mapping[str, Any]]) -> None:
        """`models` are parameters by name; `home` is a directory of its own."""
        self._home = home
        self._models = models
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        python = environment()
        self._home.mkdir(exist_ok=True)
        self._write()
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        path = os.environ.get("PATH", "")
        settings = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [python.with_name("litellm"), "--config", "config.yaml", "--host", "127.0.0.1", "--port", f"{port}"],
                cwd=self._home, env={"PATH": path, "HOME": str(self._home), **settings}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end()

    def _write(self) -> None:
        document = {
            "model_list": [{"model_name": name, "litellm_params": given} for name, given in self._models.items()],
            "litellm_settings": {
                "num_retries": 0,
                "callbacks": "mocks.hook",
                "use_chat_completions_url_for_anthropic_messages": True,
            },
            "router_settings": {"num_retries": 0},
        }
        (self._home / "config.yaml").write_text(json.dumps(document))
        (self._home / "mocks.py").write_text(MOCKS)

    def _wait(self) -> None:
        assert self._process is not None
        give_up = time.monotonic() + READY_S
        while time.monotonic() < give_up and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health/liveliness", timeout=5.0):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise AssertionError(f"LiteLLM did not get ready:\n{(self._home / 'log').read_text(errors='replace')[-3000:]}")

    def _end(self) -> None:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
